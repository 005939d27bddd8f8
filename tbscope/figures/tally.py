"""Tallies: how many operations and modules of each kind a graph has, with their figures."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tbscope.figures.costs import Costs, node_costs
from tbscope.figures.summary.table import Summary
from tbscope.ir.graph import Graph

__all__ = ["ClassTally", "OpTally", "Tally", "tally"]


@dataclass(slots=True)
class OpTally:
    """All operations of one name.

    Attributes:
        op: The operation (`linear`).
        count: How many there are.
        costs: What they cost together.
    """

    op: str
    count: int = 0
    costs: Costs = field(default_factory=Costs)


@dataclass(slots=True)
class ClassTally:
    """All modules of one class.

    Attributes:
        name: The class (`Linear`).
        modules: How many modules there are.
        calls: How often they were called.
        parameters: Numbers in the parameters of their own, without their children's; None where
            the graph does not tell.
    """

    name: str
    modules: int = 0
    calls: int = 0
    parameters: int | None = None


@dataclass(slots=True)
class Tally:
    """What a graph holds, counted.

    Attributes:
        nodes: The nodes of each kind; those that run something are "op", as leaf modules are.
        ops: The operations, those first of which there are most.
        classes: The classes of the modules, those first of which there are most.
        calls: How many module calls there are.
        depth: How many modules stand in each other, the model among them.
        totals: The figures of the whole, as `Summary.totals` tells them.
        footer: The same, as titles and texts.
    """

    nodes: dict[str, int]
    ops: list[OpTally]
    classes: list[ClassTally]
    calls: int
    depth: int
    totals: dict[str, Any]
    footer: list[tuple[str, str]]


def tally(graph: Graph) -> Tally:
    """Count what a graph holds.

    Args:
        graph: A graph as it was recorded.
    """
    summary = Summary(graph, fold=False)
    ops: dict[str, OpTally] = {}
    for node, costs in node_costs(graph).items():
        one = ops.setdefault(node.op, OpTally(node.op))
        one.count += 1
        one.costs.add(costs)
    modules = [row for row in summary.rows if row["class"]]
    return Tally(
        dict(Counter("op" if node.kind == "module" else node.kind for node in graph.nodes)),
        sorted(ops.values(), key=lambda one: (-one.count, one.op)),
        _classes(modules),
        len(graph.calls),
        1 + max((row["depth"] for row in modules), default=-1),
        summary.totals,
        summary.footer,
    )


def _classes(rows: Iterable[dict[str, Any]]) -> list[ClassTally]:
    classes: dict[str, ClassTally] = {}
    for row in rows:
        one = classes.setdefault(row["class"], ClassTally(row["class"]))
        one.modules += 1
        one.calls += row["calls"]
        if row["own_parameters"] is not None:
            one.parameters = (one.parameters or 0) + row["own_parameters"]
    return sorted(classes.values(), key=lambda one: (-one.modules, one.name))
