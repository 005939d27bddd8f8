"""Steps: which of several graphs of one tag is the later one, and what a tag holds.

TensorBoard shows the graph of a tag's highest step, and its two readers disagree on two of
one step. So the steps in one log directory only go up, as far as this process knows. What
a tag holds it settles by the tag's first event
(tensorboard/plugins/graph/graphs_plugin.py, `info_impl`): later ones must be of that kind.
"""

import re
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from tbscope.errors import ArgumentError

__all__ = ["Kind", "Written", "check_place", "holds", "latest_file", "next_step", "remember_step"]


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

# Parts and drives of another system's paths, and what no name of a file should hold.
_NO_NAME = re.compile(r"[\\:\x00-\x1f]")


def check_place(tag: object, step: object, run_name: object = None) -> None:
    """Raise ArgumentError unless these can be a tag, a step and the name of a run."""
    if tag is not None and (not isinstance(tag, str) or not tag):
        raise ArgumentError(
            f"a graph cannot have the tag {tag!r}",
            why="a tag is a text that is not empty",
            fix="tag='generator', or None for the graph of the run",
        )
    if step is not None and (type(step) is not int or step < 0):
        raise ArgumentError(
            f"a graph cannot be of step {step!r}",
            why="a step is a whole number from 0 on",
            fix="step=None for one after the latest",
        )
    if run_name is not None and not _is_run_name(run_name):
        raise ArgumentError(
            f"a run below the writer's own cannot be called {run_name!r}",
            why="it is a directory below the log directory, so its name is one part or more "
            "with / between them, none of them empty, '.' or '..'",
            fix="run_name='eval', or 'eval/large'",
        )


def _is_run_name(name: object) -> bool:
    if not isinstance(name, str) or _NO_NAME.search(name):
        return False
    return all(part.strip() not in ("", ".", "..") for part in name.split("/"))


def next_step(directory: str, tag: str | None, step: int | None, kind: Kind = Kind.GRAPH) -> int:
    """Give the step of a graph that is about to be written.

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
            f"the tag {tag!r} cannot hold {kind.value}",
            why=f"it holds {known.value} already, and TensorBoard takes a tag for what it "
            "was first",
            fix="another tag",
        )
    if step is None:
        step = latest + 1
    elif step <= latest:
        name = "the run" if tag is None else f"tag {tag!r}"
        raise ArgumentError(
            f"a graph of {name} at step {step} comes too late",
            why=f"one was written at step {latest} already, and TensorBoard shows the highest",
            fix=f"step={latest + 1}, or another tag",
        )
    return step


def remember_step(directory: str, tag: str | None, written: Written) -> None:
    """Remember a graph that has been written; in no directory that is known, there is no next."""
    if directory:
        _latest[directory, tag] = written


def holds(directory: str, tag: str, kind: Kind) -> bool:
    """Tell whether a tag holds this, as far as this process has written it."""
    return (directory, tag) in _latest and _latest[directory, tag].kind is kind


def latest_file(directory: str, tags: Iterable[str | None]) -> str:
    """Give the name of the file that holds the latest graph of these tags and is read last.

    A graph that shall be shown in its place must not be in a file that is read before. The
    name is empty where there is none, or it is not known.
    """
    found = (_latest.get((directory, tag)) for tag in tags)
    return max((written.file for written in found if written), default="")
