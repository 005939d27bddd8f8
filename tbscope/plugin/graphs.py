"""The graphs of a log, from TensorBoard's data provider, and a cache of open pictures.

The provider ignores the record of a graph: a field of the event that contains the drawing (see
`tbscope.formats.compressed`). So records are read from the event files in the folder of the run,
up to that event.

Source: tensorboard/data/provider.py; tensorboard/plugins/graph/graphs_plugin.py
"""

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Set
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.config_pb2 import RunMetadata
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef
from tensorboard.data import provider
from tensorboard.plugins.graph import graph_util, metadata

from tbscope.analysis.units import worth_of_number
from tbscope.comparison.build_structure import outlined
from tbscope.comparison.difference import Difference
from tbscope.drawing.categories import KINDS
from tbscope.errors import ArgumentError
from tbscope.formats.compressed import graph_of_record
from tbscope.ir.graph import Graph
from tbscope.messages import error_text, shown
from tbscope.page.constants import LIBRARY
from tbscope.page.glyphs import Box
from tbscope.saving.box_tree import FIGURES, Glyph, Picture, picture_of
from tbscope.saving.levels import Levels, figure_by_names
from tbscope.sources.graphdef.loading import graph_def_of_bytes
from tbscope.sources.logs.event_files import contents_of_file, files_of_run
from tbscope.sources.logs.events import LoggedContent, plain_tag
from tbscope.sources.logs.keras import graph_def_of_keras
from tbscope.utils.gc_pause import not_collecting

_MOST_OPEN = 4
_MOST_STEPS = 1000
# Each level of boxes takes a few nested calls, here and in the browser.
_MOST_DEPTH = 100
_RUN_GRAPH = metadata.PLUGIN_NAME
# TensorBoard's name for the kind of data with numbers for the nodes of a graph.
_OVERLAYS = metadata.PLUGIN_NAME_RUN_METADATA
_UNIT = ".unit"
_MEASURED = ("duration_us", "allocated_bytes", "peak_bytes")

_Part = TypeVar("_Part")


# -- records -----------------------------------------------------------------------------------


class GraphLocation(NamedTuple):
    """The position of a graph in a log.

    Attributes:
        experiment: TensorBoard's experiment.
        run: The run.
        tag: The tag; empty for the graph of the run.
        step: The step, or None for the latest.
        time: The wall time of the graph, or None for any.
    """

    experiment: str
    run: str
    tag: str
    step: int | None
    time: float | None = None


def recorded_graph(logdir: str, location: GraphLocation, wall_time: float) -> Graph:
    """Return the graph from the record beside a drawing in a log.

    Args:
        logdir: The log directory of TensorBoard; empty if it was started without one.
        location: The position of the drawing, with its step.
        wall_time: The time at which it was written, in seconds since 1970.
    Raises:
        ArgumentError: The record is missing, unreachable or damaged.
    """
    event = _event(_files(logdir, location.run), location, wall_time)
    if not event.record:
        raise _missing(
            "the log has its drawing alone: another library wrote it, or the record is too large",
            "tbscope.SummaryWriter writes the record of a graph beside its drawing",
        )
    return graph_of_record(event.record)


def _files(logdir: str, run: str) -> list[str]:
    """Return the event files of a run.

    Raises:
        ArgumentError: They cannot be found.
    """
    if not logdir:
        raise _missing(
            "TensorBoard was started without --logdir, and hands on drawings alone",
            "tensorboard --logdir runs",
        )
    if ".." in run.replace(os.sep, "/").split("/") or os.path.isabs(run):
        # No folder below the log directory has such a name.
        raise _missing(f"{shown(run)} leads out of the log directory", "choose another run")
    top = logdir if "://" in logdir else os.path.expanduser(logdir)
    try:
        return files_of_run(top, run)
    except Exception as error:  # Each file system raises its own errors.
        raise _missing(error_text(error), "see that the log directory is there") from error


def _event(files: list[str], location: GraphLocation, wall_time: float) -> LoggedContent:
    """Return the contents of the event with a drawing.

    Raises:
        ArgumentError: No file contains the event.
    """
    tag = plain_tag(location.tag) if location.tag else None
    why = "no event file of the run has this graph"
    for path in files:
        try:
            for content in contents_of_file(path):
                same = (content.tag, content.step, content.wall_time) == (
                    tag,
                    location.step,
                    wall_time,
                )
                if same and content.kind != "figures":
                    return content
        except ArgumentError as error:
            why = f"{error.what}: {error.why}"
        except Exception as error:  # noqa: BLE001  As above; the next file may contain it.
            why = error_text(error)
    raise _missing(why, "reload, or write the log again")


def _missing(why: str, fix: str) -> ArgumentError:
    return ArgumentError("the record of this graph cannot be read", why=why, fix=fix)


# -- graphs ------------------------------------------------------------------------------------


class LoggedGraphs:
    """The graphs that one TensorBoard shows; safe for several threads.

    Args:
        data: TensorBoard's data provider.
        logdir: TensorBoard's log directory; empty if it was started without one.
    """

    def __init__(self, data: Any, logdir: str = "") -> None:
        self._data = data
        self._logdir = logdir
        self._lock = threading.Lock()
        # The latest pictures, by the keys and wall times of their bytes.
        self._open: OrderedDict[tuple[tuple[str, float], ...], _OpenGraph] = OrderedDict()

    def runs(self, context: Any, experiment: str) -> list[dict[str, object]]:
        """Return the graphs of all runs: run, tag, and the steps and times of each."""
        rows = [
            {
                "run": run,
                "tag": "" if plugin == _RUN_GRAPH else tag,
                "steps": [datum.step for datum in data],
                "times": [datum.wall_time for datum in data],
            }
            for plugin in _READERS
            for run, tags in self._data.read_blob_sequences(
                context, experiment_id=experiment, plugin_name=plugin, downsample=_MOST_STEPS
            ).items()
            for tag, data in tags.items()
            if plugin != _RUN_GRAPH or tag == metadata.RUN_GRAPH_NAME
        ]
        return sorted(rows, key=lambda row: (row["run"], row["tag"]))

    def levels(
        self, context: Any, location: GraphLocation, before: GraphLocation | None = None
    ) -> Levels:
        """Return the answers for the picture of a graph, made once while it is open.

        Args:
            context: TensorBoard's context of the request.
            location: The position of the graph.
            before: The position of the graph to compare it with; None for a picture of one graph.

        Raises:
            ArgumentError: The log has no such graph, or its bytes are damaged; or, of two graphs,
                one has no readable record.
        """
        plugin, datum = self._find(context, location)
        if before is not None:
            opened = self._opened(self._find(context, before)[1], datum)
            both = before, location
            return opened.get(
                "levels",
                lambda: Levels(
                    _picture_of_difference(*(self.record_of(context, drawing) for drawing in both))
                ),
            )

        def read() -> Levels:
            data = self._data.read_blob(context, blob_key=_key(datum))
            return Levels(picture_of_bytes(location.tag or location.run, data, plugin))

        return self._opened(datum).get("levels", read)

    def record_of(self, context: object, location: GraphLocation) -> Graph:
        """Return the graph from the record beside a drawing, read once while it is open.

        Raises:
            ArgumentError: The log has no such graph, or no readable record of it.
        """
        _, datum = self._find(context, location)
        at = location._replace(step=datum.step)
        return self._opened(datum).get(
            "record", lambda: recorded_graph(self._logdir, at, datum.wall_time)
        )

    def record(self, context: object, location: GraphLocation) -> Graph | None:
        """Return the graph of `record_of`, or None if it has no readable record."""
        try:
            return self.record_of(context, location)
        except ArgumentError:
            return None

    def _opened(self, *data: Any) -> "_OpenGraph":
        """Return the cache of a graph or a pair; the least recently used cache is dropped."""
        key = tuple((_key(datum), datum.wall_time) for datum in data)
        with self._lock:
            opened = self._open.pop(key, None) or _OpenGraph()
            self._open[key] = opened
            while len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)
            return opened

    def overlays(self, context: object, experiment: str) -> list[dict[str, object]]:
        """Return the overlays for the colours of graphs: run, tag, and latest step of each."""
        listed = self._data.list_blob_sequences(
            context, experiment_id=experiment, plugin_name=_OVERLAYS
        )
        rows = [
            {"run": run, "tag": tag, "step": series.max_step}
            for run, tags in listed.items()
            for tag, series in tags.items()
        ]
        return sorted(rows, key=lambda row: (row["run"], row["tag"]))

    def overlay(
        self, context: object, location: GraphLocation, tag: str
    ) -> list[dict[str, object]]:
        """Return the figures of an overlay, at its latest step, for a graph of its run.

        Raises:
            ArgumentError: The log has no such graph or overlay, its bytes are damaged, or it has
                no number for any node of the graph.
        """
        levels = self.levels(context, location)
        at = location._replace(tag=tag, step=None, time=None)
        key = _key(self._find(context, at, (_OVERLAYS,))[1])

        def read() -> list[dict[str, Any]]:
            data, name = self._data.read_blob(context, blob_key=key), tag.rstrip()
            try:
                numbers = [*_figures(name, data)]
            except (DecodeError, ValueError) as error:
                raise _damaged(f"the overlay {shown(name)}", error) from error
            named = [figure_by_names(levels.picture, *figure) for figure in numbers]
            figures = [figure for figure in named if figure is not None]
            if figures:
                return levels.figures(figures)
            raise ArgumentError(
                f"the overlay {shown(name)} has no number for this graph",
                why="nothing in the graph has a name that a number is for"
                if numbers
                else "it has no numbers at all",
                fix="choose the graph that it was drawn on",
            )

        return self._opened(self._find(context, location)[1]).get(key, read)

    def _find(
        self, context: object, location: GraphLocation, plugins: Iterable[str] | None = None
    ) -> tuple[str, Any]:
        """Return the plugin name of a graph's or an overlay's bytes, and TensorBoard's datum."""
        tag = location.tag or metadata.RUN_GRAPH_NAME
        for plugin in _READERS if plugins is None else plugins:
            if (plugin == _RUN_GRAPH) is bool(location.tag):
                continue
            sequences = self._data.read_blob_sequences(
                context,
                experiment_id=location.experiment,
                plugin_name=plugin,
                run_tag_filter=provider.RunTagFilter(runs=[location.run], tags=[tag]),
                downsample=_MOST_STEPS,
            )
            steps = [
                each
                for each in sequences.get(location.run, {}).get(tag, ())
                if each.values
                and location.step in (None, each.step)
                and location.time in (None, each.wall_time)
            ]
            if steps:
                return plugin, steps[-1]
        raise ArgumentError(
            f"the log has no graph of the run {shown(location.run)} "
            f"under the tag {shown(location.tag)}"
            + ("" if location.step is None else f" at step {location.step}"),
            why="it was removed, or TensorBoard has not read it yet",
            fix="choose another graph, or reload",
        )


class _OpenGraph:
    """The parts of an open graph that were read: picture, record, drawing and overlays."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: dict[str, Any] = {}

    def get(self, name: str, read: Callable[[], _Part]) -> _Part:
        """Return a part, read by the first of several threads; after an error it stays unread."""
        with self._lock:
            if name not in self._parts:
                with not_collecting():
                    self._parts[name] = read()
            part: _Part = self._parts[name]
            return part


def _key(datum: Any) -> str:
    """Return TensorBoard's key of the bytes of a graph."""
    key: str = datum.values[0].blob_key
    return key


def _damaged(what: str, error: Exception) -> ArgumentError:
    return ArgumentError(
        f"{what} cannot be read", why=error_text(error), fix="write or copy it again"
    )


def _of_metadata(data: bytes) -> GraphDef:
    graphs = [
        function_graph.pre_optimization_graph
        for function_graph in RunMetadata.FromString(data).function_graphs
    ]
    merged: GraphDef = graph_util.merge_graph_defs(graphs)
    return merged


_READERS: dict[str, Callable[[bytes], GraphDef]] = {
    metadata.PLUGIN_NAME: lambda data: graph_def_of_bytes(data, "the log"),
    metadata.PLUGIN_NAME_RUN_METADATA_WITH_GRAPH: _of_metadata,
    metadata.PLUGIN_NAME_RUN_METADATA: _of_metadata,
    metadata.PLUGIN_NAME_KERAS_MODEL: lambda data: graph_def_of_keras(data)[0],
}
"""The readers of the bytes of each kind of graph, by TensorBoard's name for the kind."""


# A box of the numbers from one to another, before a child with such a number: `layers/0-9/7`.
_ROW = re.compile(r"([^/]*?)([0-9]+)-([0-9]+)[^/]*/\1([0-9]+).*")


def _with_whole_rows(nodes: list[NodeDef]) -> list[NodeDef]:
    """Return nodes without the boxes into which long rows are split for the Graphs page.

    The viewer draws a run of equal blocks as one box.
    """
    rows: set[str] = set()
    for node in nodes:
        parts = node.name.split("/")
        for at, pair in enumerate(pairwise(parts), 1):
            match = _ROW.fullmatch("/".join(pair))
            if match and int(match[2]) <= int(match[4]) <= int(match[3]):
                rows.add("/".join(parts[:at]))
    if rows:
        for node in nodes:
            node.name = _without(rows, node.name)
            node.input[:] = [_without(rows, text) for text in node.input]
    return nodes


def _without(rows: Set[str], name: str) -> str:
    """Return a name without the boxes of some rows."""
    paths = accumulate(name.removeprefix("^").split("/"), "{}/{}".format)
    kept = [path.rpartition("/")[2] for path in paths if path not in rows]
    return "^" * name.startswith("^") + "/".join(kept)


def picture_of_bytes(title: str, data: bytes, plugin: str = metadata.PLUGIN_NAME) -> Picture:
    """Return the picture of a graph of a log.

    Args:
        title: The title of the picture if no info card contains the class of the model.
        data: The bytes.
        plugin: TensorBoard's name for their kind.
    Raises:
        ArgumentError: The bytes are damaged, or boxes are nested too deep.
    """
    try:
        message = _READERS[plugin](data)
    except (DecodeError, ValueError) as error:
        raise _damaged("the graph", error) from error
    # Boxes of the function library only seed the colours of the Graphs page: leave them out.
    nodes = [node for node in message.node if not node.name.startswith(LIBRARY)]
    picture = Picture(title, _with_whole_rows(nodes))
    depth = max((box.depth for box in picture.boxes), default=0)
    if depth > _MOST_DEPTH:
        raise ArgumentError(
            f"boxes of the graph are nested {depth:,} deep",
            why=f"no more than {_MOST_DEPTH} can be drawn in each other",
            fix="write it with shorter names",
        )
    labels = {picture.mark(item, "label") for item in picture.items} - {""}
    # If the drawing was coloured by default, its labels are the kinds of operations.
    picture.labels_are_kinds = labels <= KINDS
    picture.title = picture.class_of(picture.root) or title
    return picture


def _figures(name: str, data: bytes) -> Iterator[tuple[str, str, dict[str, float]]]:
    """Yield the figures of an overlay: the key of each, its title, and its numbers by name.

    The info cards of an overlay's drawing contain the exact numbers, each beside its unit; its
    RunMetadata has them in the page's units.

    Raises:
        DecodeError: The bytes are damaged.
    """
    message = _of_metadata(data)
    names = {key.strip() for node in message.node for key in node.attr}
    keys = sorted(key.removesuffix(_UNIT) for key in names if key.endswith(_UNIT))
    keys = [key for key in keys or _MEASURED if key in names]
    picture = Picture("", _with_whole_rows([*message.node]))
    # The reader of a circle includes its numbers.
    glyphs = [glyph for glyph in picture.glyphs if isinstance(glyph, Box) or not glyph.embedded]
    for key in keys:
        pairs = ((glyph.name, worth_of_number(picture.fact(glyph, key))) for glyph in glyphs)
        numbers = {label: number for label, number in pairs if number is not None}
        title = f"{name}: {FIGURES.get(key, key)}" if len(keys) > 1 else name
        if numbers:
            yield key, title, numbers


def _picture_of_difference(before: Graph, after: Graph) -> Picture:
    """Return the picture of the union of two graphs, coloured by added, removed and changed.

    Raises:
        GraphError: One of the graphs breaks an invariant.
    """
    difference = Difference(outlined(before), outlined(after))
    picture = picture_of(difference.graph, color_by="difference")
    named = {glyph.name: glyph for glyph in picture.glyphs}
    tops = [f"{glyph.name}/" for glyph in picture.children(picture.root) if isinstance(glyph, Box)]

    def find(name: str) -> Glyph | None:
        """Return the node or box of a dotted name, or the innermost enclosing box that is drawn."""
        parts = name.split(".") if name else []
        while parts:
            for top in ("", *tops):
                if (way := top + "/".join(parts)) in named:
                    return named[way]
            parts.pop()
        return None

    picture.differences = [(line, find(name)) for line, name in difference.lines]
    return picture
