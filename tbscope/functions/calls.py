"""The tree of calls: which calls stand in which, and what stands directly in each, in order.

A call is known by its scope; the graph itself, around all calls, by None. Inputs, parameters,
buffers and constants stand in no call: they are state, which calls are given.
"""

from tbscope.ir.graph import Call, Graph, Node
from tbscope.ir.nodes import OPERATIONS
from tbscope.ir.scopes import Nearest, Scope

__all__ = ["CallTree"]


class CallTree:
    """The calls of one graph.

    Args:
        graph: The graph; it stays as it is.

    Attributes:
        calls: The calls that ran in each scope of a module, in the order in which they began.
        parts: For each call, and for the graph itself (None), the operations and the scopes of
            the calls that stand right in it, in order.
        place: The place of each operation and of each call among the parts around it.
    """

    def __init__(self, graph: Graph) -> None:
        self.calls: dict[Scope, list[Call]] = {}
        for call in graph.calls:
            self.calls.setdefault(call.scope, []).append(call)
        self._call_of = Nearest(lambda scope: scope if scope in self.calls else None)
        self.parts: dict[Scope | None, list[Node | Scope]] = {None: []}
        self.parts.update((scope, []) for scope in graph.scopes() if scope in self.calls)
        self._add_parts(graph)
        self.place: dict[Node | Scope, int] = {
            part: at for parts in self.parts.values() for at, part in enumerate(parts)
        }
        # The numbers of a call and of the last one in it, where parents come before children.
        self._spans: dict[Scope | None, tuple[int, int]] = {}
        self._number()

    def call_of(self, node: Node) -> Scope | None:
        """Return the innermost call in which a node stands."""
        return self._call_of(node.scope)

    def around(self, scope: Scope) -> Scope | None:
        """Return the innermost call around a call."""
        return self._call_of(scope.parent)

    def is_in(self, node: Node, scope: Scope | None) -> bool:
        """Tell whether a node is an operation that stands in a call or below it."""
        if node not in self.place:
            return False
        first, last = self._spans[scope]
        return first <= self._spans[self.call_of(node)][0] <= last

    def way(self, node: Node, scope: Scope | None) -> tuple[int, ...]:
        """Return the places on the way down from a call to an operation below it."""
        return (*map(self.place.__getitem__, self.calls_down_to(node, scope)), self.place[node])

    def calls_down_to(self, node: Node, scope: Scope | None) -> list[Scope]:
        """Return the calls between one, or the graph, and an operation, the outermost first."""
        found: list[Scope] = []
        inner = self.call_of(node)
        while inner is not scope:
            assert inner is not None, "the operation stands below the call"
            found.append(inner)
            inner = self.around(inner)
        return found[::-1]

    def inside_out(self) -> list[Scope | None]:
        """Return the calls, each after those in it; the graph itself comes last."""
        return list(reversed(self._spans))

    def _add_parts(self, graph: Graph) -> None:
        """Put each operation and each call into the call around it, in the order of the run.

        A call begins where its first operation does; one that runs nothing, where the next does.
        """
        last = len(self.calls)
        begins: dict[Node | Scope, tuple[int, int]] = {}
        for at, node in enumerate(graph.nodes):
            if node.kind in OPERATIONS:
                stands = self.call_of(node)
                self.parts[stands].append(node)
                begins[node] = at, last
                while stands is not None and stands not in begins:
                    begins[stands] = at, 0
                    stands = self.around(stands)
        following = len(graph.nodes)
        with_calls: set[Scope | None] = set()
        for order, scope in reversed(list(enumerate(self.calls))):
            following, _ = begins.get(scope, (following, 0))
            begins[scope] = following, order
            around = self.around(scope)
            self.parts[around].append(scope)
            with_calls.add(around)
        for around in with_calls:
            self.parts[around].sort(key=begins.__getitem__)

    def _number(self) -> None:
        inner: dict[Scope | None, list[Scope]] = {}
        for scope in self.calls:
            inner.setdefault(self.around(scope), []).append(scope)
        order: list[Scope | None] = []
        pending: list[Scope | None] = [None]
        while pending:
            stands = pending.pop()
            order.append(stands)
            pending += inner.get(stands, ())
        lasts = {stands: number for number, stands in enumerate(order)}
        for stands in reversed(order):
            if stands is not None:
                around = self.around(stands)
                lasts[around] = max(lasts[around], lasts[stands])
        self._spans = {stands: (number, lasts[stands]) for number, stands in enumerate(order)}
