"""Regions: what enters the scope of a call, and what leaves it.

The kinds of nodes and the climbs along scopes, on which the regions stand, are handed on from here.
"""

from collections.abc import Callable, Iterable, Set
from typing import NamedTuple

from tbscope.ir.graph import Argument, Call, Graph, Node, Value
from tbscope.ir.nodes import OPERATIONS, OWNED, STATE, NodeKind
from tbscope.ir.scopes import (
    Inherited,
    Nearest,
    Scope,
    add_with_above,
    inside_out,
    upward,
    with_above,
)

__all__ = [
    "OPERATIONS",
    "OWNED",
    "STATE",
    "Crossing",
    "Inherited",
    "Nearest",
    "add_with_above",
    "crossings",
    "describe_calls",
    "first_calls",
    "inside_out",
    "read_only_by",
    "upward",
    "with_above",
]


def read_only_by(graph: Graph, nodes: Set[Node]) -> set[Node]:
    """Return the parameters, buffers and constants that nothing reads but some nodes."""
    found = {value.producer for node in nodes for value in node.inputs}
    found = {node for node in found if node.kind in OWNED}
    for node in graph.nodes if found else ():
        if node not in nodes:
            found.difference_update([value.producer for value in node.inputs])
    return found.difference([output.value.producer for output in graph.outputs])


class Crossing(NamedTuple):
    """The values that cross the border of the scope of a call, each once.

    Attributes:
        entering: Those from outside that are read in it, in the order in which they are read.
        leaving: Those made in it that are read outside, or are outputs, in the order of the graph.
    """

    entering: list[Value]
    leaving: list[Value]


def first_calls(graph: Graph) -> dict[Scope, Call]:
    """Return the first call that ran in each scope."""
    return {call.scope: call for call in reversed(graph.calls)}


def crossings(
    graph: Graph, around: Callable[[Scope], Scope | None] | None = None
) -> dict[Scope, Crossing]:
    """Return for the scope of each call what enters and what leaves it, in one walk over all edges.

    Args:
        graph: The graph.
        around: The scope in which a scope runs; None where that is the one above it.
    """
    entering: dict[Scope, dict[Value, None]] = {call.scope: {} for call in graph.calls}
    leaving: dict[Scope, dict[Value, None]] = {call.scope: {} for call in graph.calls}
    chains: dict[Scope | None, tuple[Scope, ...]] = {None: ()}

    def chain(scope: Scope | None) -> tuple[Scope, ...]:
        """Return the scopes of the calls around a node, outermost first."""
        known = chains.get(scope)
        if known is None:
            assert scope is not None
            above = chain(scope.parent if around is None else around(scope))
            known = chains[scope] = (*above, scope) if scope in entering else above
        return known

    def cross(value: Value, reader: tuple[Scope, ...]) -> None:
        giver = chain(value.producer.scope)
        if giver is not reader:
            for scope in giver:
                if scope not in reader:
                    leaving[scope][value] = None
            for scope in reader:
                if scope not in giver:
                    entering[scope][value] = None

    for node in graph.nodes:
        here = chain(node.scope)
        for value in node.inputs:
            cross(value, here)
    for output in graph.outputs:
        cross(output.value, ())
    order = {node: at for at, node in enumerate(graph.nodes)}
    return {
        scope: Crossing(
            [*entered],
            sorted(leaving[scope], key=lambda value: (order[value.producer], value.index)),
        )
        for scope, entered in entering.items()
    }


def describe_calls(
    graph: Graph,
    calls: Iterable[Call],
    around: Callable[[Scope], Scope | None] | None = None,
    *,
    owned: frozenset[NodeKind] = OWNED,
    in_order: bool = False,
) -> None:
    """Fill in the arguments and results of calls: what enters and leaves the scope of each.

    Args:
        graph: The graph.
        calls: The calls.
        around: As for `crossings`.
        owned: The kinds of nodes of which values are no arguments.
        in_order: Whether arguments have the order of the graph, and not that of reading.
    """
    crossed = crossings(graph, around)
    order = {node: at for at, node in enumerate(graph.nodes)} if in_order else {}
    for call in calls:
        entering, leaving = (
            [value for value in values if value.producer.kind not in owned]
            for values in crossed[call.scope]
        )
        if in_order:
            entering.sort(key=lambda value: (order[value.producer], value.index))
        call.arguments = [Argument(None, value) for value in entering]
        call.results = leaving[0] if len(leaving) == 1 else tuple(leaving) or None
