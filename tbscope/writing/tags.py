"""Tags: the entries of the page's list of graphs, their steps, and the files of their events.

TensorBoard shows the graph with a tag's highest step, and its two readers disagree on two graphs
of one step. So steps in one log directory only increase, as far as this process has written them.
TensorBoard takes the kind of a tag from its first event
(tensorboard/plugins/graph/graphs_plugin.py, `info_impl`): later events must be of that kind.
"""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from enum import Enum
from typing import NamedTuple

from tensorboard.summary.writer.event_file_writer import EventFileWriter

from tbscope.errors import ArgumentError, WriterError
from tbscope.messages import shown, without_addresses
from tbscope.options import LAST_STEP, PLACING
from tbscope.pipeline import Drawn
from tbscope.utils.option import check_values
from tbscope.writing.event_sinks import (
    PROFILE_TAG,
    log_directory,
    open_sink,
    write_graph_event,
)
from tbscope.writing.records import file_name, foresee_failure, is_remote, writing_failed


class GraphEntry(NamedTuple):
    """The entry of a graph in the page's lists: tag, step and run.

    Attributes:
        tag: Its tag; None for the graph of the run.
        step: Its step among the graphs of one tag; None for the next one.
        run_name: The run, as a path below the writer's own run; None for the writer's own.
    """

    tag: str | None = None
    step: int | None = None
    run_name: str | None = None

    def check(self) -> None:
        """Raise ArgumentError unless this entry can be written, before the model runs."""
        check_values(PLACING, self._asdict())


def write_entry(writer: object, drawn: Drawn, entry: GraphEntry, record: bytes) -> None:
    """Write a graph, with its figures where it has some, and flush it to disk.

    Args:
        writer: Anything like a SummaryWriter.
        drawn: The graph.
        entry: Its tag, step and run.
        record: The whole graph, compressed; empty for none.
    Raises:
        WriterError: No event can be written.
        ArgumentError: The tag contains other data, or a step as high was written already.
    """
    stats: bytes | None = None
    if drawn.stats is not None:
        stats = drawn.stats.SerializeToString(deterministic=True)
    sink = open_sink(writer)
    if sink is None:
        return
    folder = _directory_of_run(sink, entry.run_name)
    # The key of the latest steps: one text per directory. A remote one has no local path.
    directory = folder
    if folder and not is_remote(folder):
        directory = os.path.abspath(folder)
        forget_removed(directory)
    if stats is None and entry.tag is None and holds(directory, PROFILE_TAG, DataKind.FIGURES):
        # Empty figures replace those of an earlier graph, which the page would use for this one.
        stats = b""
    kinds = {entry.tag: DataKind.GRAPH}
    if stats is not None and entry.tag is None:
        kinds[PROFILE_TAG] = DataKind.FIGURES
    elif stats is not None:
        kinds[entry.tag] = DataKind.GRAPH_WITH_FIGURES
    step = entry.step
    for tag, kind in kinds.items():
        step = next_step(directory, tag, step, kind)
    assert step is not None
    before = _latest_file(directory, kinds)
    with _opened(sink, folder, before, own=entry.run_name is None) as taker:
        write_graph_event(taker, drawn.data, tag=entry.tag, step=step, stats=stats, record=record)
        for tag, kind in kinds.items():
            remember_step(directory, tag, Written(step, kind, file_name(taker)))


# -- runs -----------------------------------------------------------------------------------------


def _directory_of_run(sink: object, run_name: str | None) -> str:
    """Return the directory of a run: the sink's own, or one below it; empty if unknown.

    Raises:
        WriterError: The sink reports no directory, and `run_name` is not None.
    """
    directory = log_directory(sink)
    if run_name is None:
        return directory
    if directory:
        return f"{directory.rstrip('/')}/{run_name}"
    raise WriterError(
        f"cannot write a run {shown(run_name)} below that of {without_addresses(shown(sink))}",
        why="it has no attribute with its log directory",
        fix=f"give a writer of that run: tbscope.SummaryWriter('runs/x/{run_name}')",
    )


@contextmanager
def _opened(sink: object, directory: str, before: str, *, own: bool) -> Iterator[object]:
    """Yield a sink for the events of a run; TensorBoard reads its file after `before`, if it can.

    Args:
        sink: An object with `add_event`, as `open_sink` returns it.
        directory: The directory of the run.
        before: The name of a file that TensorBoard must read earlier; empty for none.
        own: Whether the run is the sink's own. Any other run gets an event file of its own, which
            is closed at the end; so does the sink's own run if TensorBoard would read the sink's
            file earlier than `before`.
    Raises:
        WriterError: No file can be opened there.
    """
    if own and _is_read_after(sink, before):
        yield sink
        return
    foresee_failure(directory)
    try:
        file_writer = EventFileWriter(directory)
        if not _is_read_after(file_writer, before):
            # File names begin with the time in seconds: in the next second the name sorts later.
            file_writer.close()
            time.sleep(1 - time.time() % 1)
            file_writer = EventFileWriter(directory)
    except Exception as error:
        raise writing_failed(directory, error) from error
    with closing(file_writer):
        yield file_writer


def _is_read_after(sink: object, before: str) -> bool:
    """Whether TensorBoard reads a sink's file not before that of a name; True if unknown.

    The files of a run are read in the order of their names, in which `.10` comes before `.9`. A
    graph replaces the graphs of its tag that were read earlier, unless their steps are lower.

    Source: tensorboard/data/server/run.rs (`RunLoader.files`), reservoir.rs (`preempt`);
    tensorboard/backend/event_processing/directory_watcher.py
    """
    name = file_name(sink)
    return not name or name >= before


# -- steps ----------------------------------------------------------------------------------------


class DataKind(Enum):
    """The kind of data under a tag."""

    GRAPH = "a graph"
    GRAPH_WITH_FIGURES = "a graph with figures"
    FIGURES = "figures of the graph of the run"


class Written(NamedTuple):
    """The latest graph that was written for a tag.

    Attributes:
        step: Its step.
        kind: The kind of data.
        file: The name of the event file; empty if unknown.
    """

    step: int
    kind: DataKind = DataKind.GRAPH
    file: str = ""


# By log directory and tag.
_latest: dict[tuple[str, str | None], Written] = {}


def next_step(
    directory: str, tag: str | None, step: int | None, kind: DataKind = DataKind.GRAPH
) -> int:
    """Return the step of a graph that is about to be written.

    Args:
        directory: The log directory; empty if unknown.
        tag: The tag.
        step: The requested step; None for one after the latest.
        kind: The kind of data to be written.
    Raises:
        ArgumentError: A graph of that tag was written at this step or a later one, the tag
            contains data of another kind, or no higher step exists.
    """
    latest, known, _ = _latest.get((directory, tag), Written(-1, kind))
    if known is not kind and tag is not None:
        raise ArgumentError(
            f"the tag {shown(tag)} cannot have {kind.value}",
            why=f"it has {known.value} already, and TensorBoard shows one kind of data "
            "under each tag",
            fix="another tag",
        )
    if step is None:
        step = latest + 1
    elif step <= latest:
        name = "the run" if tag is None else f"tag {shown(tag)}"
        raise ArgumentError(
            f"a graph of {name} at step {step} comes too late",
            why=f"one was written at step {latest} already, and TensorBoard shows the highest",
            fix=f"step={latest + 1}, or another tag",
        )
    if step > LAST_STEP:
        raise ArgumentError(
            f"no step comes after {latest}, the latest graph's",
            why="a step is a number of 64 bits, and TensorBoard shows the highest",
            fix="another tag, or steps that begin at 0",
        )
    return step


def forget_removed(directory: str) -> None:
    """Drop the entries of a log directory whose files were removed, as notebooks do."""
    here = {tag: written.file for (folder, tag), written in _latest.items() if folder == directory}
    # One file has many tags: it is looked up on disk once.
    removed = {
        file
        for file in set(here.values())
        if file and not os.path.exists(os.path.join(directory, file))
    }
    for tag, file in here.items():
        if file in removed:
            del _latest[directory, tag]


def remember_step(directory: str, tag: str | None, written: Written) -> None:
    """Record a graph as the latest of its tag; nothing is recorded for an unknown directory."""
    if directory:
        _latest[directory, tag] = written


def holds(directory: str, tag: str, kind: DataKind) -> bool:
    """Whether the latest data that this process wrote under a tag is of a kind."""
    return (directory, tag) in _latest and _latest[directory, tag].kind is kind


def _latest_file(directory: str, tags: Iterable[str | None]) -> str:
    """Return, of the files with the latest graphs of these tags, the one that is read last.

    A new graph that replaces them must not be in a file that is read earlier. The name is empty
    if there is no such file, or it is unknown.
    """
    entries = (_latest.get((directory, tag)) for tag in tags)
    return max((written.file for written in entries if written), default="")
