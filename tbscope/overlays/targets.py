"""Targets: finds the node or scope that each key of an overlay's numbers refers to."""

from typing import TypeAlias

from tbscope.errors import ArgumentError
from tbscope.ir.graph import Call, Graph, Node
from tbscope.ir.scopes import Scope
from tbscope.overlays.parameters import held_parameters
from tbscope.words import shown

__all__ = ["Key", "Targets"]

Key: TypeAlias = str | Node | Call | Scope
"""What a number may be given for: a name as for `Graph.find`, or the thing itself."""


class Targets:
    """Finds the nodes and scopes that keys refer to in a graph, each as fast as the next."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._named: dict[str, Node | Scope] = {}
        named = self._named
        # The order in which `Graph.find` looks.
        for call in graph.calls:
            if call.qualified_name is not None:
                named.setdefault(call.qualified_name, call.scope)
            named.setdefault(call.scope.path, call.scope)
        for node in graph.nodes:
            named.setdefault(node.name, node)
        scopes = list(graph.scopes())
        for scope in scopes:
            named.setdefault(scope.path, scope)
            if scope.qualified_name is not None:
                named.setdefault(scope.qualified_name, scope)
        for held in held_parameters(graph):
            named.setdefault(held.name, held.place)
        self._nodes = set(graph.nodes)
        self._scopes = set(scopes)

    def find(self, key: object, tag: str) -> Node | Scope:
        """Return the node or scope that a key refers to."""
        if type(key) is str:
            found = self._named.get(key)
            if found is None:
                # It raises, with the names that are near.
                self._graph.find(key)
            assert found is not None
            return found
        if isinstance(key, Call):
            key = key.scope
        if isinstance(key, Node | Scope):
            if key in self._nodes or key in self._scopes:
                return key
            why = f"it is none of the graph of {self._graph.name}"
        else:
            why = "a number is given for a name, a Node, a Call or a Scope"
        raise ArgumentError(
            f"the overlay {shown(tag)} has a number for {shown(key)}",
            why=why,
            fix="take what graph.find, graph.nodes and graph.calls of this very graph give",
        )
