"""Has a recorder watch a thread: its module calls, its operations and their kernels."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType

from tbscope.collector import collecting_rarely
from tbscope.sources.eager.active import watching
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
        self._stack = ExitStack()

    def __enter__(self) -> None:
        with ExitStack() as stack:
            outer = watching.recorders
            stack.callback(setattr, watching, "recorders", outer)
            watching.recorders = (*outer, self._recorder)
            stack.enter_context(deep_enough())
            stack.enter_context(collecting_rarely())
            stack.callback(self._stop_threads)
            stack.enter_context(ready_to_watch())
            operations: modes.OperationMode
            if self._stand_ins is not None:
                stack.callback(setattr, watching, "stand_ins", watching.stand_ins)
                watching.stand_ins = self._stand_ins
                stack.enter_context(watch_own_functions())
                operations = modes.FakedOperationMode(self._recorder, self._stand_ins)
            else:
                operations = modes.OPERATION_MODE(self._recorder, self._log)
            self._recorder.functions = operations.in_pass
            if self._recorder.backward is not None:
                self._recorder.backward.look_again()
                stack.enter_context(watch_optimizers())
            stack.enter_context(modes.KernelMode(self._recorder, operations, self._log))
            stack.enter_context(operations)
            self._stack = stack.pop_all()

    def _stop_threads(self) -> None:
        if self._recorder.strands is not None:
            self._recorder.strands.stop()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)
