"""Where a graph is in a log, and its record, which TensorBoard's data provider passes over.

A record is a field of the event that has the drawing (see `tbscope.formats.record`). So it is read
from the event files of the run: those in the folder of the run alone, and up to that event.
"""

import os
from typing import NamedTuple

from tbscope.errors import ArgumentError
from tbscope.formats.record import graph_of_record
from tbscope.ir.graph import Graph
from tbscope.sources.logs.event_files import files_of_run, found_in_file
from tbscope.sources.logs.events import Found, plain_tag
from tbscope.words import error_text, shown

__all__ = ["Place", "recorded_graph"]


class Place(NamedTuple):
    """Where a graph is in a log.

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


def recorded_graph(logdir: str, place: Place, wall_time: float) -> Graph:
    """Return the graph whose record the log has beside a drawing.

    Args:
        logdir: The log directory of TensorBoard; empty if it was started without one.
        place: Where the drawing is, with its step.
        wall_time: When it was written, in seconds since 1970.
    Raises:
        ArgumentError: There is no record, or it cannot be reached, or it is damaged.
    """
    event = _event(_files(logdir, place.run), place, wall_time)
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
    except Exception as error:  # Each store of files raises errors of its own.
        raise _missing(error_text(error), "see that the log directory is there") from error


def _event(files: list[str], place: Place, wall_time: float) -> Found:
    """Return what the event that has a drawing holds.

    Raises:
        ArgumentError: No file has it.
    """
    tag = plain_tag(place.tag) if place.tag else None
    why = "no event file of the run has this graph"
    for path in files:
        try:
            for found in found_in_file(path):
                same = (found.tag, found.step, found.wall_time) == (tag, place.step, wall_time)
                if same and found.kind != "figures":
                    return found
        except ArgumentError as error:
            why = f"{error.what}: {error.why}"
        except Exception as error:  # noqa: BLE001  As above; and the next file may have it.
            why = error_text(error)
    raise _missing(why, "reload, or write the log anew")


def _missing(why: str, fix: str) -> ArgumentError:
    return ArgumentError("the record of this graph cannot be read", why=why, fix=fix)
