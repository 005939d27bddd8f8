"""Has a recorder watch a thread: its module calls, its operations and their kernels."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType

from tbscope.collector import collecting_rarely
from tbscope.sources.eager.active import abandoned, settle, watching
from tbscope.sources.eager.record.recorder import Recorder
from tbscope.sources.eager.watch import modes
from tbscope.sources.eager.watch.call_log import CallLog
from tbscope.sources.eager.watch.depth import deep_enough
from tbscope.sources.eager.watch.elsewhere import watch_elsewhere
from tbscope.sources.eager.watch.module_calls import watch_modules
from tbscope.sources.eager.watch.optimizers import watch_optimizers
from tbscope.sources.eager.watch.own_functions import watch_own_functions
from tbscope.sources.eager.watch.setters import watch_setters
from tbscope.sources.eager.watch.storage_sizes import watch_sizes
from tbscope.sources.eager.watch.threads import watch_threads
from tbscope.sources.eager.watch.unobserved import unobserved
from tbscope.sources.eager.watch.unseen import watch_unseen
from tbscope.sources.eager.watch.works import watch_works
from tbscope.sources.torch.fake import StandIns
from tbscope.sources.torch.internals import are_innermost

__all__ = ["Watch", "ready_to_watch"]


@contextmanager
def ready_to_watch() -> Iterator[None]:
    """Have in place, during a block, all that is put in the place of torch's and Python's own.

    Each watch sees to it itself. Where one follows another, they cost less in such a block:
    whenever something of a class is replaced, Python forgets what it knew of the class.
    """
    with ExitStack() as stack:
        stack.enter_context(watch_modules())
        stack.enter_context(watch_elsewhere())
        stack.enter_context(watch_threads())
        stack.enter_context(unobserved())
        stack.enter_context(watch_sizes())
        stack.enter_context(watch_setters())
        stack.enter_context(watch_unseen())
        stack.enter_context(watch_works())
        yield


class Watch(AbstractContextManager[None]):
    """Has a recorder watch this thread.

    Args:
        recorder: Who watches.
        log: Where each call is noted; None for nowhere.
        stand_ins: What functions are given in place of the model's tensors; None for nothing.
    """

    def __init__(
        self,
        recorder: Recorder,
        log: CallLog | None = None,
        *,
        stand_ins: StandIns | None = None,
    ) -> None:
        self._recorder = recorder
        self._stand_ins = stand_ins
        self._log = log
        self._turn = threading.Lock()
        # What is there once in the process, and what belongs to this thread.
        self._process = ExitStack()
        self._here = ExitStack()
        self._calls = ExitStack()
        self._modes: tuple[modes.OperationMode, modes.KernelMode] | None = None
        self.thread = threading.current_thread()

    @property
    def is_here(self) -> bool:
        """Whether it watches this thread."""
        return self._recorder in watching.recorders

    @property
    def is_innermost(self) -> bool:
        """Whether it watches this thread, and nothing does that has begun later."""
        return self.is_here and watching.recorders[-1] is self._recorder

    @property
    def _can_end(self) -> bool:
        """Whether it can end: of the modes of a thread the innermost goes first."""
        return self.is_innermost and self._modes is not None and are_innermost(*self._modes)

    def __enter__(self) -> None:
        settle()
        self.thread = threading.current_thread()
        with ExitStack() as here, ExitStack() as stack:
            outer = watching.recorders
            here.callback(setattr, watching, "recorders", outer)
            here.callback(setattr, watching, "eager", watching.eager)
            watching.recorders = (*outer, self._recorder)
            self._calls.enter_context(watch_modules())
            here.callback(self._calls.close)
            stack.enter_context(deep_enough())
            stack.enter_context(collecting_rarely())
            stack.callback(self._stop_threads)
            stack.enter_context(ready_to_watch())
            operations: modes.OperationMode
            if self._stand_ins is not None:
                here.callback(setattr, watching, "stand_ins", watching.stand_ins)
                watching.stand_ins = self._stand_ins
                stack.enter_context(watch_own_functions())
                operations = modes.FakedOperationMode(self._recorder, self._stand_ins)
            else:
                operations = modes.OPERATION_MODE(self._recorder, self._log)
            self._recorder.functions = operations.in_pass
            if self._recorder.backward is not None:
                self._recorder.backward.look_again()
                stack.enter_context(watch_optimizers())
            kernels = modes.KernelMode(self._recorder, operations, self._log)
            here.enter_context(kernels)
            here.enter_context(operations)
            self._modes = operations, kernels
            self._process, self._here = stack.pop_all(), here.pop_all()

    def _stop_threads(self) -> None:
        if self._recorder.strands is not None:
            self._recorder.strands.stop()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._can_end:
            self._here.close()
            self._process.close()
        else:
            self.abandon()
        settle()

    def abandon(self) -> None:
        """Watch no longer; the thread of this ends it as soon as it comes by.

        Nothing but the recorder changes now: this may run amid anything else.
        """
        self._recorder.paused = self._recorder.left = True
        abandoned.append(self)

    def let_go(self) -> bool:
        """End as much of it as this thread can; return whether that is all."""
        with self._turn:
            self._process.close()
            if self._can_end:
                self._here.close()
            elif self.thread.is_alive():
                return False
            # Else the modes have gone with their thread.
            self._calls.close()
            return True
