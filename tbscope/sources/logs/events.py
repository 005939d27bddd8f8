"""Events of a log that contain graphs, as TensorBoard's graph plugin reads them.

Source: tensorboard/plugins/graph/graphs_plugin.py; tensorboard/compat/proto/event.proto
"""

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.config_pb2 import RunMetadata
from tensorboard.compat.proto.event_pb2 import Event

from tbscope.formats.compressed import RECORD_FIELD
from tbscope.messages import error_text

try:
    from google.protobuf.unknown_fields import UnknownFieldSet
except ImportError:  # protobuf up to 4.21
    UnknownFieldSet = operator.methodcaller("UnknownFields")  # type: ignore[misc,assignment]

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


def graphs_in(data: bytes) -> Iterator[LoggedContent]:
    """Yield the graphs and figures in the bytes of an event.

    Raises:
        EventError: The bytes are damaged. No checksum finds this: they were written in this state.
    """
    try:
        event = Event.FromString(data)
        for content in _found(event):
            content.step, content.wall_time = event.step, event.wall_time
            if content.kind == "graph_def":
                content.record = _record_in(event)
            yield content
    except (DecodeError, UnicodeDecodeError) as error:
        raise EventError(f"contains an event that cannot be read: {error_text(error)}") from error


def _found(event: Event) -> Iterator[LoggedContent]:
    if event.graph_def:
        yield LoggedContent("graph_def", None, data=event.graph_def)
    if event.HasField("tagged_run_metadata"):
        tagged = event.tagged_run_metadata
        yield from _of_metadata(tagged.tag, tagged.run_metadata)
    for value in event.summary.value:
        plugin = value.metadata.plugin_data.plugin_name
        if plugin == _KERAS or plugin in _METADATA:
            for content in value.tensor.string_val[:1]:
                if plugin == _KERAS:
                    yield LoggedContent("keras", plain_tag(value.tag), data=content)
                else:
                    yield from _of_metadata(value.tag, content)


def _record_in(event: Event) -> bytes:
    """Return the record in an event, or nothing if tbscope did not write the event."""
    fields: Any = UnknownFieldSet(event)
    return next((field.data for field in fields if field.field_number == RECORD_FIELD), b"")


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
