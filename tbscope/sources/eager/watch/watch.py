"""Watching of a thread by a recorder: all patches and modes for the duration of a block."""

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from tbscope.sources.eager.record.recorder import Recorder
from tbscope.sources.eager.thread_state import abandoned, finalize_abandoned, watching
from tbscope.sources.eager.watch.call_log import CallLog
from tbscope.sources.eager.watch.changes_outside_modes import (
    ALIASES_AND_RESIZES,
    AUTOGRAD_FUNCTIONS,
    SETTERS,
    SHARD_STEPS,
    WAITS,
)
from tbscope.sources.eager.watch.compiler_bypass import UNOBSERVED, running_eagerly
from tbscope.sources.eager.watch.launches import LAUNCHES
from tbscope.sources.eager.watch.modes import KernelMode, OperationMode, modes_of
from tbscope.sources.eager.watch.module_calls import MODULE_CALLS
from tbscope.sources.eager.watch.optimizer_hooks import watching_optimizers
from tbscope.sources.eager.watch.patch import SharedBlock
from tbscope.sources.eager.watch.thread_handover import HANDED_OVER
from tbscope.sources.torch.compat.tensors import are_innermost
from tbscope.sources.torch.distributed import is_distributed
from tbscope.sources.torch.fake import FakeTensors
from tbscope.utils.gc_pause import collecting_rarely

# Python frames that the watching of one operation needs, in the innermost module.
_OPERATION = 100


def _raise_limit() -> Callable[[], None]:
    before = sys.getrecursionlimit()
    raised = before + before // 3 + _OPERATION
    sys.setrecursionlimit(raised)

    def put_back() -> None:
        # The limit stays if other code has set it meanwhile.
        if sys.getrecursionlimit() == raised:
            sys.setrecursionlimit(before)

    return put_back


deep_enough = SharedBlock(_raise_limit)
"""Block with a higher recursion limit, so that modules can nest as deeply as unwatched.

Each watched module call takes one Python frame more than the three or more of the call itself.
"""


class Watch(AbstractContextManager[None]):
    """Watches this thread for a recorder.

    Args:
        recorder: The recorder.
        log: Log of the calls; None for no log.
        stand_ins: Fake tensors that replace the model's tensors; None for no replacement.
    """

    def __init__(
        self,
        recorder: Recorder,
        log: CallLog | None = None,
        *,
        stand_ins: FakeTensors | None = None,
    ) -> None:
        self._recorder = recorder
        self._stand_ins = stand_ins
        self._log = log
        self._lock = threading.Lock()
        # Resources of the process, and of this thread.
        self._process = ExitStack()
        self._here = ExitStack()
        self._calls = ExitStack()
        self._modes: tuple[KernelMode, OperationMode] | None = None
        self.thread = threading.current_thread()

    @property
    def is_here(self) -> bool:
        """Whether this watch is active in the running thread."""
        return self._recorder in watching.recorders

    @property
    def is_innermost(self) -> bool:
        """Whether this watch is active in the running thread, and no later watch is."""
        return self.is_here and watching.recorders[-1] is self._recorder

    @property
    def _can_end(self) -> bool:
        """Whether the watch can end now: the modes of a thread have to be left innermost first."""
        return (
            self.is_innermost and self._modes is not None and are_innermost(*reversed(self._modes))
        )

    def __enter__(self) -> None:
        finalize_abandoned()
        self.thread = threading.current_thread()
        with ExitStack() as thread_stack, ExitStack() as process_stack:
            thread_stack.callback(setattr, watching, "entered", watching.entered)
            watching.entered = (*watching.recorders, self._recorder)
            self._calls.enter_context(MODULE_CALLS)
            thread_stack.callback(self._calls.close)
            process_stack.enter_context(deep_enough)
            process_stack.enter_context(collecting_rarely())
            process_stack.callback(self._stop_threads)
            for block in (
                MODULE_CALLS,
                HANDED_OVER,
                UNOBSERVED,
                running_eagerly,
                SETTERS,
                ALIASES_AND_RESIZES,
                LAUNCHES,
            ):
                process_stack.enter_context(block)
            if is_distributed():
                process_stack.enter_context(WAITS)
                process_stack.enter_context(SHARD_STEPS)
            if self._stand_ins is not None:
                thread_stack.callback(setattr, watching, "stand_ins", watching.stand_ins)
                watching.stand_ins = self._stand_ins
                process_stack.enter_context(AUTOGRAD_FUNCTIONS)
            modes = modes_of(self._recorder, self._log, stand_ins=self._stand_ins)
            if self._recorder.training is not None:
                self._recorder.training.backward.look_again()
                process_stack.enter_context(watching_optimizers)
            for mode in modes:
                thread_stack.enter_context(mode)
            self._modes = modes
            self._process, self._here = process_stack.pop_all(), thread_stack.pop_all()

    def _stop_threads(self) -> None:
        if self._recorder.threads is not None:
            self._recorder.threads.stop()

    def __exit__(self, *_: object) -> None:
        if self._can_end:
            self._here.close()
            self._process.close()
        else:
            self.abandon()
        finalize_abandoned()

    def abandon(self) -> None:
        """Stop recording; the thread of the watch ends it at the next opportunity.

        Only the recorder changes now, because this may run at any point (in a finalizer).
        """
        self._recorder.suspended = self._recorder.abandoned = True
        abandoned.append(self.let_go)

    def let_go(self) -> bool:
        """End as much of the watch as this thread can; return whether it has ended completely."""
        with self._lock:
            self._process.close()
            if self._can_end:
                self._here.close()
            elif self.thread.is_alive():
                return False
            # Otherwise the modes are gone, together with their thread.
            self._calls.close()
            return True
