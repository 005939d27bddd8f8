"""Ways up: methods of a graph whose makers stand on higher floors.

The graph names its homes here and loads each one when it is first called, so that no
import of this floor leads up: one that did would join all floors in one cycle. Nothing
else in tbscope is loaded by its name.
"""

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any, Protocol

__all__ = ["WAYS_UP", "Functions", "Table", "way_up"]

WAYS_UP = {
    "Graph.summary": ("tbscope.analysis.summary", "Summary"),
    "Graph.functions": ("tbscope.functions.functions", "Functions"),
    "Graph.save": ("tbscope.saving.save", "save_graph"),
    "Graph._repr_html_": ("tbscope.saving.html", "graph_to_frame"),
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


class Functions(Protocol):
    """The definitions of a graph's calls, as `tbscope.Functions` has them.

    Attributes:
        main: What stands outside of all calls.
    """

    main: Any

    def use(self, call: Any) -> Any:
        """Return the use that a call is."""

    def find(self, name: str) -> Any:
        """Return the definition with a name."""

    def __getitem__(self, index: int) -> Any:
        """Return the definition at a place."""

    def __len__(self) -> int:
        """Return how many there are."""

    def __iter__(self) -> Iterator[Any]:
        """Return them, each after those that it uses."""


@cache
def way_up(method: str) -> Any:
    """Return what a method of the graph calls, loaded the first time."""
    module, name = WAYS_UP[method]
    return getattr(import_module(module), name)
