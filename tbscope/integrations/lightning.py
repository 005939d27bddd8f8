"""Lightning: a callback that draws the first training step of a `Trainer`."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tbscope.integrations.callback import DrawingCallback
from tbscope.sources.eager.recording import Recording, record
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


class GraphCallback(DrawingCallback, Callback):
    """Draws the first batch that a `Trainer` trains with: forward, loss, backward, optimizer.

        trainer = Trainer(logger=TensorBoardLogger("logs"), callbacks=[GraphCallback()])

    No example input is needed. The batch is recorded while the model trains with it, on its
    device, in its own structure (dicts, lists, ...), with all calls of `training_step`: `self(x)`,
    submodules, losses. The operations of `self.log` are left out. Rank 0 of a distributed run
    draws. A failure is one warning.
    """

    # The recording in progress, and the context managers that end with it.
    _recording: Recording | None = None
    _open: ExitStack

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: object, batch_idx: int
    ) -> None:
        """Begin to record, at the first batch."""
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

    def on_train_batch_end(
        self, trainer: Any, pl_module: object, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Write the recorded graph."""
        recording, self._recording = self._recording, None
        if recording is None:
            return
        with self._going_on():
            self._open.close()
            self.graph = recording.graph
            self.graph.name = type(pl_module).__name__
            self._write(self.graph, lambda: trainer.loggers)

    def on_exception(self, trainer: object, pl_module: object, exception: BaseException) -> None:
        """Drop the recording: a step that raised is not drawn."""
        if self._recording is not None:
            self._recording = None
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
