"""Records: a graph as compressed JSON, which stands in an event file beside its drawing.

The drawing leaves out what TensorBoard's page does not show; the record leaves out nothing. It is
a field of the event that TensorBoard's messages do not have, and that every reader of protobuf
passes over. The page shows nothing of it.
"""

import zlib

from tbscope.errors import ArgumentError
from tbscope.formats.json import compact_json, graph_from_json
from tbscope.ir.graph import Graph
from tbscope.utils.gc_pause import not_collecting

__all__ = ["RECORD_FIELD", "graph_of_record", "record_of"]

RECORD_FIELD = 29_794
"""The number of the field in an event that holds a record.

Source: tensorboard/compat/proto/event.proto (its own fields have numbers up to 10)
"""

# The fastest: of JSON it leaves hardly more than the slowest does.
_LEVEL = 1
# Of our own JSON zlib leaves a twentieth; of a graph of a million nodes it is as large.
_MOST_TIMES = 60
_MOST_BYTES = 2**28


def record_of(graph: Graph) -> bytes:
    """Return the record of what is known to be a graph; empty for one that is too large for it."""
    with not_collecting():
        # In a function of its own: all that it made is gone before the collector comes back.
        text = compact_json(graph)
    if len(text) > _MOST_BYTES:
        return b""
    packed = zlib.compress(text, _LEVEL)
    # One that says the same again and again is not taken for a trap.
    return packed if len(text) <= len(packed) * _MOST_TIMES else zlib.compress(text, 0)


def graph_of_record(record: bytes) -> Graph:
    """Return the graph of a record.

    Raises:
        ArgumentError: It is none, is damaged, claims more than a record of its size can hold, or
            is of a later version.
    """
    most = min(_MOST_BYTES, len(record) * _MOST_TIMES)
    inflate = zlib.decompressobj()
    try:
        text = inflate.decompress(record, most)
    except zlib.error as error:
        raise _damaged(f"zlib: {error}") from error
    if not inflate.eof:
        rest = inflate.unconsumed_tail
        raise _damaged(f"it holds more than {most:,} bytes" if rest else "it is cut off")
    return graph_from_json(text)


def _damaged(why: str) -> ArgumentError:
    return ArgumentError(
        "the record of a graph is damaged", why=why, fix="write it anew, or copy it anew"
    )
