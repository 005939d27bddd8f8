"""transformers: a callback that draws the first training step of a `Trainer`."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tbscope.integrations.callback import DrawingCallback, warn_of_none
from tbscope.ir.graph import Graph
from tbscope.sources.eager.step_watcher import TrainingWatch

if TYPE_CHECKING:
    from types import FrameType

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        "tbscope.integrations.transformers needs transformers\n"
        f"  why: {error}\n  fix: pip install 'tbscope[transformers]'"
    ) from error

__all__ = ["GraphCallback"]


class GraphCallback(DrawingCallback, TrainerCallback):
    """Draws the first step that a `Trainer` makes: forward, backward, optimizer.

        trainer = Trainer(model, args, train_dataset=data, callbacks=[GraphCallback()])

    No example input is needed: the model's calls in training mode are recorded up to the
    optimizer's step, with the trainer's own batches, on its device. Rank 0 of a distributed run
    draws. A failure is one warning.
    """

    _waiting: TrainingWatch | None = None

    def on_step_begin(self, args: object, state: Any, control: object, **trained: Any) -> None:
        """Wait for the model's first step."""
        if self._begun or not state.is_world_process_zero:
            return
        self._begun = True
        with self._going_on():
            self._waiting = TrainingWatch(
                trained["model"],
                done=self._take,
                failed=warn_of_none,
                backward=self._backward,
                optimizer=None,
                every=None,
            )

    def on_step_end(self, args: object, state: object, control: object, **trained: object) -> None:
        """Write the recorded graph once the recording is complete."""
        if self._waiting is not None and self._waiting.is_over:
            self._waiting.remove()
            self._waiting = None
            if self.graph is not None:
                self._write(self.graph, self._callbacks)

    def on_train_end(self, args: object, state: object, control: object, **trained: object) -> None:
        """Write a complete recording; otherwise stop waiting, and warn that nothing was drawn."""
        reason = None if self._waiting is None else self._waiting.close()
        self.on_step_end(args, state, control)
        if reason is not None:
            warn_of_none(reason)

    def _take(self, graph: Graph, _calls: int) -> None:
        self.graph = graph

    def _callbacks(self) -> Iterable[object]:
        """Return the trainer's callbacks from a caller's frame: no argument contains them."""
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            callbacks = getattr(frame.f_locals.get("self"), "callbacks", None)
            if isinstance(callbacks, list) and any(callback is self for callback in callbacks):
                return callbacks
            frame = frame.f_back
        return []
