"""Steps: which of several graphs of one tag is the later one, and what a tag holds.

TensorBoard shows the graph of a tag's highest step, and its two readers disagree on two of
one step. So the steps in one log directory only go up, as far as this process knows. What
a tag holds it settles by the tag's first event
(tensorboard/plugins/graph/graphs_plugin.py, `info_impl`): later ones must be of that kind.
"""

import os
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from tbscope.errors import ArgumentError
from tbscope.options import LAST_STEP
from tbscope.words import shown

__all__ = [
    "Kind",
    "Written",
    "forget_removed",
    "holds",
    "latest_file",
    "next_step",
    "remember_step",
]


class Kind(Enum):
    """What a tag holds."""

    GRAPH = "a graph"
    GRAPH_WITH_FIGURES = "a graph with figures"
    FIGURES = "figures of the graph of the run"


class Written(NamedTuple):
    """The latest graph that was written for a tag.

    Attributes:
        step: Its step.
        kind: What was written.
        file: The name of the event file; empty where it is not known.
    """

    step: int
    kind: Kind = Kind.GRAPH
    file: str = ""


# By log directory and tag.
_latest: dict[tuple[str, str | None], Written] = {}


def next_step(directory: str, tag: str | None, step: int | None, kind: Kind = Kind.GRAPH) -> int:
    """Return the step of a graph that is about to be written.

    Args:
        directory: The log directory; empty where it is not known.
        tag: The tag.
        step: The step that is asked for; None for the next one.
        kind: What is about to be written.
    Raises:
        ArgumentError: A graph of that tag was written at this step or a later one, or the
            tag holds something else.
    """
    latest, known, _ = _latest.get((directory, tag), Written(-1, kind))
    if known is not kind and tag is not None:
        raise ArgumentError(
            f"the tag {shown(tag)} cannot hold {kind.value}",
            why=f"it holds {known.value} already, and TensorBoard takes a tag for what it "
            "was first",
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
    """Forget the graphs of a log directory whose files were removed, as notebooks do."""
    here = {tag: written.file for (place, tag), written in _latest.items() if place == directory}
    # Many tags are in one file: the disk is asked once for each file.
    removed = {
        file
        for file in set(here.values())
        if file and not os.path.exists(os.path.join(directory, file))
    }
    for tag, file in here.items():
        if file in removed:
            del _latest[directory, tag]


def remember_step(directory: str, tag: str | None, written: Written) -> None:
    """Remember a graph that has been written; in no directory that is known, there is no next."""
    if directory:
        _latest[directory, tag] = written


def holds(directory: str, tag: str, kind: Kind) -> bool:
    """Tell whether a tag holds this, as far as this process has written it."""
    return (directory, tag) in _latest and _latest[directory, tag].kind is kind


def latest_file(directory: str, tags: Iterable[str | None]) -> str:
    """Return the last-read one of the files that hold the latest graphs of these tags.

    A graph that must be shown in its place may not be in a file that is read before it. The
    name is empty where there is none, or it is not known.
    """
    found = (_latest.get((directory, tag)) for tag in tags)
    return max((written.file for written in found if written), default="")
