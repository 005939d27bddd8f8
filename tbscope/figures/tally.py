"""Tallies: how many operations and modules of each kind a graph has, as plain rows."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from tbscope.figures.columns import Row
from tbscope.figures.costs import Costs, node_costs
from tbscope.figures.summary import Summary, costs_row
from tbscope.ir.graph import Graph

__all__ = ["tally"]

# These are in no row of an operation, nor in a tally's totals.
_LEFT_OUT = ("profile", "uncounted", "reasons", "tied")


def tally(graph: Graph, summary: Summary) -> dict[str, Any]:
    """Count the nodes, calls, operations and classes of a graph.

    Args:
        graph: A graph as it was recorded.
        summary: Its summary.
    Returns:
        Plain data: the number of `nodes` of each kind (leaf modules are "op"), of `calls`, and the
        `depth` of modules in each other; the `totals`; a row for each of the `ops` and `classes`,
        the most frequent first.
    """
    costs: dict[str, Costs] = {}
    counts: Counter[str] = Counter()
    for node, cost in node_costs(graph).items():
        counts[node.op] += 1
        costs.setdefault(node.op, Costs()).add(cost)
    modules = [row for row in summary.rows if row["class"]]
    ops = [{"op": op, "count": counts[op], **_plain(costs_row(costs[op]))} for op in costs]
    return {
        "nodes": Counter("op" if node.kind == "module" else node.kind for node in graph.nodes),
        "calls": len(graph.calls),
        "depth": 1 + max((row["depth"] for row in modules), default=-1),
        "totals": _plain(summary.totals),
        "ops": sorted(ops, key=lambda row: (-row["count"], row["op"])),
        "classes": _classes(modules),
    }


def _classes(modules: Iterable[Row]) -> list[Row]:
    classes: dict[str, Row] = {}
    for row in modules:
        name = row["class"]
        new = {"class": name, "modules": 0, "calls": 0, "own_parameters": 0}
        one = classes.setdefault(name, new)
        one["modules"] += 1
        one["calls"] += row["calls"]
        one["own_parameters"] += row["own_parameters"]
    return sorted(classes.values(), key=lambda one: (-one["modules"], one["class"]))


def _plain(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in _LEFT_OUT}
