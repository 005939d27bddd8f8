"""Event sinks: the object with `add_event` inside of anything like a SummaryWriter.

Writers are recognised by their attributes and not by their class, so none of their packages
is imported. Graphs reach this file as bytes.
"""

import inspect
import os
import sys
import time
from typing import Any

from google.protobuf.message import Message
from tensorboard.compat.proto.event_pb2 import Event, TaggedRunMetadata
from tensorboard.compat.proto.summary_pb2 import SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING

from tbscope.errors import WriterError
from tbscope.formats.compressed import RECORD_FIELD
from tbscope.graphdef.wire import delimited, field, varint
from tbscope.messages import shown, without_addresses
from tbscope.utils.validation import attribute_of
from tbscope.writing.records import (
    await_free_name,
    file_path,
    foresee_failure,
    has_lost_its_thread,
    speed_up,
    write_at_once,
    writing_failed,
)

_OPENS, _TAKES = "_get_file_writer", "add_event"
# The attributes that lead from a writer to the object that takes its events, in the order of trial:
# of a SummaryWriter, a file writer, objects around one, a logger of Lightning, a tracker of
# Accelerate, the callback of transformers, and tensorboardX's GlobalSummaryWriter.
_ROUTES = (
    *(_OPENS, _TAKES, "file_writer", "event_writer"),
    *("experiment", "writer", "tb_writer", "smw"),
)
# `tensorboard.summary.Writer` has no public name for its event file.
_PRIVATE_ROUTES = ("_output", "_ev_writer")

PROFILE_TAG = "profile"
"""The entry in the page's list with the figures of the graph of the run."""

# Plugin names of a tag with a graph (tensorboard/plugins/graph/graphs_plugin.py, `info_impl`).
_TAGGED = "graph_run_metadata_graph"
_TAGGED_WITH_STATS = "graph_run_metadata"
# The field `function_graphs` of a RunMetadata, and its field for the graph before optimisations
# (tensorboard/compat/proto/config.proto).
_FUNCTION_GRAPHS, _GRAPH = 4, 2
_RECORD_KEY = varint(RECORD_FIELD << 3 | 2)
_NO_NAME = "a name that no writer has"
_BLANK_TRACKER = ("accelerate.tracking", "GeneralTracker")


def check_writer(writer: object) -> None:
    """Refuse an object with none of the routes, before any work is done for it.

    No method is called and no property is read, so the check opens no file.

    Raises:
        WriterError: The object is no writer.
    """
    if not _writes_nothing(writer) and _find_route(writer) is None:
        raise _not_a_writer(writer)


def open_sink(writer: object) -> object:
    """Return the object behind a writer that takes events; a closed writer opens a new file.

    Args:
        writer: Any object with one of the routes.
    Returns:
        An object with `add_event`; None if the writer is a placeholder on a rank of a
        distributed run that writes nothing.
    Raises:
        WriterError: No route leads to such an object.
    """
    holder: object = writer
    for _ in _ROUTES:
        if _writes_nothing(holder):
            return None
        route = _find_route(holder)
        if route == _TAKES:
            return holder
        if route is None:
            break
        holder = _follow(holder, route)
    raise _not_a_writer(writer)


def _follow(holder: object, route: str) -> object:
    """Return the next object of a route; a closed writer opens a file for it.

    Raises:
        WriterError: The file cannot be opened.
    """
    directory = ""
    try:
        target = getattr(holder, route)
        if route != _OPENS:
            return target
        if getattr(holder, "file_writer", target) is None:
            directory = log_directory(holder) or getattr(holder, "logdir", "")
            if os.path.isdir(directory):
                foresee_failure(directory, getattr(holder, "filename_suffix", ""))
                await_free_name(holder, directory)
        return target()
    except WriterError:
        raise
    except Exception as error:
        raise writing_failed(directory, error) from error


def log_directory(sink: object) -> str:
    """Return the log directory that a sink reports, or an empty text if it reports none."""
    directory = sink.get_logdir() if hasattr(sink, "get_logdir") else ""
    return os.fspath(directory) if isinstance(directory, str | os.PathLike) else ""


def write_graph_event(
    sink: Any,
    graph_def: bytes,
    *,
    tag: str | None = None,
    step: int,
    stats: bytes | None = None,
    record: bytes = b"",
) -> None:
    """Write one event with a graph, one more with the figures of a run's graph, and flush.

    Args:
        sink: An object with `add_event`, as `open_sink` returns it.
        graph_def: A serialised GraphDef.
        tag: Its entry in the page's list of tags; None for the graph of the run, "Default".
        step: The page shows the graph with the highest step of each tag.
        stats: A serialised RunMetadata with the figures of the graph's nodes, or None. Figures
            of the graph of the run are an entry of their own, `PROFILE_TAG`.
        record: The whole graph, compressed by `tbscope.formats.compressed`; empty for none.
            TensorBoard ignores this field.
    Raises:
        WriterError: The sink belongs to the process that this one was forked from, or it
            cannot write. Files of TensorBoard's, torch's and tensorboardX's sinks then are
            as they were before.

    Source: tensorboard/plugins/graph/graphs_plugin.py (`info_impl`, `graph_impl`)
    """
    if has_lost_its_thread(sink):
        raise WriterError(
            f"cannot write a graph to the {type(sink).__name__} of another process",
            why="this process was forked, and the thread that writes its events was not",
            fix="make a writer in this process: writer = tbscope.SummaryWriter(log_dir)",
        )
    speed_up(sink)
    datas = [event.SerializeToString() for event in _events(graph_def, tag, step, stats)]
    if record:
        datas[0] += _RECORD_KEY + delimited(record)
    try:
        if not write_at_once(sink, datas):
            for data in datas:
                sink.add_event(_event_class(sink).FromString(data))
            if hasattr(sink, "flush"):
                sink.flush()
    except Exception as error:
        raise writing_failed(file_path(sink) or log_directory(sink), error) from error


def _events(graph_def: bytes, tag: str | None, step: int, stats: bytes | None) -> list[Event]:
    """Return the events of a graph: two for a graph of the run with figures, otherwise one."""
    event = Event(wall_time=time.time(), step=step)
    if tag is None:
        event.graph_def = graph_def
        if stats is None:
            return [event]
        profile = TaggedRunMetadata(tag=listed_tag(PROFILE_TAG), run_metadata=stats)
        return [event, Event(wall_time=time.time(), step=step, tagged_run_metadata=profile)]
    plugin = SummaryMetadata.PluginData(
        plugin_name=_TAGGED if stats is None else _TAGGED_WITH_STATS, content=b"1"
    )
    # A RunMetadata with one graph: TensorBoard would merge two. The bytes of a message with further
    # fields are its bytes and theirs, joined, so nothing is parsed.
    metadata = (stats or b"") + field(_FUNCTION_GRAPHS, field(_GRAPH, graph_def))
    event.summary.value.add(
        tag=listed_tag(tag),
        metadata=SummaryMetadata(plugin_data=plugin),
        tensor=TensorProto(
            dtype=DT_STRING,
            string_val=[metadata],
            tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
        ),
    )
    return [event]


def listed_tag(tag: str) -> str:
    """Return a tag as it is in the log: with a final blank, which the page does not show.

    TensorBoard takes the kind of a tag of a run from its first event, so of a graph and a scalar
    under one tag the later one would be hidden. The blank makes them two tags.

    Source: tensorboard/backend/event_processing/plugin_event_accumulator.py (`_ProcessEvent`);
    tensorboard/data/server/run.rs (`StageTimeSeries`)
    """
    return f"{tag} "


def _event_class(sink: object) -> type[Message]:
    """Return the class of events that a sink takes: the `Event` in its own module.

    tensorboardX takes only events of its own class; any other ends its writing thread.
    """
    # The base class that defines `add_event` first decides; overrides pass events on to it.
    for cls in reversed(type(sink).__mro__):
        module = sys.modules.get(cls.__module__) if "add_event" in vars(cls) else None
        event_class = getattr(getattr(module, "event_pb2", None), "Event", None)
        if isinstance(event_class, type) and issubclass(event_class, Message):
            return event_class
    event: type[Message] = Event
    return event


def _find_route(holder: object) -> str | None:
    # A class has the attributes of its objects, but is no writer itself.
    if isinstance(holder, type):
        return None
    is_tensorboards = type(holder).__module__.partition(".")[0] == "tensorboard"
    routes = (*_ROUTES, *(_PRIVATE_ROUTES if is_tensorboards else ()))
    return next((route for route in routes if _offers(holder, route)), None)


def _offers(holder: object, route: str) -> bool:
    """Whether an object has the attribute of a route; a property counts without being read."""
    try:
        attribute = inspect.getattr_static(holder, route)
    except AttributeError:
        # Neither the object nor its class has it, but a proxy may look it up in `__getattr__`.
        attribute = attribute_of(holder, route)
    return callable(attribute_of(holder, route)) if route == _TAKES else attribute is not None


def _writes_nothing(holder: object) -> bool:
    """Whether an object is a placeholder for a writer, as on all ranks but the first.

    Lightning's placeholder has any attribute; Accelerate's is a plain `GeneralTracker`.
    """
    cls = type(holder)
    return (
        attribute_of(holder, _NO_NAME) is not None
        or (cls.__module__, cls.__qualname__) == _BLANK_TRACKER
    )


def _not_a_writer(writer: object) -> WriterError:
    name = type(writer).__name__
    return WriterError(
        f"cannot write a graph to {without_addresses(shown(writer))}",
        why=f"{name} is no writer, logger or tracker of event files, and has none in it",
        fix="give a SummaryWriter, e.g. tbscope.SummaryWriter('runs/x')",
    )
