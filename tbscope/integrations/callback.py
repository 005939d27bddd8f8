"""What every callback is asked for: what it draws of a training, and where it writes it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from tbscope.integrations.orders import Order
from tbscope.option import shows_options
from tbscope.options import Drawing

if TYPE_CHECKING:
    from tbscope.ir.graph import Graph

__all__ = ["DrawingCallback"]


class DrawingCallback:
    """Holds an order for one drawing; a library's own class stands beside it.

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
            logdir: A directory; None for that of the trainer's own writer
                (`TensorBoardLogger`, `report_to="tensorboard"`).
            tag: The graph's entry in the page's list of tags; None for the graph of the run.
            run_name: A run of its own, as a path below the log directory.
            backward: Whether the backward pass and the optimizer's step are drawn, too.
            overlays: The names of built-in overlays, each an entry of its own in that list.
            drawing: How the graph is drawn, as for `tbscope.add_graph`.
        Raises:
            ArgumentError: One of them is none.
        """
        super().__init__()
        self.graph: Graph | None = None
        self._order = Order(
            logdir,
            tag=tag,
            run_name=run_name,
            backward=backward,
            overlays=overlays,
            drawing=drawing,
        )
        self._begun = False
