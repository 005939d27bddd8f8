"""Ways up: methods of a graph or a node for what is made of them, and so stands above them.

The graph names its homes here and loads each one when it is first called, so that no
import of this floor leads up. Nothing else in tbscope is loaded by its name.
"""

from functools import cache
from importlib import import_module
from typing import Any, Protocol

__all__ = ["WAYS_UP", "Table", "way_up"]

WAYS_UP = {
    "Graph.summary": ("tbscope.figures.summary.table", "Summary"),
    "Graph.__str__": ("tbscope.ir.text", "graph_to_text"),
    "Node.__str__": ("tbscope.ir.text", "node_to_text"),
}
"""For each such method the module that has it, and the name in that."""


class Table(Protocol):
    """The table of a graph's modules, as `tbscope.Summary` is one.

    Attributes:
        rows: For each module a mapping from names to plain numbers and words.
        totals: The figures of the whole.
    """

    rows: list[dict[str, Any]]
    totals: dict[str, Any]

    def show(self) -> None:
        """Print it."""


@cache
def way_up(method: str) -> Any:
    """Return what a method of the graph calls, loaded the first time."""
    module, name = WAYS_UP[method]
    return getattr(import_module(module), name)
