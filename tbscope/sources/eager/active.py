"""Which recorders watch this thread, and who draws in this process; knows nothing of torch.

Scopes by hand and watched module calls ask here, on every call, whether anyone
watches, so the answer must cost next to nothing.

Draws wait for each other, whatever model each of them draws. Two models may share a
module that only the run itself will show, so that a lock for each could not be taken
beforehand, nor in one order by all; and random generators, the compiler's stance and
torch's settings, which each draw puts back, are there once in a process.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any, Protocol

__all__ = [
    "Keeper",
    "StepWatcher",
    "Watcher",
    "abandoned",
    "alone",
    "is_only_thread",
    "keepers",
    "one_at_a_time",
    "settle",
    "step_watchers",
    "waiting",
    "watching",
]


class Watcher(Protocol):
    """Who is told of the scopes and module calls of a thread: a recorder.

    Attributes:
        paused: Whether it looks away.
        left: Whether it looks away for good, as its thread did not end it.
    """

    paused: bool
    left: bool

    def about_to_write(self, tensor: Any) -> None:
        """Take note of a tensor that is about to be written into."""

    def about_to_set(self, tensor: Any) -> None:
        """Take note of a tensor that is about to be set by what is no operation."""

    def about_to_accumulate(self) -> None:
        """Take note of a backward pass that is about to add to gradients."""

    def backward_pass(
        self, roots: Any, gradients: Any, *, creates_graph: bool, caller: FrameType
    ) -> AbstractContextManager[None]:
        """Take note of what autograd's engine runs in a block, and of what it begins at.

        The gradients come with whether they were given to autograd.
        """

    def gave_gradients(self, gradients: Any) -> None:
        """Take note of what a backward pass has given to whoever asked for it."""

    def begin_step(self, optimizer: Any, caller: FrameType) -> None:
        """Take note that an optimizer begins a step."""

    def end_step(self, optimizer: Any) -> None:
        """Take note that an optimizer has made a step."""

    def fail_step(self, caller: FrameType) -> None:
        """Take note that an error ends what runs in a Python frame: a step, if it called one."""

    def outside_step(self) -> AbstractContextManager[None]:
        """Have a block (a closure) be no part of the step that runs."""

    def swapping(self, one: Any, other: Any) -> AbstractContextManager[None]:
        """Have two tensors become what the other one was, in a block."""

    def waited(self, work: Any, frame: FrameType) -> None:
        """Take note that a Python frame has waited for what ranks do in the background."""

    def add_face(self, face: Any, tensor: Any) -> None:
        """Take note of a tensor that shows another one by a class of its own."""

    def others_stand_in(self, module: Any, names: Any) -> AbstractContextManager[None]:
        """Have other tensors stand in for those of a module that are so named, for a block."""

    def open_scope(self, name: str) -> None:
        """Take note of a scope by hand that opens."""

    def close_scope(self, name: str | None, *, failed: bool = False) -> None:
        """Take note of a scope by hand that closes."""

    def enter_call(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], caller: FrameType
    ) -> Any:
        """Note a module call; return the frame to hand back when it ends, None for nothing."""

    def leave_call(
        self, frame: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> Any:
        """Take note of a module call that returned; return what its caller gets of it."""

    def fail_call(self, frame: Any, error: BaseException) -> None:
        """Take note of a module call that raised."""


class PassWatcher(Protocol):
    """Who is told of backward passes."""

    def backward_pass(self) -> AbstractContextManager[None]:
        """Watch a backward pass that runs in a block."""


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


class Abandoned(Protocol):
    """A watch that was not ended in its thread, or not in its turn."""

    def let_go(self) -> bool:
        """End as much of it as this thread can; return whether that is all."""


class _Watching(threading.local):
    """The recorders that watch the running thread, outermost first.

    Attributes:
        recorders: Those that record now; empty when nothing is traced.
        stand_ins: What stands in for the tensors of the model; None where they are used.
        thread: The identity of the thread whose run this one works for; 0 for none.
        looks_away: Whether nobody who waits for a training step is told of what runs.
        measuring: Who measures a run; None where none is measured.
    """

    recorders: tuple[Watcher, ...] = ()
    stand_ins: Any = None
    thread: int = 0
    looks_away: bool = False
    measuring: PassWatcher | None = None


class Keeper(Protocol):
    """Who keeps modules as they are while one thread runs them.

    Attributes:
        thread: The identity of that thread.
    """

    thread: int

    def add_module(self, module: Any) -> None:
        """Keep a module as it is now, and switch its mode to that of the run."""

    def switched(self, module: Any) -> bool:
        """Tell whether a module is kept, and in the mode of the run."""

    def note_mode(self, module: Any, training: bool) -> None:
        """Take note that another thread has given a module this mode."""


watching = _Watching()
waiting: list[StepWatcher] = []
"""Those who wait for the training step of a model."""

keepers: list[Keeper] = []
"""Those who keep modules now, in all threads."""

abandoned: list[Abandoned] = []
"""What watches without an end, until the thread of each comes by."""

# A thread that draws may draw again inside of that.
_drawing = threading.RLock()


def _renew() -> None:
    """Let a forked process draw: the thread that drew when it was forked is not in it."""
    global _drawing  # noqa: PLW0603 (the lock of a process)
    _drawing = threading.RLock()


os.register_at_fork(after_in_child=_renew)


def is_only_thread() -> bool:
    """Tell whether the running thread is the only one of Python's in this process."""
    # Those that were not started by `threading` are counted here, too.
    return len(sys._current_frames()) == 1


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
    for each in [*abandoned]:
        if each.let_go() and each in abandoned:
            abandoned.remove(each)


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
