"""Late methods: methods of a graph that higher packages implement.

The table names the module of each method, and the first call imports it. An import statement here
would close a cycle of packages, since all of them import this one; and a method that the higher
module adds when it is imported would be missing from a graph whose user imports nothing else.
Nothing else in tbscope is imported by a name in a string.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Protocol

WAYS_UP = {
    "Graph.summary": ("tbscope.analysis.summary", "Summary"),
    "Graph.functions": ("tbscope.functions.functions", "Functions"),
    "Graph.verify": ("tbscope.ir.invariants", "check_invariants"),
    "Graph.save": ("tbscope.saving.save", "save_graph"),
    "Graph._repr_html_": ("tbscope.saving.html", "graph_to_frame"),
}
"""The module and the object in it that implement each late method."""


class SummaryProtocol(Protocol):
    """The table of a graph's modules; `tbscope.analysis.summary.Summary` implements it.

    Attributes:
        rows: For each module a mapping from column names to plain numbers and texts.
        totals: The figures of the whole model.
    """

    rows: list[dict[str, Any]]
    totals: dict[str, Any]

    def show(self) -> None:
        """Print the table."""


class FunctionsProtocol(Protocol):
    """The definitions of a graph's calls; `tbscope.functions.functions.Functions` implements it.

    Attributes:
        main: The definition of everything outside of all calls.
        uses: The use of each call by its scope.
    """

    main: object
    uses: Mapping[Any, Any]

    def find(self, name: str) -> Any:
        """Return the definition with a name."""

    def __getitem__(self, index: int) -> Any:
        """Return the definition at an index."""

    def __len__(self) -> int:
        """Return the number of definitions."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the definitions, each after the definitions that it uses."""


@cache
def late_method(method: str) -> Any:
    """Return the implementation of a late method, and import its module at the first call."""
    module, name = WAYS_UP[method]
    return getattr(import_module(module), name)
