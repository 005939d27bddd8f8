"""Which recorders watch this thread; knows nothing of torch.

Scopes by hand and watched module calls ask here, on every call, whether anyone
watches, so the answer must cost next to nothing.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tbscope.sources.recorder import Recorder

__all__ = ["alone", "watching"]


class _Watching(threading.local):
    """The recorders that watch the running thread, outermost first.

    Attributes:
        recorders: Those that record now; empty when nothing is traced.
        eager: Who tells the compiler to stand by; None when nothing is traced.
    """

    recorders: "tuple[Recorder, ...]" = ()
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
