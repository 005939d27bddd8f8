"""Events of a log that contain graphs, as TensorBoard's graph plugin reads them.

The fields of an event are found in protobuf's wire format, without copying their content.

Source: tensorboard/plugins/graph/graphs_plugin.py; tensorboard/compat/proto/event.proto;
https://protobuf.dev/programming-guides/encoding/
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.config_pb2 import RunMetadata
from tensorboard.compat.proto.event_pb2 import TaggedRunMetadata
from tensorboard.compat.proto.summary_pb2 import Summary

from tbscope.formats.compressed import RECORD_FIELD
from tbscope.messages import error_text

if TYPE_CHECKING:
    from mmap import mmap


_VARINT, _BYTES = 0, 2
_SIZES = {1: 8, 5: 4}
_MOST_DIGITS = 10


class _WireError(Exception):
    """Message that breaks off, or bytes that are no message."""


class _Field(NamedTuple):
    """_Field of a message.

    Attributes:
        number: The field number.
        kind: The wire type: 0 for a number, 1 and 5 for 8 and 4 bytes, 2 for bytes with a length.
        start: The offset of the content.
        end: The offset of the end of the content.
        value: The number; 0 for any other kind.
    """

    number: int
    kind: int
    start: int
    end: int
    value: int


def _fields(data: "bytes | mmap") -> Iterator[_Field]:
    """Yield the fields of a message in order, without copying their content.

    Raises:
        _WireError: A field breaks off, or claims more bytes than are left.
    """
    offset, end = 0, len(data)
    while offset < end:
        key, offset = _varint(data, offset)
        number, kind, value = key >> 3, key & 7, 0
        if number == 0:
            raise _WireError("a field has the number 0")
        if kind == _VARINT:
            value, behind = _varint(data, offset)
            size = behind - offset
        elif kind == _BYTES:
            size, offset = _varint(data, offset)
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise _WireError(f"a field is of the wire type {kind}, which is none")
        if size > end - offset:
            raise _WireError(f"a field claims {size:,} bytes, and {end - offset:,} are left")
        yield _Field(number, kind, offset, offset + size, value)
        offset += size


def _varint(data: "bytes | mmap", position: int) -> tuple[int, int]:
    value = shift = 0
    first = position
    while position < len(data):
        digit = data[position]
        position += 1
        value |= (digit & 0x7F) << shift
        if digit < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position
        shift += 7
        if position - first >= _MOST_DIGITS:
            raise _WireError("a number has more than ten digits")
    raise _WireError("it breaks off in a number")


_WALL_TIME, _STEP, _GRAPH_DEF, _SUMMARY, _TAGGED = 1, 2, 4, 5, 8
_WANTED = frozenset({_GRAPH_DEF, _SUMMARY, _TAGGED})
# Prefix of the plugins whose summaries contain graphs.
_PLUGINS = b"graph_"
_METADATA = ("graph_run_metadata_graph", "graph_run_metadata")
_KERAS = "graph_keras_model"


class EventError(Exception):
    """Record or event of a log is cut off or damaged."""


@dataclass(slots=True)
class LoggedContent:
    """Graph in a log, or figures for the graph of a run.

    Attributes:
        kind: The kind of the bytes: a GraphDef, Keras's JSON, or none for figures alone.
        tag: The tag, or None for the graph of the run.
        step: The training step.
        wall_time: The time of writing, in seconds since 1970.
        data: The GraphDef or the JSON, serialised; empty for figures alone.
        record: The complete graph as tbscope wrote it; empty for other writers.
        figures: A RunMetadata with times and memory, or None if there is none.
    """

    kind: Literal["graph_def", "keras", "figures"]
    tag: str | None
    step: int = 0
    wall_time: float = 0.0
    data: bytes = b""
    record: bytes = b""
    figures: RunMetadata | None = None


def graphs_in(event: bytes) -> Iterator[LoggedContent]:
    """Yield the graphs and figures in the bytes of an event.

    Raises:
        EventError: The bytes are damaged. No checksum finds this: they were written in this state.
    """
    try:
        wanted: list[_Field] = []
        wall_time, step, record = 0.0, 0, b""
        for field in _fields(event):
            if field.kind == 2 and field.number in _WANTED:
                wanted.append(field)
            elif field.kind == 2 and field.number == RECORD_FIELD:
                record = event[field.start : field.end]
            elif field.number == _WALL_TIME and field.kind == 1:
                (wall_time,) = struct.unpack_from("<d", event, field.start)
            elif field.number == _STEP and field.kind == 0:
                # A negative int64 is written as an unsigned number.
                step = field.value - 2**64 if field.value >= 2**63 else field.value
        # Graphs come last: the fields of a message may have any order.
        for field in wanted:
            for content in _found(field.number, event, field.start, field.end):
                content.step, content.wall_time = step, wall_time
                if content.kind == "graph_def":
                    content.record = record
                yield content
    except (_WireError, DecodeError, UnicodeDecodeError) as error:
        raise EventError(f"contains an event that cannot be read: {error_text(error)}") from error


def _found(number: int, event: bytes, start: int, end: int) -> Iterator[LoggedContent]:
    # Most summaries contain no graph: a search for the plugin is quicker than parsing.
    if number == _SUMMARY and event.find(_PLUGINS, start, end) < 0:
        return
    data = event[start:end]
    if number == _GRAPH_DEF:
        yield LoggedContent("graph_def", None, data=data)
    elif number == _TAGGED:
        tagged = TaggedRunMetadata.FromString(data)
        yield from _of_metadata(tagged.tag, tagged.run_metadata)
    else:
        for value in Summary.FromString(data).value:
            plugin = value.metadata.plugin_data.plugin_name
            texts = value.tensor.string_val
            if not texts:
                continue
            if plugin == _KERAS:
                yield LoggedContent("keras", plain_tag(value.tag), data=texts[0])
            elif plugin in _METADATA:
                yield from _of_metadata(value.tag, texts[0])


def _of_metadata(tag: str, data: bytes) -> Iterator[LoggedContent]:
    """Yield the graphs of a RunMetadata with their figures, or the figures alone."""
    metadata = RunMetadata.FromString(data)
    figures = metadata if metadata.step_stats.dev_stats else None
    tag = plain_tag(tag)
    for graph in metadata.function_graphs:
        drawn = graph.pre_optimization_graph.SerializeToString()
        yield LoggedContent("graph_def", tag, data=drawn, figures=figures)
    if figures is not None and not metadata.function_graphs:
        yield LoggedContent("figures", tag, figures=figures)


def plain_tag(tag: str) -> str:
    """Return a tag without the blank at the end of tbscope's tags, which the page does not show."""
    return tag.removesuffix(" ") or tag
