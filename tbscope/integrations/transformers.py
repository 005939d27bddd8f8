"""transformers: a callback that draws the first training step of a `Trainer`."""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from tbscope.integrations.orders import Order
from tbscope.ir.graph import Graph
from tbscope.options import Drawing, shows_options
from tbscope.sources.eager.waiting import Waiting

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


class GraphCallback(TrainerCallback):
    """Draws the first batch that a `Trainer` trains with: forward, backward, optimizer.

        trainer = Trainer(model, args, train_dataset=data, callbacks=[GraphCallback()])

    No example input is asked for: the model's first call in training is recorded, with the
    batch that the trainer gives it, on its device. The first process of a distributed run draws.
    Whatever fails is one warning.

    Attributes:
        graph: The graph that was drawn; None before there is one.
    """

    @shows_options
    def __init__(
        self,
        logdir: str | None = None,
        *,
        tag: str | None = None,
        run_name: str | None = None,
        backward: bool = True,
        overlays: Sequence[str] = ("flops", "parameters"),
        **drawing: Unpack[Drawing],
    ) -> None:
        """Take what is drawn, and where.

        Args:
            logdir: A directory; None for that of the trainer's TensorBoard callback
                (`report_to="tensorboard"`).
            tag: The graph's entry in the page's list of tags; None for the graph of the run.
            run_name: A run of its own, as a path below the log directory.
            backward: Whether the backward pass and the optimizer's step are drawn, too.
            overlays: The names of built-in overlays, each an entry of its own in that list.
            drawing: How the graph is drawn, as for `tbscope.add_graph`.
        Raises:
            ArgumentError: One of them is none.
        """
        self.graph: Graph | None = None
        self._order = Order(
            logdir,
            tag=tag,
            run_name=run_name,
            backward=backward,
            overlays=overlays,
            drawing=drawing,
        )
        self._waiting: Waiting | None = None
        self._begun = False

    def on_step_begin(self, args: Any, state: Any, control: Any, **trained: Any) -> None:
        """Wait for the model's next call."""
        if self._begun or not state.is_world_process_zero:
            return
        self._begun = True
        with self._order.going_on():
            self._waiting = Waiting(
                trained["model"],
                done=self._take,
                failed=self._order.warn,
                backward=self._order.backward,
                optimizer=None,
                every=None,
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **trained: Any) -> None:
        """Write what was recorded, when it is whole."""
        if self._waiting is not None and self._waiting.is_over:
            self._waiting.remove()
            self._waiting = None
            if self.graph is not None:
                self._order.write(self.graph, self._callbacks)

    def on_train_end(self, args: Any, state: Any, control: Any, **trained: Any) -> None:
        """Wait no longer."""
        self.on_step_end(args, state, control)
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.remove()
            self._order.warn("no call of the model in training mode has come to an end")

    def _take(self, graph: Graph, _calls: int) -> None:
        self.graph = graph

    def _callbacks(self) -> Iterable[object]:
        """Return the callbacks of the trainer; what it calls them with holds none of them."""
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            callbacks = getattr(frame.f_locals.get("self"), "callbacks", None)
            if isinstance(callbacks, list) and any(each is self for each in callbacks):
                return callbacks
            frame = frame.f_back
        return []
