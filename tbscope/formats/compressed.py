"""Records: a graph as compressed JSON in an event file, next to its drawing.

The drawing omits whatever TensorBoard's page does not show; the record is complete. It is a field
that TensorBoard's event message does not define, so protobuf readers skip it, and the page does not
show it.
"""

import zlib

from tbscope.errors import ArgumentError
from tbscope.formats.json import compact_json, graph_from_json
from tbscope.ir.graph import Graph
from tbscope.utils.gc_pause import not_collecting

RECORD_FIELD = 29_794
"""The field number of a record in an event.

Source: tensorboard/compat/proto/event.proto (its own fields have numbers up to 10)
"""

# The fastest level: for JSON, the slowest level compresses hardly better.
_LEVEL = 1
# The limits against decompression bombs: zlib reduces our JSON to a twentieth, and a graph of a
# million nodes takes about 2**28 bytes of it.
_MOST_TIMES = 60
_MOST_BYTES = 2**28


def record_of(graph: Graph) -> bytes:
    """Return the record of a graph, whose type is not checked; empty if the graph is too large."""
    with not_collecting():
        # A separate function frees all temporary objects before the garbage collector resumes.
        text = compact_json(graph)
    if len(text) > _MOST_BYTES:
        return b""
    packed = zlib.compress(text, _LEVEL)
    # A more repetitive text is stored uncompressed, so that readers do not reject its ratio.
    return packed if len(text) <= len(packed) * _MOST_TIMES else zlib.compress(text, 0)


def graph_of_record(record: bytes) -> Graph:
    """Return the graph of a record.

    Raises:
        ArgumentError: The bytes are not a record, are damaged, would inflate to more than a record
            of this size can, or are of a later version.
    """
    most = min(_MOST_BYTES, len(record) * _MOST_TIMES)
    inflate = zlib.decompressobj()
    try:
        text = inflate.decompress(record, most)
    except zlib.error as error:
        raise _damaged(f"zlib: {error}") from error
    if not inflate.eof:
        rest = inflate.unconsumed_tail
        raise _damaged(f"it contains more than {most:,} bytes" if rest else "it is cut off")
    return graph_from_json(text)


def _damaged(why: str) -> ArgumentError:
    return ArgumentError("the record of a graph is damaged", why=why, fix="write or copy it again")
