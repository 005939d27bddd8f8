"""Which recorders watch this thread, and who draws in this process.

Scopes by hand and watched module calls ask here, on every call, whether anyone
watches, so the answer must cost next to nothing.

Draws wait for each other, whatever model each of them draws. Two models may share a
module that only the run itself will show, so that a lock for each could not be taken
beforehand, nor in one order by all; and random generators, the compiler's stance and
torch's settings, which each draw puts back, are there once in a process.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any, Protocol

from tbscope.sources.eager.record.recorder import Recorder

__all__ = [
    "StepWatcher",
    "abandoned",
    "alone",
    "one_at_a_time",
    "settle",
    "step_watchers",
    "waiting",
    "watching",
]


class StepWatcher(Protocol):
    """Who waits for a training step, in whichever threads its parts run."""

    def backward_pass(self, roots: Any, caller: FrameType) -> AbstractContextManager[None]:
        """Watch a backward pass that runs in a block, if what it begins at concerns them."""

    def optimizer_begins(self, optimizer: Any, caller: FrameType) -> None:
        """Record the step of an optimizer, from now on."""

    def closure_ends(self, optimizer: Any, caller: FrameType) -> None:
        """Record the step of an optimizer, now that it has the gradients it asked for."""

    def optimizer_ends(self, optimizer: Any) -> None:
        """Take note that an optimizer has made its step."""

    def optimizer_failed(self, caller: FrameType) -> None:
        """Take note that an error has ended what an optimizer may have done in this frame."""


class _Watching(threading.local):
    """The recorders that watch the running thread, outermost first.

    Attributes:
        recorders: Those that record now; empty when nothing is traced.
        stand_ins: What stands in for the tensors of the model; None where they are used.
        thread: The identity of the thread whose run this one works for; 0 for none.
        looks_away: Whether nobody who waits for a training step is told of what runs.
        measuring: Returns a block in which a backward pass is measured; None for no measuring.
    """

    recorders: tuple[Recorder, ...] = ()
    stand_ins: Any = None
    thread: int = 0
    looks_away: bool = False
    measuring: Callable[[], AbstractContextManager[None]] | None = None


watching = _Watching()
waiting: list[StepWatcher] = []
"""Those who wait for the training step of a model."""

abandoned: list[Callable[[], bool]] = []
"""Ends each watch that its thread did not end, or not in its turn; returns whether that is all."""

# A thread that draws may draw again inside of that.
_drawing = threading.RLock()


def _renew() -> None:
    """Let a forked process draw: the thread that drew when it was forked is not in it."""
    global _drawing  # noqa: PLW0603 (the lock of a process)
    _drawing = threading.RLock()


os.register_at_fork(after_in_child=_renew)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Wait until no other thread draws, and have others wait during a block."""
    with _drawing:
        yield


def step_watchers() -> tuple[StepWatcher, ...]:
    """Return those who wait for a training step and are told of what this thread runs."""
    return () if watching.looks_away else tuple(waiting)


def settle() -> None:
    """End what is abandoned, as far as this thread can."""
    for let_go in [*abandoned]:
        if let_go() and let_go in abandoned:
            abandoned.remove(let_go)


@contextmanager
def alone() -> Iterator[None]:
    """Have the recorders that watch already, and those who wait, look away during a block."""
    paused = [other for other in watching.recorders if not other.paused]
    looked_away, watching.looks_away = watching.looks_away, True
    for other in paused:
        other.paused = True
    try:
        yield
    finally:
        watching.looks_away = looked_away
        for other in paused:
            other.paused = other.left
