"""Inputs and outputs of scopes: the values that enter the scope of a call, and those that leave it.

The node kinds and the functions for ancestors that users of this file need are re-exported here.
"""

from collections.abc import Callable, Iterable, Set
from functools import cache
from typing import NamedTuple

from tbscope.ir.graph import Argument, Call, Graph, Node, Value
from tbscope.ir.nodes import OPERATIONS, OWNED, SOURCES, STATE, NodeKind
from tbscope.ir.scopes import (
    InheritedProperty,
    NearestProperty,
    Scope,
    add_with_ancestors,
    children_first,
    self_and_ancestors,
    with_above,
)

__all__ = [
    "OPERATIONS",
    "OWNED",
    "SOURCES",
    "STATE",
    "InheritedProperty",
    "NearestProperty",
    "ScopeIO",
    "add_with_ancestors",
    "children_first",
    "describe_calls",
    "first_calls",
    "read_only_by",
    "scope_inputs_outputs",
    "self_and_ancestors",
    "with_above",
]


def read_only_by(graph: Graph, nodes: Set[Node], kinds: frozenset[NodeKind] = OWNED) -> set[Node]:
    """Return the sources of some kinds that are read by these nodes only."""
    sources = {value.producer for node in nodes for value in node.inputs}
    sources = {node for node in sources if node.kind in kinds}
    for node in graph.nodes if sources else ():
        if node not in nodes:
            sources.difference_update([value.producer for value in node.inputs])
    return sources.difference([output.value.producer for output in graph.outputs])


class ScopeIO(NamedTuple):
    """The values that cross the border of a call's scope, each once.

    Attributes:
        entering: Values from outside that nodes inside read, in the order of their first reading.
        leaving: Values from inside that nodes outside read, or that are outputs of the graph, in
            the order of the graph.
    """

    entering: list[Value]
    leaving: list[Value]


def first_calls(graph: Graph) -> dict[Scope, Call]:
    """Return the first call of each scope."""
    return {call.scope: call for call in reversed(graph.calls)}


def scope_inputs_outputs(
    graph: Graph, around: Callable[[Scope], Scope | None] | None = None
) -> dict[Scope, ScopeIO]:
    """Return the entering and leaving values of each call's scope, in one walk over all edges.

    Args:
        graph: The graph.
        around: Returns the scope that encloses a scope; None for `Scope.parent`.
    """
    entering: dict[Scope, dict[Value, None]] = {call.scope: {} for call in graph.calls}
    leaving: dict[Scope, dict[Value, None]] = {call.scope: {} for call in graph.calls}

    @cache
    def chain(scope: Scope | None) -> tuple[Scope, ...]:
        """Return the scopes of the calls that enclose a scope, outermost first."""
        if scope is None:
            return ()
        outer = chain(scope.parent if around is None else around(scope))
        return (*outer, scope) if scope in entering else outer

    def cross(value: Value, reader: tuple[Scope, ...]) -> None:
        source_scopes = chain(value.producer.scope)
        if source_scopes is not reader:
            for scope in source_scopes:
                if scope not in reader:
                    leaving[scope][value] = None
            for scope in reader:
                if scope not in source_scopes:
                    entering[scope][value] = None

    for node in graph.nodes:
        here = chain(node.scope)
        for value in node.inputs:
            cross(value, here)
    for output in graph.outputs:
        cross(output.value, ())
    order = {node: at for at, node in enumerate(graph.nodes)}
    return {
        scope: ScopeIO(
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
    """Set the arguments and results of calls to the values that enter and leave their scopes.

    The caller is set, too, if it is in another module than the call.

    Args:
        graph: The graph.
        calls: The calls.
        around: As for `scope_inputs_outputs`.
        owned: The kinds of nodes whose values are not arguments.
        in_order: Whether arguments have the order of the graph instead of the order of reading.
    """
    crossed = scope_inputs_outputs(graph, around)
    order = {node: at for at, node in enumerate(graph.nodes)} if in_order else {}
    for call in calls:
        entering, leaving = (
            [value for value in values if value.producer.kind not in owned]
            for values in crossed[call.scope]
        )
        if in_order:
            entering.sort(key=lambda value: (order[value.producer], value.index))
        if around is not None:
            holder = call.scope.parent
            while holder is not None and holder.kind == "container":
                holder = holder.parent
            caller = around(call.scope)
            call.caller = None if caller is holder else caller
        call.arguments = [Argument(None, value) for value in entering]
        call.results = leaving[0] if len(leaving) == 1 else tuple(leaving) or None
