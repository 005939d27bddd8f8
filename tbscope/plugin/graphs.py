"""The graphs of a log, as TensorBoard's data provider has them, and the pictures that are open.

Source: tensorboard/data/provider.py; tensorboard/plugins/graph/graphs_plugin.py
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.config_pb2 import RunMetadata
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.data import provider
from tensorboard.plugins.graph import graph_util, metadata

from tbscope.collector import not_collecting
from tbscope.drawing.kinds import KINDS
from tbscope.errors import ArgumentError
from tbscope.page.constants import LIBRARY
from tbscope.saving.levels import Levels
from tbscope.saving.picture import Picture
from tbscope.sources.graphdef.loading import graph_def_of_bytes
from tbscope.sources.logs.keras import graph_def_of_keras
from tbscope.words import error_text, shown

__all__ = ["LoggedGraphs", "Place", "picture_of_bytes"]

_MOST_OPEN = 4
_MOST_STEPS = 1000
_RUN_GRAPH = metadata.PLUGIN_NAME


class Place(NamedTuple):
    """Where a graph is in a log.

    Attributes:
        experiment: TensorBoard's experiment.
        run: The run.
        tag: The tag; empty for the graph of the run.
        step: The step, or None for the latest.
    """

    experiment: str
    run: str
    tag: str
    step: int | None


class LoggedGraphs:
    """The graphs that one TensorBoard shows; safe for several threads.

    Args:
        data: TensorBoard's data provider.
    """

    def __init__(self, data: Any) -> None:
        self._data = data
        self._lock = threading.Lock()
        # The pictures asked for last, by the key of their bytes.
        self._open: OrderedDict[str, _Opened] = OrderedDict()

    def runs(self, context: Any, experiment: str) -> list[dict[str, Any]]:
        """Return the graphs of all runs: run, tag, and the steps and times of each."""
        found = []
        for plugin in _READERS:
            listed = self._data.list_blob_sequences(
                context, experiment_id=experiment, plugin_name=plugin
            )
            read = self._data.read_blob_sequences(
                context, experiment_id=experiment, plugin_name=plugin, downsample=_MOST_STEPS
            )
            for run, tags in listed.items():
                for tag in tags:
                    if plugin == _RUN_GRAPH and tag != metadata.RUN_GRAPH_NAME:
                        continue
                    data = read.get(run, {}).get(tag, ())
                    found.append(
                        {
                            "run": run,
                            "tag": "" if plugin == _RUN_GRAPH else tag,
                            "steps": [each.step for each in data],
                            "times": [each.wall_time for each in data],
                        }
                    )
        return sorted(found, key=lambda one: (one["run"], one["tag"]))

    def levels(self, context: Any, place: Place) -> Levels:
        """Return the picture of a graph, read and laid out in boxes once while it is open.

        Raises:
            ArgumentError: The log has no such graph, or its bytes are damaged.
        """
        plugin, key = self._find(context, place)
        with self._lock:
            opened = self._open.pop(key, None) or _Opened()
            self._open[key] = opened
            while len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)
        with opened.lock:
            if opened.levels is None:
                data = self._data.read_blob(context, blob_key=key)
                with not_collecting():
                    opened.levels = Levels(picture_of_bytes(place.tag or place.run, data, plugin))
            return opened.levels

    def _find(self, context: Any, place: Place) -> tuple[str, str]:
        """Return the kind of a graph's bytes, and their key."""
        tag = place.tag or metadata.RUN_GRAPH_NAME
        for plugin in _READERS:
            if (plugin == _RUN_GRAPH) is bool(place.tag):
                continue
            found = self._data.read_blob_sequences(
                context,
                experiment_id=place.experiment,
                plugin_name=plugin,
                run_tag_filter=provider.RunTagFilter(runs=[place.run], tags=[tag]),
                downsample=_MOST_STEPS,
            )
            data = found.get(place.run, {}).get(tag, ())
            steps = [each for each in data if place.step in (None, each.step) and each.values]
            if steps:
                return plugin, steps[-1].values[0].blob_key
        raise ArgumentError(
            f"the log has no graph of the run {shown(place.run)} under the tag {shown(place.tag)}"
            + ("" if place.step is None else f" at step {place.step}"),
            why="it was removed, or TensorBoard has not read it yet",
            fix="choose another graph, or reload",
        )


class _Opened:
    """A picture that is open, or is being read."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.levels: Levels | None = None


def _read(plugin: str, data: bytes) -> GraphDef:
    """Return the GraphDef in some bytes of a log.

    Raises:
        ArgumentError: They are damaged.
    """
    try:
        return _READERS[plugin](data)
    except (DecodeError, ValueError) as error:
        raise ArgumentError(
            "the graph cannot be read", why=error_text(error), fix="write it, or copy it, anew"
        ) from error


def _of_run(data: bytes) -> GraphDef:
    return graph_def_of_bytes(data, "the log")


def _of_metadata(data: bytes) -> GraphDef:
    graphs = [one.pre_optimization_graph for one in RunMetadata.FromString(data).function_graphs]
    merged: GraphDef = graph_util.merge_graph_defs(graphs)
    return merged


def _of_keras(data: bytes) -> GraphDef:
    return graph_def_of_keras(data)[0]


_READERS: dict[str, Callable[[bytes], GraphDef]] = {
    metadata.PLUGIN_NAME: _of_run,
    metadata.PLUGIN_NAME_RUN_METADATA_WITH_GRAPH: _of_metadata,
    metadata.PLUGIN_NAME_RUN_METADATA: _of_metadata,
    metadata.PLUGIN_NAME_KERAS_MODEL: _of_keras,
}
"""How the bytes of each kind of graph are read, by TensorBoard's name for the kind."""


def picture_of_bytes(title: str, data: bytes, plugin: str = metadata.PLUGIN_NAME) -> Picture:
    """Return the picture of a graph that a log has.

    Args:
        title: The name of the picture if no card has the class of the model.
        data: The bytes.
        plugin: TensorBoard's name for their kind.
    Raises:
        ArgumentError: They are damaged.
    """
    message = _read(plugin, data)
    # A drawing may have boxes that only teach the Graphs page its colours.
    nodes = [node for node in message.node if not node.name.startswith(LIBRARY)]
    picture = Picture(title, nodes)
    labels = {picture.mark(item, "label") for item in picture.items} - {""}
    # Where the drawing was coloured by default, its labels are the kinds of operations.
    picture.labels_are_kinds = labels <= KINDS
    picture.title = picture.class_of(picture.root) or title
    return picture
