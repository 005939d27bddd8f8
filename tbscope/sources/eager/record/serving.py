"""Which module a collective serves: what ran in hooks and between modules finds its scope.

Sharded training gathers the parameters of a module while another one runs, and reduces their
gradients once autograd is done with them; stages of a pipeline send and receive outside of every
module. What was handed in, or what is read of it, tells whose it is.
"""

from collections.abc import Callable, Iterable
from itertools import takewhile

from tbscope.ir.graph import Graph, Node, Value
from tbscope.ir.nests import values_in
from tbscope.ir.nodes import STATE
from tbscope.ir.scopes import Phase, Scope, upward

__all__ = ["settle"]

# So far is looked for what a collective serves: gathered parameters lie near.
_FAR = 64
_EMPTY = "empty"
# What waiting is called, by `work.wait()` and by a kernel.
_WAITS = ("wait", "wait_tensor")


def settle(graph: Graph) -> None:
    """Have each collective stand in the scope of the module that it serves.

    Args:
        graph: Changed in place: the scopes of collectives, and of what only leads to them.
    """
    if any(node.collective is not None for node in graph.nodes):
        _Settling(graph).run()


class _Settling:
    """One graph whose collectives find their scopes."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._scopes = {scope.path: scope for scope in graph.scopes()}
        self._readers: dict[Node, list[Node]] = {}
        for node in graph.nodes:
            for other in (*(value.producer for value in node.inputs), *node.control_inputs):
                self._readers.setdefault(other, []).append(node)
        self._calls: dict[Value, Scope] = {}
        for call in graph.calls:
            for argument in call.arguments:
                for value in values_in(argument.nest):
                    self._calls.setdefault(value, call.scope)

    def run(self) -> None:
        for node in self._graph.nodes:
            if node.collective is not None:
                home = self._home(node)
                if home is not None and home is not node.scope:
                    self._move(node, home)

    def _home(self, node: Node) -> Scope | None:
        """Return the scope of what a collective serves; None where it stands well."""
        home = _around(self._owners(node))
        if home is not None:
            home = self._in_phase(home, node)
            stands = home is None or (home is not node.scope and node.scope in {*upward(home)})
            if stands and not self._is_nowhere(node.scope):
                return None
            if home is not None:
                return home
        if not self._is_nowhere(node.scope):
            return None
        return self._around_those(node, self._before) or self._around_those(node, self._after)

    def _is_nowhere(self, scope: Scope | None) -> bool:
        """Tell whether a scope is that of no module: the top level, a whole pass or optimizer."""
        if scope is None or scope.parent is None:
            return scope is None or scope.phase != "forward"
        return scope.phase == "optimizer" and scope.parent.parent is None

    def _owners(self, node: Node) -> list[Scope]:
        """Return the scopes of the parameters, or gradients, that a collective alone is made of."""
        found: list[Scope] = []
        seen: set[Node] = set()
        pending = [*self._before(node)]
        while pending:
            one = pending.pop()
            if one in seen:
                continue
            seen.add(one)
            if one.kind in STATE:
                if one.scope is not None:
                    found.append(one.scope)
            elif "gradient_of" in one.attributes and not self._is_nowhere(one.scope):
                found += [one.scope] if one.scope is not None else []
            elif len(seen) > _FAR or (not one.inputs and not _is_empty(one)):
                return []
            else:
                pending += self._before(one)
        return found

    def _before(self, node: Node) -> Iterable[Node]:
        return (*(value.producer for value in node.inputs), *node.control_inputs)

    def _after(self, node: Node) -> Iterable[Node]:
        return self._readers.get(node, ())

    def _around_those(self, node: Node, lead: Callable[[Node], Iterable[Node]]) -> Scope | None:
        """Return the scope around the nearest nodes of modules, on the ways that lead on."""
        found: list[Scope] = []
        seen = {node}
        pending = [node]
        while pending:
            one = pending.pop()
            if lead == self._after:
                found += [self._calls[value] for value in one.outputs if value in self._calls]
            for other in lead(one):
                if other in seen or other.kind == "constant":
                    continue
                seen.add(other)
                if other.scope is not None and not self._is_nowhere(other.scope):
                    found.append(other.scope)
                elif len(seen) <= _FAR:
                    pending.append(other)
        phases = {_phase(scope) for scope in found}
        if len(phases) > 1 or (node.scope is not None and phases):
            # What is kept for the backward pass is read there, too.
            phase = node.phase if node.scope is not None else "forward"
            found = [scope for scope in found if _phase(scope) == phase]
        return _around(found)

    def _in_phase(self, home: Scope, node: Node) -> Scope | None:
        """Return the scope that mirrors one of the forward pass in the phase of a node."""
        if node.phase == _phase(home) or node.scope is None:
            return home
        root = [*upward(node.scope)][-1]
        for scope in upward(home):
            mirror = self._scopes.get(f"{root.path}/{scope.path}")
            if mirror is not None:
                return mirror
        return None

    def _move(self, node: Node, home: Scope) -> None:
        """Move a collective, with what stands beside it and only leads to it."""
        scope = node.scope
        # Right in the box of a pass stands what its end has found, too: the bucket of gradients.
        beside = (scope, None if scope is None else [*upward(home)][-1])
        moved = {node}
        node.scope = home
        if scope is None:
            node.phase = _phase(home)
        pending = [*self._before(node), *self._after(node)]
        while pending:
            one = pending.pop()
            if one in moved or one.kind != "op" or one.scope not in beside or one.collective:
                continue
            if "gradient_of" in one.attributes:
                # It is the module's own.
                continue
            if one.role is None and not moved.issuperset(self._after(one)) and not _is_wait(one):
                continue
            if (one.role == "view" or _is_wait(one)) and moved.isdisjoint(self._before(one)):
                continue
            moved.add(one)
            one.scope, one.phase = home, node.phase
            pending += [*self._before(one), *self._after(one)]


def _is_empty(node: Node) -> bool:
    """Tell whether a node gives memory with nothing in it."""
    return bool(node.kernels) and all(_EMPTY in kernel for kernel in node.kernels)


def _is_wait(node: Node) -> bool:
    """Tell whether a node only waits for what a collective gives."""
    return node.op in _WAITS


def _phase(scope: Scope) -> Phase:
    return [*upward(scope)][-1].phase


def _around(scopes: list[Scope]) -> Scope | None:
    """Return the innermost scope that is around all of some; None for none."""
    way: list[Scope] = []
    for number, other in enumerate(dict.fromkeys(scopes)):
        path = [*upward(other)][::-1]
        same = takewhile(lambda pair: pair[0] is pair[1], zip(way, path, strict=False))
        way = [one for one, _ in same] if number else path
    return way[-1] if way else None
