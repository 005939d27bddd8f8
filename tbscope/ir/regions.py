"""Regions: the nodes of a scope and below it, what enters it and what leaves it.

Here alone scopes are climbed and kinds of nodes told apart. Whoever asks the same graph
more than once keeps a `Regions`, which remembers its answers until the graph is changed.
"""

from collections.abc import Callable, Iterable, Iterator, MutableSet
from typing import Generic, TypeVar

from tbscope.ir.graph import Call, Graph, Node, Value
from tbscope.ir.scopes import Scope

__all__ = ["OPERATIONS", "OWNED", "Nearest", "Regions", "add_with_above", "inside_out"]

OPERATIONS = frozenset({"op", "module"})
"""The kinds of nodes that run something: operations, and leaf modules drawn as one."""

OWNED = frozenset({"parameter", "buffer", "constant"})
"""The kinds of nodes that hold a tensor which was there before: sources, but for inputs."""

_Found = TypeVar("_Found")


class Nearest(Generic[_Found]):
    """What is known of the innermost scope, of one and those around it, that tells something.

    Each scope is asked once, so a graph costs as many questions as it has scopes, however
    deep they stand in each other.

    Args:
        tell: What a scope tells; None where it tells nothing, and the scope around it is asked.
        top: What is told where no scope tells anything.
    """

    def __init__(
        self, tell: Callable[[Scope], _Found | None], *, top: _Found | None = None
    ) -> None:
        self._tell = tell
        self._known: dict[Scope | None, _Found | None] = {None: top}

    def __call__(self, scope: Scope | None) -> _Found | None:
        """What the innermost scope tells of this one and those around it."""
        known = self._known
        if scope in known:
            return known[scope]
        pending: list[Scope] = []
        found: _Found | None = None
        while scope is not None and scope not in known:
            pending.append(scope)
            found = self._tell(scope)
            if found is not None:
                break
            scope = scope.parent
        else:
            found = known[scope]
        for below in pending:
            known[below] = found
        return found


def add_with_above(scope: Scope | None, found: MutableSet[Scope]) -> None:
    """Add a scope and all around it to a set that already holds, with any, all around it."""
    while scope is not None and scope not in found:
        found.add(scope)
        scope = scope.parent


def inside_out(scopes: Iterable[Scope]) -> Iterator[tuple[Scope, Scope]]:
    """Each scope that stands in another one, with that one, the innermost first.

    Args:
        scopes: Parents first, as `Graph.scopes` has them.
    """
    for scope in reversed(list(scopes)):
        if scope.parent is not None:
            yield scope, scope.parent


class Regions:
    """The regions of one graph, as long as nobody changes it.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._own: dict[Scope | None, list[Node]] | None = None
        self._children: dict[Scope | None, list[Scope]] | None = None
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

    def call_around(self, scope: Scope | None) -> Call | None:
        """The call whose scope this one is, else that of the innermost call around it."""
        if self._called is None:
            calls = {call.scope: call for call in self._graph.calls}
            self._called = Nearest(calls.get)
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
