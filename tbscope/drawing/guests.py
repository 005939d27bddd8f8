"""Guests: calls of modules that stand in the box of the module that called them.

A module may call one that it does not hold: an activation that several blocks share, a memory
that each layer is given. The scope of such a call is where the module is held; drawn there, the
blocks that share it would point at each other. So where such a call leads out of the box from
which it was called and back into it, it stands there, under the name by which it is held.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from tbscope.ir.graph import Graph, Node
from tbscope.ir.regions import OWNED, Inherited, Nearest, upward
from tbscope.ir.runs import Run
from tbscope.ir.scopes import Scope, ScopePart

__all__ = ["Guests", "find_guests"]

_NONE: tuple[Scope, ...] = ()
# What may have called a module.
_WITH_CALLS = frozenset({"module", "hand"})


@dataclass(slots=True)
class Guests:
    """The calls that stand in the box of who called them.

    Attributes:
        hosts: The scope of the module that called each.
        parts: What each prints as there, counted from 0.
    """

    hosts: dict[Scope, Scope] = field(default_factory=dict)
    parts: dict[Scope, ScopePart] = field(default_factory=dict)


def find_guests(graph: Graph) -> Guests:
    """Find the calls of modules that stand in the box of who called them.

    Args:
        graph: The graph as it is drawn, with leaf modules as nodes.
    """
    guests = Guests()
    callers = dict(_borrowed(graph))
    if not callers:
        return guests
    numbers: Counter[tuple[Scope, str, str | None]] = Counter()
    for scope in _Neighbours(graph, callers).all_moved():
        host = guests.hosts[scope] = callers[scope]
        key = host, scope.part.label, scope.part.attribute
        guests.parts[scope] = replace(scope.part, index=numbers[key])
        numbers[key] += 1
    _add_gradients(graph, guests)
    return guests


def _add_gradients(graph: Graph, guests: Guests) -> None:
    """Have the gradients of a call stand as it does: their scope is called like its own, in one."""
    of_path = {scope.parts: scope for scope in graph.scopes()}
    calls = {scope.parts: (scope, host) for scope, host in guests.hosts.items()}
    for path, scope in of_path.items():
        call, host = calls.get(path[1:], (None, None))
        if call is not None and host is not None and path[:1] + host.parts in of_path:
            guests.hosts[scope] = of_path[path[:1] + host.parts]
            guests.parts[scope] = guests.parts[call]


def _borrowed(graph: Graph) -> Iterator[tuple[Scope, Scope]]:
    """Yield each call of a module from inside of another one that does not hold it, and that one.

    The order is that of the calls.
    """
    homes = _homes(graph)
    if homes:
        for call in graph.calls:
            home = homes.get(_outermost(call.run))
            if call.number or home is None or home is call.scope.parent:
                continue
            if home not in upward(call.scope) and call.scope not in upward(home):
                yield call.scope, home


def _homes(graph: Graph) -> dict[Run | None, Scope]:
    """Return for each function that no other one called the module in whose call it ran."""
    homes: dict[Run | None, Scope] = {}
    last: Run | None = None
    for node in graph.nodes:
        run = node.run
        if run is not last and run is not None and node.kind == "op":
            last = run
            # The kernels of an operation stand in a box of their own.
            home = next((one for one in upward(node.scope) if one.kind in _WITH_CALLS), None)
            if home is not None:
                homes.setdefault(_outermost(run), home)
    # Of what runs no operation itself, the innermost that holds what it calls.
    working = set(homes)
    called = {(_outermost(call.run), call.scope) for call in graph.calls}
    for call in graph.calls:
        run, holder = _outermost(call.run), _holder(call.scope)
        if run is None or run in working or holder is None or (run, holder) in called:
            continue
        known = homes.setdefault(run, holder)
        homes[run] = holder if known in upward(holder) else known
    return homes


def _outermost(run: Run | None) -> Run | None:
    while run is not None and run.around is not None:
        run = run.around
    return run


def _holder(scope: Scope) -> Scope | None:
    """Return what is around a scope and the lists that hold it."""
    return next((one for one in scope.ancestors() if one.kind != "container"), None)


class _Neighbours:
    """What borrowed calls read, and what reads them.

    Args:
        graph: The graph.
        callers: The scope from which each was called.
    """

    def __init__(self, graph: Graph, callers: Mapping[Scope, Scope]) -> None:
        self._callers = callers
        self._boxes = {scope: _box_around(scope, caller) for scope, caller in callers.items()}
        # The borrowed calls around each scope, the outermost first.
        self._borrowed = Inherited[tuple[Scope, ...]](self._tell, top=_NONE)
        # Whether each reads something there, and something elsewhere; and who reads it.
        self._reads: dict[Scope, set[bool]] = {scope: set() for scope in callers}
        self._feeds: dict[Scope, set[bool]] = {scope: set() for scope in callers}
        called = {call.scope for call in graph.calls}
        is_called = Nearest[bool](lambda scope: scope in called or None)
        for output in graph.outputs:
            for scope in self._borrowed(output.value.producer.scope):
                self._feeds[scope].add(False)
        for node in graph.nodes:
            # What computes gradients is in no call; what is run again for them is.
            if node.kind not in OWNED and (node.phase == "forward" or is_called(node.scope)):
                self._note(node)

    def all_moved(self) -> list[Scope]:
        """Return the calls that stand in the box of their caller.

        Where one call of a module does, so do all that read something from such a box, and those
        by the same caller that feed nothing else: their parameters stand there.
        """
        callers = self._callers
        leading = [scope for scope in callers if self._leads_back(scope)]
        moved = {_module_of(scope) for scope in leading}
        there = {(_module_of(scope), callers[scope]) for scope in leading}
        return [
            scope
            for scope in callers
            if self._leads_back(scope)
            or (_module_of(scope) in moved and True in self._reads[scope])
            or ((_module_of(scope), callers[scope]) in there and self._feeds[scope] == {True})
        ]

    def _leads_back(self, scope: Scope) -> bool:
        """Tell whether a call, or the box in which it is held, would be on a cycle."""
        if not self._reads[scope]:
            return self._feeds[scope] == {True}
        held_right_there = self._boxes[scope].parent is scope.parent
        return True in self._reads[scope] and (not held_right_there or True in self._feeds[scope])

    def _tell(self, scope: Scope, above: tuple[Scope, ...]) -> tuple[Scope, ...]:
        return (*above, scope) if scope in self._callers else above

    def _note(self, node: Node) -> None:
        here = self._borrowed(node.scope)
        for source in (*[value.producer for value in node.inputs], *node.control_inputs):
            there = self._borrowed(source.scope)
            if source.kind in OWNED or here == there:
                continue
            for scope in here:
                if scope not in there:
                    self._reads[scope].add(self._stands_in(source, self._boxes[scope]))
            for scope in there:
                if scope not in here:
                    self._feeds[scope].add(self._stands_in(node, self._boxes[scope]))

    def _stands_in(self, node: Node, box: Scope) -> bool:
        """Tell whether a node is in a box, or in what was called from there."""
        borrowed = self._borrowed(node.scope)
        return box in upward(self._callers[borrowed[0]] if borrowed else node.scope)


def _module_of(scope: Scope) -> tuple[Scope | None, str, str | None]:
    return scope.parent, scope.part.label, scope.part.attribute


def _box_around(scope: Scope, caller: Scope) -> Scope:
    """Return the box around a caller that stands on one level with a call, or a box around it."""
    around = set(upward(scope))
    box = caller
    while box.parent is not None and box.parent not in around:
        box = box.parent
    return box
