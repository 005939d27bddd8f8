"""Has a recorder watch a thread: its module calls, its operations and their kernels."""

from contextlib import AbstractContextManager, ExitStack
from types import TracebackType

from tbscope.sources.eager.active import watching
from tbscope.sources.eager.record.recorder import Recorder
from tbscope.sources.eager.watch.call_log import CallLog
from tbscope.sources.eager.watch.modes import KernelMode, OperationMode
from tbscope.sources.eager.watch.module_calls import watch_modules
from tbscope.sources.eager.watch.storage_sizes import watch_sizes
from tbscope.sources.eager.watch.unobserved import unobserved
from tbscope.sources.eager.watch.unseen import watch_unseen

__all__ = ["Watch"]


class Watch(AbstractContextManager[None]):
    """Has a recorder watch this thread.

    Args:
        recorder: Who watches.
        log: Where each call is noted; None for nowhere.
    """

    def __init__(self, recorder: Recorder, log: CallLog | None = None) -> None:
        self._recorder = recorder
        self._log = log
        self._stack = ExitStack()

    def __enter__(self) -> None:
        with ExitStack() as stack:
            outer = watching.recorders
            stack.callback(setattr, watching, "recorders", outer)
            watching.recorders = (*outer, self._recorder)
            stack.enter_context(watch_modules())
            stack.enter_context(unobserved())
            stack.enter_context(watch_sizes())
            stack.enter_context(watch_unseen())
            operations = OperationMode(self._recorder, self._log)
            stack.enter_context(KernelMode(self._recorder, operations, self._log))
            stack.enter_context(operations)
            self._stack = stack.pop_all()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)
