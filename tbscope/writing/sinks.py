"""Where events go: finds, in anything like a SummaryWriter, the object that takes events.

Writers are known by what they offer and not by their class, so none of their packages
is imported. This file knows nothing of graphs: an event reaches it as bytes.
"""

import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message
from tensorboard.compat.proto.config_pb2 import RunMetadata
from tensorboard.compat.proto.event_pb2 import Event, TaggedRunMetadata
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.summary_pb2 import SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from tbscope.errors import WriterError
from tbscope.writing.records import file_name, has_lost_its_thread, speed_up

__all__ = [
    "PROFILE_TAG",
    "ROUTES",
    "Route",
    "check_writer",
    "log_directory",
    "open_run",
    "open_sink",
    "write_graph_event",
]


@dataclass(frozen=True, slots=True)
class Route:
    """One way from a writer towards the object that takes its events.

    Attributes:
        name: What the writer must offer.
        holder: Who offers it, for the reader of an error.
        call: Whether it is called, or taken as it is.
        ends: Whether the object that offers it takes events itself.
    """

    name: str
    holder: str
    call: bool = False
    ends: bool = False

    def __str__(self) -> str:
        return f"{self.name}{'()' if self.call or self.ends else ''} ({self.holder})"


ROUTES = (
    Route("_get_file_writer", "a SummaryWriter of torch, tensorboardX or tbscope", call=True),
    Route("add_event", "a FileWriter or an EventFileWriter", ends=True),
    Route("file_writer", "an object around a FileWriter"),
    Route("event_writer", "an object around an EventFileWriter"),
    Route("experiment", "a logger of Lightning"),
    Route("writer", "a tracker of Accelerate"),
    Route("tb_writer", "the TensorBoard callback of transformers"),
    Route("smw", "tensorboardX's GlobalSummaryWriter"),
)
"""The ways that are tried, in this order; the first that a writer offers is taken."""

PROFILE_TAG = "profile"
"""The entry in the page's list that holds the figures of the graph of the run."""

_DEFAULT_EVENT: type[Message] = Event
# The plugin's names for a tag with a graph (graphs_plugin.py, `info_impl`).
_TAGGED = "graph_run_metadata_graph"
_TAGGED_WITH_STATS = "graph_run_metadata"
_NO_NAME = "a name that no writer has"
_BLANK_TRACKER = ("accelerate.tracking", "GeneralTracker")


def check_writer(writer: object) -> None:
    """Refuse an object that offers none of the routes, before any work is done for it.

    Nothing is called and no property is read, so no file is opened by it.

    Raises:
        WriterError: The object is no writer.
    """
    if not _writes_nothing(writer) and _find_route(writer) is None:
        raise _not_a_writer(writer, writer, [])


def open_sink(writer: object) -> Any:
    """Return the object behind a writer that takes events; a closed writer opens a new file.

    Args:
        writer: Any object that offers one of `ROUTES`.
    Returns:
        An object with `add_event`; None where the writer stands in for one on the ranks
        of a distributed run that write nothing.
    Raises:
        WriterError: No route leads to such an object.
    """
    holder: Any = writer
    trail: list[Route] = []
    while len(trail) <= len(ROUTES):
        if _writes_nothing(holder):
            return None
        route = _find_route(holder)
        if route is None:
            break
        if route.ends:
            return holder
        trail.append(route)
        holder = getattr(holder, route.name)
        if route.call:
            holder = holder()
    raise _not_a_writer(writer, holder, trail)


def log_directory(sink: Any) -> str:
    """Return the log directory that a sink reports; empty where it reports none."""
    directory = sink.get_logdir() if hasattr(sink, "get_logdir") else ""
    return os.fspath(directory) if isinstance(directory, str | os.PathLike) else ""


@contextmanager
def open_run(sink: Any, run_name: str | None) -> Iterator[tuple[str, Callable[[str], Any]]]:
    """Yield the directory of a run, and a function that opens the sink of its events.

    Args:
        sink: An object with `add_event`, as `open_sink` returns it.
        run_name: The run, as a path below the sink's own; None for the sink's own, where the
            function returns the sink itself. Any other has an event file of its own, opened
            by the function and closed in the end. The function takes the name of a file
            that TensorBoard must read before, empty for none; where the sink's own file
            would be read first, there is a new one for this run, too.
    Raises:
        WriterError: The sink tells no directory, and a run below it is asked for.
    """
    directory = log_directory(sink)
    if run_name is not None and not directory:
        raise WriterError(
            f"cannot write a run {run_name!r} below that of {_describe(sink)}",
            why="it does not tell its log directory",
            fix=f"give a writer of that run: tbscope.SummaryWriter('runs/x/{run_name}')",
        )
    place = directory if run_name is None else f"{directory.rstrip('/')}/{run_name}"
    with ExitStack() as opened:

        def open_file(before: str) -> Any:
            if run_name is None and _is_read_after(sink, before):
                return sink
            file_writer = _open_file_after(place, before)
            opened.callback(file_writer.close)
            return file_writer

        yield place, open_file


def _open_file_after(directory: str, before: str) -> EventFileWriter:
    """Open an event file that is read after the file with this name, as far as clocks allow.

    The name begins with the second, so the next one decides where the rest of it does not.
    """
    file_writer = EventFileWriter(directory)
    if not _is_read_after(file_writer, before):
        file_writer.close()
        time.sleep(1 - time.time() % 1)
        file_writer = EventFileWriter(directory)
    return file_writer


def _is_read_after(sink: Any, before: str) -> bool:
    """Tell whether a sink's file is read after that with this name, or is that; True if unknown.

    The files of a run are read in the order of their names, in which `.10` stands before
    `.9`, and a graph that is read takes the place of all of its tag that are not of a lower step.

    Source: tensorboard/data/server/run.rs (`RunLoader.files`), reservoir.rs (`preempt`);
    tensorboard/backend/event_processing/directory_watcher.py
    """
    name = file_name(sink)
    return not name or name >= before


def write_graph_event(
    sink: Any,
    graph_def: bytes,
    *,
    tag: str | None = None,
    step: int,
    stats: bytes | None = None,
) -> None:
    """Write one event with a graph, one more with the figures of a run's graph, and flush.

    Args:
        sink: An object with `add_event`, as `open_sink` returns it.
        graph_def: A serialised GraphDef.
        tag: Its entry in the page's list of tags; None for the graph of the run, "Default".
        step: Of two graphs of one tag, the page shows that of the higher step.
        stats: A serialised RunMetadata with the figures of the graph's nodes; None where
            it has none. Those of the graph of the run are an entry of their own,
            `PROFILE_TAG`.
    Raises:
        WriterError: The sink belongs to the process that this one was forked from.

    Source: tensorboard/plugins/graph/graphs_plugin.py (`info_impl`, `graph_impl`)
    """
    if has_lost_its_thread(sink):
        raise WriterError(
            f"cannot write a graph to the {type(sink).__name__} of another process",
            why="this process was forked, and the thread that writes its events was not",
            fix="make a writer in this process: writer = tbscope.SummaryWriter(log_dir)",
        )
    speed_up(sink)
    if tag is None:
        _add(sink, Event(wall_time=time.time(), step=step, graph_def=graph_def))
        if stats is not None:
            profile = TaggedRunMetadata(tag=PROFILE_TAG, run_metadata=stats)
            _add(sink, Event(wall_time=time.time(), step=step, tagged_run_metadata=profile))
    else:
        event = Event(wall_time=time.time(), step=step)
        plugin = SummaryMetadata.PluginData(
            plugin_name=_TAGGED if stats is None else _TAGGED_WITH_STATS, content=b"1"
        )
        event.summary.value.add(
            tag=tag,
            metadata=SummaryMetadata(plugin_data=plugin),
            tensor=TensorProto(
                dtype=DT_STRING,
                string_val=[_run_metadata(graph_def, stats or b"")],
                tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
            ),
        )
        _add(sink, event)
    if hasattr(sink, "flush"):
        sink.flush()


def _add(sink: Any, event: Event) -> None:
    cls = _event_class(sink)
    sink.add_event(event if cls is Event else cls.FromString(event.SerializeToString()))


def _run_metadata(graph_def: bytes, stats: bytes) -> bytes:
    """Return a RunMetadata with a graph, serialised; one with two graphs would mix them up."""
    message = RunMetadata.FromString(stats)
    message.function_graphs.add(pre_optimization_graph=GraphDef.FromString(graph_def))
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def _event_class(sink: object) -> type[Message]:
    """Return the class of events that a sink takes: the one that its own module uses.

    tensorboardX takes no events but its own, and drops its thread at any other.
    """
    # The first class that took events decides; one derived from it hands them on.
    for cls in reversed(type(sink).__mro__):
        module = sys.modules.get(cls.__module__) if "add_event" in vars(cls) else None
        for holder in (getattr(module, "event_pb2", None), module):
            found = getattr(holder, "Event", None)
            if isinstance(found, type) and issubclass(found, Message):
                return found
    return _DEFAULT_EVENT


def _find_route(holder: object) -> Route | None:
    # A class offers what its objects offer, and yet is no writer itself.
    if isinstance(holder, type):
        return None
    return next((route for route in ROUTES if _offers(holder, route)), None)


def _offers(holder: object, route: Route) -> bool:
    """Tell whether an object has the attribute of a route; a property counts without being read."""
    try:
        found = inspect.getattr_static(holder, route.name)
    except AttributeError:
        # Not in the object or its class, but a proxy may know the name.
        found = getattr(holder, route.name, None)
    return found is not None and (callable(getattr(holder, route.name)) if route.ends else True)


def _writes_nothing(holder: object) -> bool:
    """Tell whether an object only stands in for a writer, as on all ranks but the first.

    Lightning's takes any name at all; Accelerate's is a tracker of no kind.
    """
    cls = type(holder)
    return hasattr(holder, _NO_NAME) or (cls.__module__, cls.__qualname__) == _BLANK_TRACKER


def _not_a_writer(writer: object, end: object, trail: list[Route]) -> WriterError:
    way = "".join(f".{route.name}{'()' if route.call else ''}" for route in trail)
    return WriterError(
        f"cannot write a graph to {_describe(writer)}",
        why=(f"its {way} is {_describe(end)}, which has" if way else "it has")
        + f" none of {', '.join(map(str, ROUTES))}",
        fix="give a SummaryWriter, e.g. tbscope.SummaryWriter('runs/x')",
    )


def _describe(value: object) -> str:
    """Describe an object in a short text; paths and small constants show their value."""
    if value is None or isinstance(value, str | int | float | os.PathLike):
        return repr(value)
    if isinstance(value, type):
        return f"the class {value.__module__}.{value.__qualname__} (not an object of it)"
    cls = type(value)
    return f"an object of class {cls.__module__}.{cls.__qualname__}"
