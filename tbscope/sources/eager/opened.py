"""What waits for a training step has of the model, and of the frame that it watches now."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from threading import get_ident
from types import FrameType
from typing import Any

import torch

from tbscope.sources.eager.record.careful import CarefulRecorder
from tbscope.sources.eager.watch.watch import Watch
from tbscope.sources.torch.module_internals import is_tracing

__all__ = ["Hook", "Opened"]


class Hook:
    """A hook of a model; copies of the model, in memory and in files, have one that does nothing.

    Args:
        function: What it does.

    Attributes:
        recorder: Who records the step that is not over. It knows the model, and would keep it
            alive; so nobody but the model keeps it.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self.recorder: CarefulRecorder | None = None

    def __call__(self, *args: Any) -> None:
        """Do it, unless the compiler looks at the model, or torch.jit."""
        # Compiled code would be made anew whenever what the hook goes by is another.
        if not (torch.compiler.is_compiling() or is_tracing()):
            self._function(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        # Of Python's own: who reads the file need not have tbscope.
        return getattr, (nullcontext(), "__exit__")


class Opened:
    """What is watched now.

    Attributes:
        frame: The Python frame in which that was begun.
    """

    def __init__(self, recorder: CarefulRecorder, frame: FrameType) -> None:
        self._watch = Watch(recorder)
        self._watch.__enter__()
        # Itself: another one may come to stand where it stood.
        self.frame = frame
        self._thread = get_ident()

    @property
    def runs(self) -> bool:
        """Whether that frame runs still: an error may have ended it, of which nobody tells."""
        if get_ident() != self._thread:
            return self._thread in sys._current_frames()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not self.frame:
            frame = frame.f_back
        return frame is not None

    def close(self) -> None:
        """Watch no longer."""
        self._watch.__exit__(None, None, None)
