"""Which recorders watch this thread; knows nothing of torch.

Scopes by hand and watched module calls ask here, on every call, whether anyone
watches, so the answer must cost next to nothing.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any, Protocol

__all__ = ["Watcher", "alone", "watching"]


class Watcher(Protocol):
    """Who is told of the scopes and module calls of a thread: a recorder.

    Attributes:
        paused: Whether it looks away.
    """

    paused: bool

    def about_to_write(self, tensor: Any) -> None:
        """Take note of a tensor that is about to be written into."""

    def add_face(self, face: Any, tensor: Any) -> None:
        """Take note of a tensor that shows another one by a class of its own."""

    def others_stand_in(self, module: Any) -> AbstractContextManager[None]:
        """Have other tensors stand in for those of a module, for a block."""

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
    ) -> None:
        """Take note of a module call that returned."""

    def fail_call(self, frame: Any, error: BaseException) -> None:
        """Take note of a module call that raised."""


class _Watching(threading.local):
    """The recorders that watch the running thread, outermost first.

    Attributes:
        recorders: Those that record now; empty when nothing is traced.
        eager: Who tells the compiler to stand by; None when nothing is traced.
    """

    recorders: tuple[Watcher, ...] = ()
    eager: Any = None


watching = _Watching()


@contextmanager
def alone() -> Iterator[None]:
    """Have the recorders that watch already look away during a block."""
    paused = [other for other in watching.recorders if not other.paused]
    for other in paused:
        other.paused = True
    try:
        yield
    finally:
        for other in paused:
            other.paused = False
