"""State of each thread: its recorders; and the lock that admits one trace at a time per process.

User scopes and watched module calls read this state on every call, so reading it must cost next
to nothing.

Traces wait for each other, whatever model each of them draws. A lock for each model would not do:
two models may share a module that only the run itself shows, so the locks could not be taken
beforehand, nor in one order by all threads. Besides, each trace restores the random generators, the
compiler's stance and torch's settings, which exist once in a process.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any, Protocol

import torch
from torch.compiler import is_dynamo_compiling

from tbscope.sources.eager.record.recorder import Recorder
from tbscope.sources.torch.compat.tensors import dispatch_depth, dispatch_modes


class StepWatcher(Protocol):
    """Watcher of a model that waits for a training step, whose parts may run in several threads."""

    def backward_pass(
        self, roots: Any, caller: FrameType, *, creates_graph: bool
    ) -> AbstractContextManager[None]:
        """Watch a backward pass that runs in a block, if its roots depend on the model."""

    def optimizer_begins(self, optimizer: torch.optim.Optimizer, caller: FrameType) -> None:
        """Record the step of an optimizer, from now on."""

    def closure_ends(self, optimizer: torch.optim.Optimizer, caller: FrameType) -> None:
        """Record the step of an optimizer whose closure has just computed the gradients."""

    def optimizer_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """Record that an optimizer has finished its step."""

    def optimizer_failed(self, caller: FrameType) -> None:
        """Drop the optimizer step that ran in this frame, if any: an error has ended the frame."""


class _Watching(threading.local):
    """Recorders of the running thread, and related state.

    Attributes:
        entered: The recorders whose blocks this thread has entered, outermost first.
        stand_ins: Fake tensors of the model's tensors, or None if the tensors themselves are used.
        thread: Identity of the thread for whose run this thread works, or 0 for none.
        suspended: Whether step watchers are suspended in this thread.
        measuring: Returns a block in which a backward pass is measured; None for no measuring.
    """

    entered: tuple[Recorder, ...] = ()
    stand_ins: Any = None
    thread: int = 0
    suspended: bool = False
    measuring: Callable[[], AbstractContextManager[None]] | None = None

    @property
    def recorders(self) -> tuple[Recorder, ...]:
        """The recorders of this thread, outermost first; empty if nothing is recorded.

        Autograd's engine computes gradients on a CUDA device in a thread of its own, which has the
        modes of the thread that called `backward()`. Its hooks, the functions that it recomputes,
        and those that it calls at the end belong to the recorders of that thread.
        """
        # Dynamo cannot trace the query of modes; the code that it traces has no such thread.
        if self.entered or is_dynamo_compiling() or not dispatch_depth():
            return self.entered
        return tuple(mode.recorder for mode in dispatch_modes() if hasattr(mode, "recorder"))

    @property
    def active(self) -> list[Recorder]:
        """The recorders of this thread that are not suspended, outermost first."""
        return [recorder for recorder in self.recorders if not recorder.suspended]


watching = _Watching()
waiting: list[StepWatcher] = []
"""Watchers that wait for the training step of a model, in any thread."""

abandoned: list[Callable[[], bool]] = []
"""Functions that end watches which their thread has not ended in order.

Each returns whether its watch has ended completely."""

# A trace may start another trace in its thread, so the lock is reentrant.
_drawing = threading.RLock()


def _renew() -> None:
    """Replace the lock in a forked process: the thread that owned it does not exist there."""
    global _drawing  # noqa: PLW0603 (the lock of a process)
    _drawing = threading.RLock()


if hasattr(os, "register_at_fork"):  # Windows has no fork.
    os.register_at_fork(after_in_child=_renew)


@contextmanager
def trace_lock() -> Iterator[None]:
    """Wait until no other thread traces a model, and block other threads during the block."""
    with _drawing:
        yield


def step_watchers() -> tuple[StepWatcher, ...]:
    """Return the step watchers, or nothing if they are suspended in this thread."""
    return () if watching.suspended else tuple(waiting)


def finalize_abandoned() -> None:
    """End the abandoned watches, as far as this thread can end them."""
    for end_watch in [*abandoned]:
        if end_watch() and end_watch in abandoned:
            abandoned.remove(end_watch)


@contextmanager
def suspend_watchers() -> Iterator[None]:
    """Suspend this thread's recorders and the step watchers during a block."""
    suspended = watching.active
    before, watching.suspended = watching.suspended, True
    for recorder in suspended:
        recorder.suspended = True
    try:
        yield
    finally:
        watching.suspended = before
        for recorder in suspended:
            recorder.suspended = recorder.abandoned
