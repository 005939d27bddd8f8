"""Regions: the nodes of a scope and below it, what enters it and what leaves it.

Whoever asks the same graph more than once keeps a `Regions`, which remembers its answers
until the graph is changed. The kinds of nodes and the climbs along scopes, on which the
regions stand, are handed on from here.
"""

from tbscope.ir.climbs import (
    Inherited,
    Nearest,
    add_with_above,
    inside_out,
    upward,
    with_above,
)
from tbscope.ir.graph import Call, Graph, Node, Value
from tbscope.ir.nodes import OPERATIONS, OWNED, STATE
from tbscope.ir.scopes import Scope

__all__ = [
    "OPERATIONS",
    "OWNED",
    "STATE",
    "Inherited",
    "Nearest",
    "Regions",
    "add_with_above",
    "inside_out",
    "upward",
    "with_above",
]


class Regions:
    """The regions of one graph, as long as nobody changes it.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._own: dict[Scope | None, list[Node]] | None = None
        self._children: dict[Scope | None, list[Scope]] | None = None
        self._calls: dict[Scope, Call] | None = None
        self._called: Nearest[Call] | None = None
        self._readers: dict[Value, list[Node]] | None = None

    def nodes(self, scope: Scope | None) -> list[Node]:
        """The nodes that stand in a scope itself, in order; those of the top level for None."""
        if self._own is None:
            self._own = {}
            for node in self._graph.nodes:
                self._own.setdefault(node.scope, []).append(node)
        return self._own.get(scope, [])

    def children(self, scope: Scope | None) -> list[Scope]:
        """The scopes right in a scope, in the order in which they came."""
        if self._children is None:
            self._children = {}
            for inner in self._graph.scopes():
                self._children.setdefault(inner.parent, []).append(inner)
        return self._children.get(scope, [])

    def below(self, scope: Scope) -> list[Node]:
        """The nodes that stand in a scope or anywhere below it, scope by scope."""
        found: list[Node] = []
        pending = [scope]
        while pending:
            inner = pending.pop()
            found += self.nodes(inner)
            pending += reversed(self.children(inner))
        return found

    def call_of(self, scope: Scope) -> Call | None:
        """The first call that ran in a scope; None where none did."""
        if self._calls is None:
            self._calls = {call.scope: call for call in reversed(self._graph.calls)}
        return self._calls.get(scope)

    def call_around(self, scope: Scope | None) -> Call | None:
        """The call whose scope this one is, else that of the innermost call around it."""
        if self._called is None:
            self._called = Nearest(self.call_of)
        return self._called(scope)

    def readers(self, value: Value) -> list[Node]:
        """The nodes that read a value, in order, each once."""
        if self._readers is None:
            self._readers = {}
            for node in self._graph.nodes:
                for read in dict.fromkeys(node.inputs):
                    self._readers.setdefault(read, []).append(node)
        return self._readers.get(value, [])

    def entering(self, scope: Scope) -> list[Value]:
        """The values from outside that are read in a scope or below it, in order, each once.

        What the scope's own parameters, buffers and constants hold is not outside.
        """
        nodes = self.below(scope)
        inside = set(nodes)
        read = (value for node in nodes for value in node.inputs)
        return [value for value in dict.fromkeys(read) if value.producer not in inside]

    def leaving(self, scope: Scope) -> list[Value]:
        """The values made in a scope or below it that are read outside, or are outputs."""
        nodes = self.below(scope)
        inside = set(nodes)
        ends = {output.value for output in self._graph.outputs}
        return [
            value
            for node in nodes
            for value in node.outputs
            if value in ends or any(reader not in inside for reader in self.readers(value))
        ]
