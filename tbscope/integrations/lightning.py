"""Lightning: a callback that draws the first training step of a `Trainer`."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tbscope.integrations.callback import DrawingCallback
from tbscope.sources.eager.recording import record
from tbscope.sources.eager.thread_state import suspend_watchers
from tbscope.sources.torch.calling.pytree import tensor_leaves

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    try:
        from pytorch_lightning.callbacks import Callback
    except ImportError as error:
        raise ImportError(
            "tbscope.integrations.lightning needs Lightning\n"
            f"  why: {error}\n  fix: pip install 'tbscope[lightning]'"
        ) from error

__all__ = ["GraphCallback"]

# Recorded micro batches before the one with the optimizer's step.
_MOST_BATCHES = 8


class GraphCallback(DrawingCallback, Callback):
    """Draws the first step that a `Trainer` trains with: forward, loss, backward, optimizer.

        trainer = Trainer(logger=TensorBoardLogger("logs"), callbacks=[GraphCallback()])

    No example input is needed. The batch is recorded while the model trains with it, on its
    device, in its own structure (dicts, lists, ...), with all calls of `training_step`: `self(x)`,
    submodules, losses. The operations of `self.log` are left out. Rank 0 of a distributed run
    draws. A failure is one warning.
    """

    # The recording in progress, the context managers that end with it, and those that suspend it
    # between micro batches; the number of steps before it, and of its micro batches.
    _recording: record | None = None
    _open: ExitStack
    _suspended: ExitStack
    _steps = _batches = 0

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: object, batch_idx: int
    ) -> None:
        """Begin to record, at the first batch, or go on at a micro batch."""
        if self._recording is not None:
            steps = (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch
            if steps or self._batches < _MOST_BATCHES:
                self._suspended.close()
                if tensor_leaves(batch, "batch"):
                    with self._going_on():
                        self._recording.input(batch=batch)
        if self._begun or not trainer.is_global_zero:
            return
        self._begun = True
        # The frame of the training loop, two calls up in Lightning; any other frame does no harm.
        hook = sys._getframe(1)
        frame = hook.f_back or hook
        with self._going_on(), ExitStack() as stack:
            recording = record(pl_module, backward=self._backward)
            if tensor_leaves(batch, "batch"):
                recording.input(batch=batch)
            stack.enter_context(_quiet_logging(pl_module))
            recording.begin(frame)
            stack.push(recording)
            self._recording, self._open = recording, stack.pop_all()
            self._suspended, self._steps = ExitStack(), trainer.global_step

    def on_train_batch_end(
        self, trainer: Any, pl_module: object, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Write the recorded graph, once the optimizer has made its step."""
        self._batches += 1
        accumulates = self._backward and trainer.accumulate_grad_batches > 1
        if self._recording is None:
            return
        if accumulates and trainer.global_step == self._steps:
            self._suspended.enter_context(suspend_watchers())
            return
        self._finish(trainer, pl_module)

    def on_train_end(self, trainer: Any, pl_module: object) -> None:
        """Write the graph of a step whose last micro batch never came."""
        if self._recording is not None:
            self._finish(trainer, pl_module)

    def _finish(self, trainer: Any, pl_module: object) -> None:
        recording, self._recording = self._recording, None
        assert recording is not None
        with self._going_on():
            self._suspended.close()
            self._open.close()
            self.graph = recording.graph
            self.graph.name = type(pl_module).__name__
            self._write(self.graph, lambda: trainer.loggers)

    def on_exception(self, trainer: object, pl_module: object, exception: BaseException) -> None:
        """Drop the recording: a step that raised is not drawn."""
        if self._recording is not None:
            self._recording = None
            self._suspended.close()
            self._open.__exit__(type(exception), exception, exception.__traceback__)


@contextmanager
def _quiet_logging(module: object) -> Iterator[None]:
    """Suspend all watchers inside of a module's `log` and `log_dict`, during a block."""
    names = [name for name in ("log", "log_dict") if name not in vars(module)]
    for name in names:
        setattr(module, name, suspend_watchers()(getattr(module, name)))
    try:
        yield
    finally:
        for name in names:
            delattr(module, name)
