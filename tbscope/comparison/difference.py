"""The result of `tbscope.diff`: text, plain data, and a graph to draw."""

import html
from functools import cached_property
from typing import Any

from tbscope.comparison.build_structure import OutlinedGraph
from tbscope.comparison.changes import Change, Comparison
from tbscope.comparison.structure import Outline
from tbscope.comparison.text import TOTALS, comparison_lines, counted, total_lines
from tbscope.comparison.union_graph import union_graph
from tbscope.errors import ArgumentError
from tbscope.ir.graph import Graph

__all__ = ["Difference"]


class Difference:
    """Differences between two models. It is true if they differ: `if tbscope.diff(a, b): ...`.

    Args:
        before: The first graph, or its outline from a lock file.
        after: The second graph, or its outline.
        any_batch_size: Whether the first size of an input may differ.

    Attributes:
        before: Outline of the first graph.
        after: Outline of the second graph.
        changes: Added, removed and changed parts, in the order in which they ran.
        follows: Number of operations whose results change type only because their inputs do.
    """

    def __init__(
        self,
        before: OutlinedGraph | Outline,
        after: OutlinedGraph | Outline,
        *,
        any_batch_size: bool = False,
    ) -> None:
        self._readings = before, after
        self.before = before.outline if isinstance(before, OutlinedGraph) else before
        self.after = after.outline if isinstance(after, OutlinedGraph) else after
        self._comparison = Comparison(self.before, self.after, any_batch_size=any_batch_size)
        self.changes = self._comparison.changes
        self.follows = self._comparison.follows

    def __bool__(self) -> bool:
        return bool(self.changes)

    @property
    def added(self) -> list[Change]:
        """Parts that only the second model has."""
        return [change for change in self.changes if change.fate == "added"]

    @property
    def removed(self) -> list[Change]:
        """Parts that only the first model has."""
        return [change for change in self.changes if change.fate == "removed"]

    @property
    def changed(self) -> list[Change]:
        """Parts that differ between the models."""
        return [change for change in self.changes if change.fate == "changed"]

    @property
    def totals(self) -> dict[str, tuple[int, int]]:
        """Parameters, FLOPs, bytes and counts, before and after."""
        before, after = self.before.totals, self.after.totals
        return {name: (before.get(name, 0), after.get(name, 0)) for name in TOTALS}

    @cached_property
    def graph(self) -> Graph:
        """Union of both graphs; each node is marked with its fate.

        `node.attributes["difference"]` is "added", "removed", "changed" or "same", and
        `color_by="difference"` colours by it, as `writer.add_graph(difference)` does.

        Raises:
            ArgumentError: One of the two is a lock file, which contains no graph.
        """
        before, after = self._readings
        if not isinstance(before, OutlinedGraph) or not isinstance(after, OutlinedGraph):
            raise ArgumentError(
                "a difference from a pin cannot be drawn",
                why="a pin describes a model, and contains no graph of it",
                fix="graph.save('before.json') saves one: tbscope.diff('before.json', after).graph",
            )
        return union_graph(before, after, self._comparison)

    def __str__(self) -> str:
        return "\n".join(line for line, _ in self.lines)

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Lines of the text, each with the name of the first part in it, or "" if there is none."""
        title = self.after.name
        if self.before.name != title:
            title = f"{self.before.name} -> {title}"
        if not self.changes:
            operations = self.after.totals["operations"]
            return [(f"{title}: no difference in {operations:,} operations", "")]
        totals = total_lines(self.before, self.after)
        return [
            (f"{title}: {counted(self.changes)}", ""),
            *comparison_lines(self._comparison),
            *((line, "") for line in totals),
        ]

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def __repr__(self) -> str:
        return f"<Difference of {self.before.name} and {self.after.name}: {len(self.changes)}>"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON, in the form that docs/diff.md describes."""
        return {
            "format": "tbscope difference",
            "version": 1,
            "before": self.before.name,
            "after": self.after.name,
            "differ": bool(self),
            "changes": [change.to_dict() for change in self.changes],
            "follows": self.follows,
            "totals": {name: {"before": a, "after": b} for name, (a, b) in self.totals.items()},
        }
