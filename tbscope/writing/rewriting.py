"""Copies event files with other graphs in place of some; everything else in them stays."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tensorboard.compat.proto.config_pb2 import RunMetadata
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.meta_graph_pb2 import MetaGraphDef
from tensorboard.summary.writer.record_writer import RecordWriter

from tbscope.errors import ArgumentError
from tbscope.sources.files import open_file
from tbscope.sources.logs.records import RecordError, records
from tbscope.words import shown

__all__ = ["Replacement", "copy_file", "copy_log"]

_PLUGINS = ("graph_run_metadata_graph", "graph_run_metadata")


class Replacement(NamedTuple):
    """What stands in the place of a graph.

    Attributes:
        data: Its GraphDef, serialised.
        renamed: The new names of its nodes, by the old ones.
    """

    data: bytes
    renamed: Mapping[str, str]


def copy_log(
    files: Iterable[tuple[str, str]], to: str, replacements: Mapping[bytes, Replacement]
) -> None:
    """Copy the event files of a log into a new directory, all or none.

    Args:
        files: For each file its run, and its path.
        to: The directory, which is not there yet.
        replacements: New graphs by the GraphDefs, serialised, in whose place they stand.
    Raises:
        ArgumentError: The directory is there already.
    """

    def fill(place: str) -> None:
        for run, path in files:
            folder = os.path.join(place, run)
            os.makedirs(folder, exist_ok=True)
            copy = os.path.join(folder, os.path.basename(path))
            _copy_events(path, copy, replacements)

    _make(to, fill, directory=True)


def copy_file(path: str, to: str, replacements: Mapping[bytes, Replacement]) -> None:
    """Copy one event file, as `copy_log` does."""
    _make(to, lambda place: _copy_events(path, place, replacements), directory=False)


def _make(to: str, fill: Callable[[str], None], *, directory: bool) -> None:
    """Have something appear at a path whole, or not at all."""
    if os.path.lexists(to):
        raise ArgumentError(
            f"nothing is written to {shown(to)}",
            why="it is there already",
            fix="remove it, or give another path",
        )
    above = Path(to).resolve().parent
    with tempfile.TemporaryDirectory(dir=above, prefix=f".{Path(to).name}.") as place:
        part = os.path.join(place, "part")
        if directory:
            os.mkdir(part)
        fill(part)
        shutil.move(part, to)


def _copy_events(path: str, to: str, replacements: Mapping[bytes, Replacement]) -> None:
    """Copy the events of a file, up to where it is damaged."""
    renamed: dict[str, str] = {}
    with open_file(path) as (source, size), open(to, "wb") as copy:
        writer = RecordWriter(copy)
        try:
            for _, data in records(source, size):
                writer.write(_replaced(data, replacements, renamed))
        except RecordError:
            # Whoever asks for a copy was told of it when the log was read.
            return


def _replaced(
    data: bytes, replacements: Mapping[bytes, Replacement], renamed: dict[str, str]
) -> bytes:
    """Return an event with its graphs replaced; the same bytes where nothing is."""
    event = Event.FromString(data)
    before = event.SerializeToString()
    if event.HasField("graph_def"):
        event.graph_def = _new_graph(event.graph_def, replacements, renamed)
    elif event.HasField("meta_graph_def"):
        meta = MetaGraphDef.FromString(event.meta_graph_def)
        _replace(meta.graph_def, replacements, renamed)
        event.meta_graph_def = meta.SerializeToString()
    elif event.HasField("tagged_run_metadata"):
        tagged = event.tagged_run_metadata
        tagged.run_metadata = _new_metadata(tagged.run_metadata, replacements, renamed)
    else:
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name in _PLUGINS and value.tensor.string_val:
                text = value.tensor.string_val[0]
                value.tensor.string_val[0] = _new_metadata(text, replacements, renamed)
    after: bytes = event.SerializeToString()
    return data if after == before else after


def _new_metadata(
    data: bytes, replacements: Mapping[bytes, Replacement], renamed: dict[str, str]
) -> bytes:
    metadata = RunMetadata.FromString(data)
    before = metadata.SerializeToString()
    names = renamed
    for graphs in metadata.function_graphs:
        # Those of a graph of its own, and not of the run's.
        names = {}
        _replace(graphs.pre_optimization_graph, replacements, names)
    for device in metadata.step_stats.dev_stats:
        for stats in device.node_stats:
            stats.node_name = names.get(stats.node_name, stats.node_name)
    after: bytes = metadata.SerializeToString()
    # Bytes may have another order in the file: what nothing changed keeps it.
    return data if after == before else after


def _replace(
    message: Any, replacements: Mapping[bytes, Replacement], renamed: dict[str, str]
) -> None:
    data = message.SerializeToString()
    new = _new_graph(data, replacements, renamed)
    if new is not data:
        message.ParseFromString(new)


def _new_graph(
    data: bytes, replacements: Mapping[bytes, Replacement], renamed: dict[str, str]
) -> bytes:
    found = replacements.get(data)
    if found is None:
        return data
    renamed.update(found.renamed)
    return found.data
