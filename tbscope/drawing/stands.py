"""Stands: in which box each thing is drawn, where that is not the scope in which it ran.

A container that is never called (`ModuleList`, `ModuleDict`) has no part of the run of its
own: what its parent does between the members would lead out of its box and back into it. So
what runs there stands in the box too; and where that does not help, since other modules
run between the members, the members stand beside each other, in the place of their list.
What a module itself was called for is never moved.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from tbscope.cycles import find_cycles
from tbscope.drawing.bundles import Bundles
from tbscope.ir.graph import Graph, Node
from tbscope.ir.guests import Guests
from tbscope.ir.nodes import sources_of
from tbscope.ir.regions import OWNED, STATE
from tbscope.ir.scopes import Scope, ScopePart
from tbscope.page.constants import LEVEL_LIMIT, SLOW_LIMIT

__all__ = ["Stands", "find_stands"]

# An operation, or a box; a leaf module that is drawn as one node counts as a box here.
_Unit: TypeAlias = Node | Scope
_Links: TypeAlias = dict[tuple[_Unit, _Unit], None]

# The kinds of boxes that are no modules, and no work of the user's hand.
_LOOSE_BOXES = frozenset({"function", "op"})
# What so many members read would fill their box with lines.
_MOST_READERS = 4


@dataclass(slots=True)
class Stands:
    """Where things stand that are not drawn in the scope in which they ran.

    Attributes:
        all: Every scope of the graph, parents first.
        nodes: The container in which an operation stands, or the module that called a method.
        scopes: The container in which a box stands that is no part of it.
        beside: The container in whose place a box stands, beside the others of it.
        parts: What a scope prints as that has another number where it stands.
    """

    all: list[Scope]
    nodes: dict[Node, Scope] = field(default_factory=dict)
    scopes: dict[Scope, Scope] = field(default_factory=dict)
    beside: dict[Scope, Scope] = field(default_factory=dict)
    parts: dict[Scope, ScopePart] = field(default_factory=dict)


def find_stands(
    graph: Graph,
    *,
    circles: bool = True,
    bundles: Bundles | None = None,
    guests: Guests | None = None,
) -> Stands:
    """Find out what must stand elsewhere, so that no two boxes point at each other.

    Args:
        graph: The graph as it is drawn, with leaf modules as nodes.
        circles: Whether parameters are circles beside what reads them, which join no boxes.
        bundles: Boxes that are no scopes of the graph; None for none.
        guests: What stands in the box of who called it; None for nothing.
    """
    stands = Stands(list(graph.scopes()))
    if guests is not None:
        stands.scopes |= guests.hosts
        stands.parts |= guests.parts
        stands.nodes |= guests.nodes
    if bundles is not None:
        stands.all += bundles.scopes
        stands.nodes |= bundles.nodes
        stands.scopes |= bundles.inner
        stands.parts |= bundles.parts
    if bundles is not None or _needs_places(graph, stands.all):
        _Placing(graph, stands, circles=circles).place()
    if bundles is not None:
        _spare_boxes(stands, [scope for scope in bundles.scopes if scope.kind == "container"])
    return stands


def _spare_boxes(stands: Stands, pieces: list[Scope]) -> None:
    """Have what is alone in a piece of a list, as one round called it, stand beside it."""
    inside: dict[Scope, list[Scope]] = defaultdict(list)
    for scope, holder in stands.scopes.items():
        inside[holder].append(scope)
    for scope in pieces:
        inside[stands.scopes.get(scope, scope.parent)].append(scope)  # type: ignore[index]
    working = set(stands.nodes.values())
    for piece in pieces:
        if len(inside[piece]) == 1 and piece not in working:
            stands.beside[inside[piece][0]] = piece


def _needs_places(graph: Graph, scopes: list[Scope]) -> bool:
    """Tell whether a container has anything beside it: alone, it reads nothing that it gave."""
    holders = {scope.parent for scope in scopes if scope.kind == "container"}
    if not holders:
        return False
    inside = [scope.parent for scope in scopes if scope.parent in holders]
    if len(inside) > len(holders):
        return True
    return any(node.scope in holders and node.kind == "op" for node in graph.nodes)


class _Placing:
    """Settles one graph, level by level, the outermost first."""

    def __init__(self, graph: Graph, stands: Stands, *, circles: bool) -> None:
        self.stands = stands
        self._graph = graph
        self._hidden = OWNED if circles else frozenset({"constant"})
        self._own: dict[Scope | None, dict[Node, None]] = defaultdict(dict)
        self._children: dict[Scope | None, list[Scope]] = defaultdict(list)
        self._leaves: dict[Scope, Node] = {}
        self._ends = {output.value.producer for output in graph.outputs}
        self._sources: dict[Node, list[Node]] = {}
        self._readers: dict[Node, list[Node]] | None = None
        for node in graph.nodes:
            self._own[stands.nodes.get(node, node.scope)][node] = None
            if node.kind == "module" and node.scope is not None:
                self._leaves[node.scope] = node
        for scope in stands.all:
            self._children[stands.scopes.get(scope, scope.parent)].append(scope)

    def place(self) -> None:
        """Settle all levels."""
        pending: list[Scope | None] = [None]
        while pending:
            holder = pending.pop()
            boxes = [scope for scope in self._children[holder] if scope not in self._leaves]
            if any(scope.kind == "container" for scope in boxes):
                loose = [node for node in self._own[holder] if node.kind == "op"]
                # One list alone reads nothing that it has given.
                if loose or len(self._children[holder]) > 1:
                    boxes = _Level(self, holder, loose).settle()
            pending += boxes

    def is_leaf(self, unit: _Unit) -> bool:
        return unit in self._leaves

    def is_loose(self, unit: _Unit) -> bool:
        """Tell whether this may stand in a container: no name of it is one that users know."""
        if isinstance(unit, Node):
            return True
        leaf = self._leaves.get(unit)
        if leaf is None:
            return unit.kind in _LOOSE_BOXES
        return not any(value.producer.kind in STATE for value in leaf.inputs)

    def below(self, scope: Scope | None) -> list[Scope]:
        """Return all scopes below one."""
        found: list[Scope] = []
        pending = list(self._children[scope])
        while pending:
            inner = pending.pop()
            found.append(inner)
            pending += self._children[inner]
        return found

    def children(self, scope: Scope | None) -> list[Scope]:
        return self._children[scope]

    def own(self, scope: Scope | None) -> Iterable[Node]:
        return self._own[scope]

    def sources(self, node: Node) -> Iterable[Node]:
        """Return what a node reads and waits for, but for what is a circle beside it."""
        # Each level asks it of all below it.
        known = self._sources.get(node)
        if known is None:
            sources = sources_of(node)
            known = [source for source in sources if source.kind not in self._hidden]
            self._sources[node] = known
        return known

    def neighbours(self, node: Node) -> list[Node | None]:
        """Return what a node reads and what reads it; None for an output of the graph."""
        return [*self.sources(node), *self.readers(node)]

    def readers(self, node: Node) -> list[Node | None]:
        """Return what reads a node; None for an output of the graph."""
        if self._readers is None:
            self._readers = defaultdict(list)
            for reader in self._graph.nodes:
                for source in self.sources(reader):
                    self._readers[source].append(reader)
        ends = [None] if node in self._ends else []
        return [*self._readers[node], *ends]

    def move(self, unit: _Unit, holder: Scope | None, container: Scope) -> None:
        """Have an operation or a box stand in a container."""
        if isinstance(unit, Node):
            self.stands.nodes[unit] = container
            del self._own[holder][unit]
            self._own[container][unit] = None
        else:
            # It may be a member of a list whose members stand beside each other.
            self._children[self.stands.scopes.get(unit, unit.parent)].remove(unit)
            self.stands.scopes[unit] = container
            self._children[container].append(unit)


class _Level:
    """One level: the boxes and operations in a scope, and how they read each other."""

    def __init__(self, placing: _Placing, holder: Scope | None, loose: list[Node]) -> None:
        self._placing = placing
        self._holder = holder
        self._loose = dict.fromkeys(loose)
        self._beside: list[Scope] = []
        # None where something has moved since they were found.
        self._known_cycles: list[list[_Unit]] | None = None
        # The box right on this level around each scope below it.
        self._around: dict[Scope, Scope] = {}
        self._open(placing.children(holder))
        places: dict[Node, _Unit] = {node: node for node in loose}
        for scope in placing.below(holder):
            places.update(dict.fromkeys(placing.own(scope), scope))
        self._places = places
        self._pairs: _Links = {}
        for node, place in places.items():
            for source in placing.sources(node):
                start = places.get(source)
                if start is not None and start is not place:
                    self._pairs[start, place] = None

    def settle(self) -> list[Scope]:
        """Move what must be moved, and return the boxes of the level, containers too."""
        placing = self._placing
        while self._pull(self._cycles()) or self._part(self._cycles()):
            pass
        # Leaf modules too, where their lists would still point at each other.
        while self._pull(self._cycles()) or self._part(self._cycles(), leaves=True):
            pass
        for container in reversed(self._beside):
            self._join_again(container)
        while self._pull(self._cycles()):
            pass
        self._pull_helpers()
        self._pull_sums()
        for container in self._beside:
            for child in placing.children(container):
                if self._around[child] is not container:
                    placing.stands.beside[child] = container
        boxes = dict.fromkeys([*placing.children(self._holder), *self._around.values()])
        return [one for one in boxes if one not in self._beside and not placing.is_leaf(one)]

    # -- what leads back to itself ---------------------------------------------------------

    def _cycles(self) -> list[list[_Unit]]:
        if self._known_cycles is None:
            self._known_cycles = find_cycles(self._links())
        return self._known_cycles

    def _links(self) -> _Links:
        around = self._around
        links: _Links = {}
        for start, end in self._pairs:
            ends = (
                start if isinstance(start, Node) else around[start],
                end if isinstance(end, Node) else around[end],
            )
            if ends[0] is not ends[1]:
                links[ends] = None
        return links

    def _open(self, boxes: Iterable[Scope]) -> None:
        """Have boxes stand right on this level."""
        self._known_cycles = None
        for box in boxes:
            self._around.update(dict.fromkeys([box, *self._placing.below(box)], box))

    # -- what stands in a container --------------------------------------------------------

    def _pull(self, cycles: list[list[_Unit]]) -> bool:
        """Move what runs between the members of one container alone into it."""
        moved = False
        for cycle in cycles:
            containers = _containers(cycle)
            others = [unit for unit in cycle if unit not in containers]
            if len(containers) == 1 and all(map(self._placing.is_loose, others)):
                self._move(others, containers[0])
                moved = True
        return moved

    def _move(self, units: Collection[_Unit], container: Scope) -> None:
        self._known_cycles = None
        for unit in units:
            if isinstance(unit, Node):
                del self._loose[unit]
                self._places[unit] = container
            else:
                self._around.update(dict.fromkeys([unit, *self._placing.below(unit)], container))
            self._placing.move(unit, self._holder, container)
        inside = set(units)
        self._pairs = {
            (
                container if start in inside and isinstance(start, Node) else start,
                container if end in inside and isinstance(end, Node) else end,
            ): None
            for start, end in self._pairs
        }

    def _pull_helpers(self) -> None:
        """Move operations into the one container in which all that they read and feed stands."""
        for helpers in self._helpers():
            inside = set(helpers)
            stands: set[_Unit | None] = set()
            reads: set[Node | None] = set()
            fed: set[Node] = set()
            for helper in helpers:
                sources = set(self._placing.sources(helper))
                for other in self._placing.neighbours(helper):
                    if other in inside:
                        continue
                    stands.add(self._unit_of(other))
                    (reads if other in sources else fed).add(other)  # type: ignore[arg-type]
            containers = _containers(one for one in stands if one is not None)
            if len(stands) == len(containers) == 1 and (reads or len(fed) <= _MOST_READERS):
                self._move(helpers, containers[0])

    def _pull_sums(self) -> None:
        """Move what adds up results of many members of one container into it.

        Each of these operations reads a member, and the one before it; only the last one is
        read by others.
        """
        for container, row in self._readers_alone().items():
            readers = {node: set(self._placing.readers(node)) for node in row}
            inner = {node for node in row if readers[node] and row.keys() >= readers[node]}
            last = set().union(*[readers[node] for node in inner]) - inner
            if len(inner) >= _MOST_READERS and len(last) == 1:
                self._move([node for node in row if node in inner or node in last], container)

    def _readers_alone(self) -> dict[Scope, dict[Node, None]]:
        """Return what reads members of each container, and else only what cannot depend on it."""
        found: dict[Scope, dict[Node, None]] = defaultdict(dict)
        first: set[_Unit | None] = {None}
        for node in self._loose:
            units = {self._unit_of(source) for source in self._placing.sources(node)}
            if units <= first:
                first.add(node)
            for container in _containers(one for one in units if one is not None):
                if all(
                    one is container or one in first or one in found[container] for one in units
                ):
                    found[container][node] = None
        return found

    def _helpers(self) -> Iterable[list[Node]]:
        """Return the operations of this level, those together that read each other."""
        # What has been moved here comes last, also where others read it.
        first = {node: node for node in self._loose}

        def find(node: Node) -> Node:
            while first[node] is not node:
                first[node] = node = first[first[node]]
            return node

        for node in self._loose:
            for source in self._placing.sources(node):
                if source in first:
                    first[find(node)] = find(source)
        groups: dict[Node, list[Node]] = {}
        for node in self._loose:
            groups.setdefault(find(node), []).append(node)
        return groups.values()

    def _unit_of(self, node: Node | None) -> _Unit | None:
        place = None if node is None else self._places.get(node)
        return self._around[place] if isinstance(place, Scope) else place

    # -- what stands beside each other -----------------------------------------------------

    def _part(self, cycles: list[list[_Unit]], *, leaves: bool = False) -> bool:
        """Have the members of each container on a cycle stand beside each other.

        Args:
            cycles: The cycles.
            leaves: Whether leaf modules do, or only boxes.
        """
        placing = self._placing
        found = [one for cycle in cycles for one in _containers(cycle)]
        if leaves and len(self._loose) + sum(map(len, map(placing.children, found))) > self._most():
            return False
        parted = False
        for container in found:
            inside = placing.children(container)
            boxes = inside if leaves else [one for one in inside if not placing.is_leaf(one)]
            boxes = [one for one in boxes if self._around[one] is container]
            if boxes:
                self._beside += [container] if container not in self._beside else []
                self._open(boxes)
                parted = True
        return parted

    def _most(self) -> int:
        """Return how many nodes may stand on this level: more, where loops may part it."""
        known = any(node.run is not None for node in self._loose)
        return SLOW_LIMIT if known else LEVEL_LIMIT

    def _join_again(self, container: Scope) -> None:
        """Make one box again of a container where that makes no cycle, or parting ended none."""
        below = self._placing.below(container)
        before = self._around.copy()
        parts = {self._around[scope] for scope in below} - {container}
        vain = self._parted_in_vain(parts)
        self._open([container])
        if not vain:
            for cycle in self._cycles():
                others = [unit for unit in cycle if unit is not container]
                if len(others) < len(cycle) and not all(map(self._placing.is_loose, others)):
                    self._around, self._known_cycles = before, None
                    return
        inside = {container, *below}
        self._beside = [one for one in self._beside if one not in inside]

    def _parted_in_vain(self, parts: set[Scope]) -> bool:
        """Tell whether most members of a list are on cycles still, or any with another list."""
        cycles = [cycle for cycle in self._cycles() if not parts.isdisjoint(cycle)]
        circling = {unit for cycle in cycles for unit in cycle}
        return bool(_containers(circling - parts)) or len(parts & circling) * 2 > len(parts)


def _containers(units: Iterable[_Unit]) -> list[Scope]:
    return [unit for unit in units if isinstance(unit, Scope) and unit.kind == "container"]
