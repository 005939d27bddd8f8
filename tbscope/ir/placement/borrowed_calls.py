"""Guests: what stands in the box of the module that called it, not in that of who holds it.

A module may call one that it does not hold: an activation that several blocks share, a memory
that each layer is given. The scope of such a call is where the module is held; drawn there, the
blocks that share it would point at each other. So where such a call leads out of the box from
which it was called and back into it, it stands there, under the name by which it is held. So does
what other methods of a called module ran (`net.transform.postprocess(y)`), and so do its parts that
are called from outside of it (`net.decoder.embed(ids)`), where the box of that module would read
what it has fed.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from tbscope.ir.graph import Call, Graph, Node
from tbscope.ir.metadata import Run
from tbscope.ir.nodes import sources_of
from tbscope.ir.placement.level_links import Unit, level_links, unit_of
from tbscope.ir.placement.reentrant_modules import find_returns
from tbscope.ir.scope_io import OWNED, Inherited, Nearest, upward
from tbscope.ir.scopes import Scope, ScopePart
from tbscope.utils.components import find_cycles

__all__ = ["Guests", "find_guests", "is_shared"]

_NONE: tuple[Scope, ...] = ()
_HOLDING = frozenset({"module", "container"})


@dataclass(slots=True)
class Guests:
    """What stands in the box of who called it.

    Attributes:
        hosts: For the scope of each call, that of the module that called it; and for the box of
            an operation's kernels, as for an operation.
        parts: What each of these calls prints as there, counted from 0.
        nodes: For each operation of a method, the scope of the module that called that.
    """

    hosts: dict[Scope, Scope] = field(default_factory=dict)
    parts: dict[Scope, ScopePart] = field(default_factory=dict)
    nodes: dict[Node, Scope] = field(default_factory=dict)

    def take(self, units: Iterable[Unit], host: Scope) -> None:
        """Have operations, or boxes of their kernels, stand with the caller of their method."""
        for unit in units:
            if isinstance(unit, Node):
                self.nodes[unit] = host
            else:
                self.hosts[unit] = host

    def leave(self, units: Iterable[Unit]) -> None:
        """Have them stand where they ran."""
        for unit in units:
            if isinstance(unit, Node):
                del self.nodes[unit]
            else:
                del self.hosts[unit]

    def tell_parts(self, graph: Graph) -> None:
        """Have calls print under a name, numbered in their order.

        The name is that by which the caller holds the module, else that by which its holder does.
        Where it begins with a list of the caller, the call stands in that.
        """
        lists = {
            (scope.parent, scope.part.attribute): scope
            for scope in graph.scopes()
            if scope.kind == "container"
        }
        numbers: Counter[tuple[Scope, ScopePart]] = Counter()
        for call in graph.calls:
            scope, host = call.scope, self.hosts.get(call.scope)
            if host is None or call.number:
                continue
            attribute = call.called_as if host is call.caller else ""
            attribute = attribute or _path_in(scope, host)
            while host not in upward(scope) and "." in attribute:
                first, _, rest = attribute.partition(".")
                if (host, first) not in lists:
                    break
                host, attribute = lists[host, first], rest
            self.hosts[scope] = host
            part = replace(scope.part, attribute=attribute or None, index=0)
            self.parts[scope] = replace(part, index=numbers[host, part])
            numbers[host, part] += 1


def find_guests(graph: Graph) -> Guests:
    """Find what stands in the box of who called it.

    Args:
        graph: A graph, as it was recorded or as it is drawn.
    """
    guests = Guests()
    homes = _homes(graph)
    callers = dict(_borrowed(graph, homes))
    if callers:
        moved = [call.scope for call in graph.calls if call.scope in callers and is_shared(call)]
        moved += _Neighbours(graph, callers).all_moved()
        guests.hosts.update((one, callers[one]) for one in moved)
        _add_circling(graph, callers, guests)
    elif not homes:
        return guests
    _add_visits(graph, homes, guests)
    for unit, host in find_returns(graph, guests.hosts, guests.nodes).items():
        guests.take([unit], host)
    if guests.hosts:
        guests.tell_parts(graph)
        _add_gradients(graph, guests)
    return guests


def _add_gradients(graph: Graph, guests: Guests) -> None:
    """Have the gradients of a call stand as it does: their scope is called like its own, in one."""
    of_path = {scope.parts: scope for scope in graph.scopes()}
    calls = {scope.parts: (scope, guests.hosts[scope]) for scope in guests.parts}
    for path, scope in of_path.items():
        call, host = calls.get(path[1:], (None, None))
        if call is not None and host is not None and path[:1] + host.parts in of_path:
            guests.hosts[scope] = of_path[path[:1] + host.parts]
            guests.parts[scope] = guests.parts[call]


def _borrowed(graph: Graph, homes: Mapping[Run | None, Scope]) -> Iterator[tuple[Scope, Scope]]:
    """Yield each call of a module from inside of another one that does not hold it, and that one.

    The order is that of the calls.
    """
    # A pass may have left nothing of a caller.
    there = {call.caller for call in graph.calls}.intersection(graph.scopes())
    for call in graph.calls:
        home = call.caller if call.caller in there else homes.get(_outermost(call.run))
        if call.number or home is None or home is call.scope.parent:
            continue
        around = list(upward(call.scope.parent))
        if home not in around and call.scope not in upward(home) and not _is_of(home, around):
            yield call.scope, home


def _is_of(home: Scope, around: Iterable[Scope]) -> bool:
    """Tell whether one of these scopes is another one of the module that a scope is of.

    A module that calls its own parts holds them. Where they do not stand in it no call of it ran:
    it is one of its methods that called them.
    """
    place = home.parent, home.part.label, home.part.attribute
    return any((one.parent, one.part.label, one.part.attribute) == place for one in around)


def is_shared(call: Call) -> bool:
    """Whether the caller contains a module as well as another one does, which is not around it.

    The box of that one has no part in the call, which stands with its caller.
    """
    holder = _holder(call.scope)
    return bool(call.called_as) and holder is not None and holder not in upward(call.caller)


def _add_circling(graph: Graph, callers: Mapping[Scope, Scope], guests: Guests) -> None:
    """Have calls stand with their callers where the box that holds their module would circle."""
    levels: dict[Scope | None, list[Scope]] = defaultdict(list)
    for scope, caller in callers.items():
        if scope not in guests.hosts:
            around = set(upward(caller))
            levels[next((one for one in upward(scope) if one in around), None)].append(scope)
    for level, scopes in levels.items():
        circling = _circling(graph, level, guests)
        tried = [scope for scope in scopes if unit_of(scope, level) in circling]
        for scope in tried:
            guests.take([scope], callers[scope])
        circling = _circling(graph, level, guests) if tried else set()
        guests.leave(scope for scope in tried if unit_of(scope, level) in circling)


def _add_visits(graph: Graph, homes: Mapping[Run | None, Scope], guests: Guests) -> None:
    """Have what a caller ran in a module stand with that caller, where the module would circle.

    That is the work of methods of the module, and calls of its parts.
    """
    called = {call.scope for call in graph.calls}
    visits: dict[Scope, dict[Scope, dict[Unit, None]]] = defaultdict(lambda: defaultdict(dict))
    for call in graph.calls:
        home = homes.get(_outermost(call.run))
        if home is not None and not call.number:
            inside = _inside(call.scope.parent, home)
            if not called.isdisjoint(inside):
                module = next(scope for scope in reversed(inside) if scope in called)
                visits[home][module][call.scope] = None
    for node in graph.nodes:
        home = None if node.run is None else homes.get(_outermost(node.run))
        if home is None or node.scope is home or node.kind != "op" or node.phase != "forward":
            continue
        inside = _inside(node.scope, home)
        if not called.isdisjoint(inside):
            module = next(scope for scope in reversed(inside) if scope in called)
            # The kernels of an operation stay in its box.
            boxes = [scope for scope in inside if scope.kind not in _HOLDING]
            visits[home][module][boxes[-1] if boxes else node] = None
    for home, found in visits.items():
        circling = _circling(graph, home, guests)
        tried = {module: found[module] for module in found if unit_of(module, home) in circling}
        for units in tried.values():
            guests.take(units, home)
        circling = _circling(graph, home, guests) if tried else set()
        for module, units in tried.items():
            if unit_of(module, home) in circling:
                # In vain: something else leads back to it.
                guests.leave(units)


def _path_in(scope: Scope, host: Scope) -> str:
    """Return the path by which a call is held: from its caller on, or from its holder and lists."""
    if scope.part.attribute is None:
        return ""
    way, around = [scope], scope.parent
    while around is not None and around is not host:
        if around.kind != "container" and host not in upward(around):
            break
        way.append(around)
        around = around.parent
    return ".".join(one.part.attribute or one.part.label for one in reversed(way))


def _inside(scope: Scope | None, home: Scope) -> list[Scope]:
    """Return a scope and those around it that stand in another one; none where it does not."""
    way = list(upward(scope))
    return way[: way.index(home)] if home in way else []


def _circling(graph: Graph, home: Scope | None, guests: Guests) -> set[Unit]:
    links = level_links(graph, home, hosts=guests.hosts, nodes=guests.nodes)
    return {unit for cycle in find_cycles(links) for unit in cycle}


def _homes(graph: Graph) -> dict[Run | None, Scope]:
    """Return for each function that no other one called the module in whose call it ran."""
    called: dict[Run | None, set[Scope]] = defaultdict(set)
    for call in graph.calls:
        called[_outermost(call.run)].add(call.scope)
    working = set().union(*called.values())
    # The kernels of an operation stand in a box of their own. What waits for a gradient from
    # another rank stands in the box of a backward pass, which called nothing.
    nearest = Nearest[Scope](
        lambda scope: scope if scope in working or _is_of_hand(scope) else None
    )
    homes: dict[Run | None, Scope] = {}
    # What ran no operation but in functions that it called: they may be methods of other modules.
    unsure: set[Run | None] = set()
    last: Run | None = None
    for node in graph.nodes:
        run = node.run
        if run is last or run is None or node.kind != "op" or node.phase != "forward":
            continue
        last, first = run, _outermost(run)
        home = nearest(node.scope)
        if home is not None and (first not in homes or (run is first and first in unsure)):
            homes[first] = home
            unsure.add(first)
        if run is first:
            unsure.discard(first)
    for run in unsure:
        # Who called a module is outside of it, whatever it asked that module else.
        outermost = [scope for scope in upward(homes[run]) if scope in called[run]]
        if outermost:
            holder = _holder(outermost[-1])
            if holder is None:
                # It is a function of the script, around all modules.
                del homes[run]
            else:
                homes[run] = holder
    # Of what runs no operation at all, the innermost that holds what it calls.
    known = set(homes)
    for call in graph.calls:
        run = _outermost(call.run)
        if run is None or run in known:
            continue
        holder = _holder(call.scope)
        if holder is None or holder in called[run]:
            continue
        home = homes.setdefault(run, holder)
        homes[run] = holder if home in upward(holder) else home
    return homes


def _is_of_hand(scope: Scope) -> bool:
    return scope.kind == "hand" and scope.phase == "forward"


def _outermost(run: Run | None) -> Run | None:
    while run is not None and run.around is not None:
        run = run.around
    return run


def _holder(scope: Scope) -> Scope | None:
    """Return what is around a scope and the lists that hold it."""
    holder = scope.parent
    while holder is not None and holder.kind == "container":
        holder = holder.parent
    return holder


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
        by the same caller that feed nothing else: their parameters stand there. So do those that
        such a call has made of its own module, which calls itself.
        """
        callers = self._callers
        leading = [scope for scope in callers if self._leads_back(scope)]
        moved = {_module_of(scope) for scope in leading}
        there = {(_module_of(scope), callers[scope]) for scope in leading}
        there |= {(_module_of(scope), scope) for scope in leading}
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
        for source in sources_of(node):
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
        """Tell whether a node is in a box, or in what was called from there.

        So is what a call from there has called in its turn, as a module does that calls itself.
        """
        scope, passed = node.scope, set[Scope]()
        while borrowed := self._borrowed(scope):
            moved = borrowed[0]
            if moved in passed:
                return False
            passed.add(moved)
            inside = list(upward(scope))
            if box in inside[: inside.index(moved) + 1]:
                return True
            scope = self._callers[moved]
        return box in upward(scope)


def _module_of(scope: Scope) -> tuple[Scope | None, str, str | None]:
    return scope.parent, scope.part.label, scope.part.attribute


def _box_around(scope: Scope, caller: Scope) -> Scope:
    """Return the box around a caller that stands on one level with a call, or a box around it."""
    around = set(upward(scope))
    box = caller
    while box.parent is not None and box.parent not in around:
        box = box.parent
    return box
