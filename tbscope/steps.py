"""Steps: which of several graphs of one tag is the later one.

TensorBoard shows the graph of a tag's highest step, and its two readers disagree on two of
one step. So the steps in one log directory only go up, as far as this process knows.
"""

import os
from typing import Any

from tbscope.errors import ArgumentError

__all__ = ["check_place", "next_step", "remember_step"]

# The latest step that was written, by log directory and tag.
_latest: dict[tuple[str, str | None], int] = {}


def check_place(tag: object, step: object) -> None:
    """Raise ArgumentError unless these can be a tag and a step."""
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


def next_step(sink: Any, tag: str | None, step: int | None) -> int:
    """Give the step of a graph that is about to be written.

    Args:
        sink: The object that takes the event.
        tag: The tag.
        step: The step that is asked for; None for the next one.
    Raises:
        ArgumentError: A graph of that tag was written at this step or a later one.
    """
    directory = _directory(sink)
    latest = _latest.get((directory, tag), -1) if directory else -1
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


def remember_step(sink: Any, tag: str | None, step: int) -> None:
    """Remember the step of a graph that has been written."""
    directory = _directory(sink)
    if directory:
        _latest[directory, tag] = step


def _directory(sink: Any) -> str:
    """Give the log directory of what takes events; nothing where it does not tell."""
    directory = sink.get_logdir() if hasattr(sink, "get_logdir") else ""
    if not isinstance(directory, str | os.PathLike):
        return ""
    text = os.fspath(directory)
    # A remote directory has no path on this machine.
    return text if "://" in text or not text else os.path.abspath(text)
