"""Tags: the entries of the page's list of graphs, and what is written for each."""

import os
from typing import NamedTuple

from tbscope.options import check_placing
from tbscope.pipeline import Drawn
from tbscope.writing.failures import is_remote
from tbscope.writing.records import file_name
from tbscope.writing.runs import open_run
from tbscope.writing.sinks import PROFILE_TAG, open_sink, write_graph_event
from tbscope.writing.steps import (
    Kind,
    Written,
    forget_removed,
    holds,
    latest_file,
    next_step,
    remember_step,
)

__all__ = ["Entry", "write_entry"]


class Entry(NamedTuple):
    """Where in the page's lists a graph stands, and when.

    Attributes:
        tag: Its tag; None for the graph of the run.
        step: Which of several graphs of one tag is the later one; None for the next.
        run_name: The run, as a path below the writer's own; None for that.
    """

    tag: str | None = None
    step: int | None = None
    run_name: str | None = None

    def check(self) -> None:
        """Raise ArgumentError unless this can be written, before anything is run for it."""
        check_placing(*self)


def write_entry(writer: object, drawn: Drawn, entry: Entry, record: bytes = b"") -> None:
    """Write a graph, with its figures where it has some, and flush it to disk.

    Args:
        writer: Anything like a SummaryWriter.
        drawn: The graph.
        entry: Where it stands.
        record: All that the graph holds; empty for none.
    Raises:
        WriterError: No event can be written.
        ArgumentError: The tag is taken, or the step is over.
    """
    stats: bytes | None = None
    if drawn.stats is not None:
        stats = drawn.stats.SerializeToString(deterministic=True)
    sink = open_sink(writer)
    if sink is None:
        return
    with open_run(sink, entry.run_name) as (place, opened):
        directory = _normalised(place)
        if directory and not is_remote(directory):
            forget_removed(directory)
        if stats is None and entry.tag is None and holds(directory, PROFILE_TAG, Kind.FIGURES):
            # Figures of an earlier graph would be taken for those of this one.
            stats = b""
        kinds = _kinds(entry.tag, figures=stats is not None)
        step = entry.step
        for tag, kind in kinds.items():
            step = next_step(directory, tag, step, kind)
        assert step is not None
        taker = opened(latest_file(directory, kinds))
        write_graph_event(taker, drawn.data, tag=entry.tag, step=step, stats=stats, record=record)
        for tag, kind in kinds.items():
            remember_step(directory, tag, Written(step, kind, file_name(taker)))


def _kinds(tag: str | None, *, figures: bool) -> dict[str | None, Kind]:
    """Return for each tag the kind of data that is written under it."""
    if tag is not None:
        return {tag: Kind.GRAPH_WITH_FIGURES if figures else Kind.GRAPH}
    return {None: Kind.GRAPH, **({PROFILE_TAG: Kind.FIGURES} if figures else {})}


def _normalised(directory: str) -> str:
    """Return one text for one directory; a remote one has no path on this machine."""
    if not directory or is_remote(directory):
        return directory
    return os.path.abspath(directory)
