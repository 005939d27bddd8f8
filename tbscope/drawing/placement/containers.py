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
from functools import cached_property
from typing import Literal, TypeAlias

from tbscope.ir.graph import Graph, Node
from tbscope.ir.nodes import sources_of
from tbscope.ir.placement.borrowed_calls import Guests
from tbscope.ir.scope_io import OWNED, STATE
from tbscope.ir.scopes import Scope, ScopePart
from tbscope.page.constants import LEVEL_LIMIT, SLOW_LIMIT
from tbscope.utils.components import find_cycles

__all__ = ["STAGES", "Helpers", "Stage", "Stands", "find_stands"]

Helpers: TypeAlias = Literal["auto", "all", "none"]
"""Which helper functions and loops are boxes: those in levels that are too full ("auto"), every
function and the loops in such levels ("all"), or none."""

Stage: TypeAlias = Literal["functions", "parts", "steps"]
"""What is looked for: functions in which no module was called, any functions, and loops."""
STAGES: tuple[Stage, ...] = ("functions", "parts", "steps")
"""All that may be looked for, the mildest first."""

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
        all: Every scope, parents first: those of a graph, or boxes that are no scopes of it.
        nodes: The box in which an operation stands: a container, the module that called a method.
        scopes: The box in which another one stands that is no part of it.
        beside: The container in whose place a box stands, beside the others of it.
        parts: What a scope prints as that has another number where it stands.
        free: Those boxes that are no scopes of a graph, and in which no module was called.
    """

    all: list[Scope] = field(default_factory=list)
    nodes: dict[Node, Scope] = field(default_factory=dict)
    scopes: dict[Scope, Scope] = field(default_factory=dict)
    beside: dict[Scope, Scope] = field(default_factory=dict)
    parts: dict[Scope, ScopePart] = field(default_factory=dict)
    free: list[Scope] = field(default_factory=list)


def find_stands(
    graph: Graph,
    *,
    circles: bool,
    bundles: Stands | None,
    guests: Guests,
) -> Stands:
    """Find out what must stand elsewhere, so that no two boxes point at each other.

    Args:
        graph: The graph as it is drawn, with leaf modules as nodes.
        circles: Whether parameters are circles beside what reads them, which join no boxes.
        bundles: Boxes that are no scopes of the graph; None for none.
        guests: What stands in the box of who called it.
    """
    stands = Stands(list(graph.scopes()))
    stands.scopes |= guests.hosts
    stands.parts |= guests.parts
    stands.nodes |= guests.nodes
    if bundles is not None:
        stands.all += bundles.all
        stands.nodes |= bundles.nodes
        stands.scopes |= bundles.scopes
        stands.parts |= bundles.parts
    # A container alone, with nothing beside it, reads nothing that it gave.
    holders = {scope.parent for scope in stands.all if scope.kind == "container"}
    several = sum(scope.parent in holders for scope in stands.all) > len(holders)
    loose = (node for node in graph.nodes if node.kind == "op" and node.scope in holders)
    if several or bundles is not None or (holders and any(loose)):
        _Placing(graph, stands, circles=circles).place()
    if bundles is not None:
        _spare_boxes(stands, [scope for scope in bundles.all if scope.kind == "container"])
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


class _Placing:
    """Settles one graph, level by level, the outermost first."""

    def __init__(self, graph: Graph, stands: Stands, *, circles: bool) -> None:
        self.stands = stands
        self._graph = graph
        self._hidden = OWNED if circles else frozenset({"constant"})
        self.own: dict[Scope | None, dict[Node, None]] = defaultdict(dict)
        self.children: dict[Scope | None, list[Scope]] = defaultdict(list)
        self.leaves: dict[Scope, Node] = {}
        self._sources: dict[Node, list[Node]] = {}
        for node in graph.nodes:
            self.own[stands.nodes.get(node, node.scope)][node] = None
            if node.kind == "module" and node.scope is not None:
                self.leaves[node.scope] = node
        for scope in stands.all:
            self.children[stands.scopes.get(scope, scope.parent)].append(scope)

    def place(self) -> None:
        """Settle all levels."""
        pending: list[Scope | None] = [None]
        while pending:
            holder = pending.pop()
            boxes = [scope for scope in self.children[holder] if scope not in self.leaves]
            if any(scope.kind == "container" for scope in boxes):
                loose = [node for node in self.own[holder] if node.kind == "op"]
                # One list alone reads nothing that it has given.
                if loose or len(self.children[holder]) > 1:
                    boxes = _Level(self, holder, loose).settle()
            pending += boxes

    def is_loose(self, unit: _Unit) -> bool:
        """Tell whether this may stand in a container: no name of it is one that users know."""
        if isinstance(unit, Node):
            return True
        leaf = self.leaves.get(unit)
        if leaf is None:
            return unit.kind in _LOOSE_BOXES
        return not any(value.producer.kind in STATE for value in leaf.inputs)

    def below(self, scope: Scope | None) -> list[Scope]:
        """Return all scopes below one."""
        found: list[Scope] = []
        pending = list(self.children[scope])
        while pending:
            inner = pending.pop()
            found.append(inner)
            pending += self.children[inner]
        return found

    def sources(self, node: Node) -> Iterable[Node]:
        """Return what a node reads and waits for, but for what is a circle beside it."""
        # Each level asks it of all below it.
        known = self._sources.get(node)
        if known is None:
            known = [source for source in sources_of(node) if source.kind not in self._hidden]
            self._sources[node] = known
        return known

    @cached_property
    def readers(self) -> dict[Node, list[Node | None]]:
        """What reads each node; None for an output of the graph."""
        found: dict[Node, list[Node | None]] = defaultdict(list)
        for reader in self._graph.nodes:
            for source in self.sources(reader):
                found[source].append(reader)
        for node in dict.fromkeys(output.value.producer for output in self._graph.outputs):
            found[node].append(None)
        return found

    def move(self, unit: _Unit, holder: Scope | None, container: Scope) -> None:
        """Have an operation or a box stand in a container."""
        if isinstance(unit, Node):
            self.stands.nodes[unit] = container
            del self.own[holder][unit]
            self.own[container][unit] = None
        else:
            # It may be a member of a list whose members stand beside each other.
            self.children[self.stands.scopes.get(unit, unit.parent)].remove(unit)
            self.stands.scopes[unit] = container
            self.children[container].append(unit)


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
        self._open(placing.children[holder])
        self._places = places = dict[Node, _Unit](zip(loose, loose, strict=True))
        for scope in placing.below(holder):
            places.update(dict.fromkeys(placing.own[scope], scope))
        self._pairs: _Links = {}
        for node, place in places.items():
            for source in placing.sources(node):
                start = places.get(source)
                if start is not None and start is not place:
                    self._pairs[start, place] = None

    def settle(self) -> list[Scope]:
        """Move what must be moved, and return the boxes of the level, containers too."""
        placing = self._placing
        # Leaf modules part too, where their lists would still point at each other.
        for leaves in (False, True):
            while self._pull(self._cycles()) or self._part(self._cycles(), leaves=leaves):
                pass
        for container in reversed(self._beside):
            self._join_again(container)
        while self._pull(self._cycles()):
            pass
        self._pull_helpers()
        self._pull_sums()
        for container in self._beside:
            for child in placing.children[container]:
                if self._around[child] is not container:
                    placing.stands.beside[child] = container
        boxes = dict.fromkeys([*placing.children[self._holder], *self._around.values()])
        return [one for one in boxes if one not in self._beside and one not in placing.leaves]

    # -- what leads back to itself ---------------------------------------------------------

    def _cycles(self) -> list[list[_Unit]]:
        if self._known_cycles is None:
            links: _Links = {}
            for start, end in self._pairs:
                ends = self._unit_at(start), self._unit_at(end)
                if ends[0] is not ends[1]:
                    links[ends] = None
            self._known_cycles = find_cycles(links)
        return self._known_cycles

    def _unit_at(self, place: _Unit) -> _Unit:
        """Return what stands right on this level of an operation on it, or a scope below it."""
        return place if isinstance(place, Node) else self._around[place]

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
        moved: dict[_Unit, _Unit] = {one: container for one in units if isinstance(one, Node)}
        self._pairs = {
            (moved.get(start, start), moved.get(end, end)): None for start, end in self._pairs
        }

    def _pull_helpers(self) -> None:
        """Move operations into the one container in which all that they read and feed stands."""
        for helpers in self._helpers():
            inside = set(helpers)
            reads = {one for helper in helpers for one in self._placing.sources(helper)} - inside
            readers = {one for helper in helpers for one in self._placing.readers[helper]}
            others = reads | (readers - inside)
            stands = {self._unit_of(other) for other in others}
            containers = _containers(stands)
            if len(stands) == len(containers) == 1 and (reads or len(others) <= _MOST_READERS):
                self._move(helpers, containers[0])

    def _pull_sums(self) -> None:
        """Move what adds up results of many members of one container into it.

        Each of these operations reads a member, and the one before it; only the last one is
        read by others.
        """
        for container, row in self._readers_alone().items():
            readers = {node: set(self._placing.readers[node]) for node in row}
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
            for container in _containers(units):
                if units <= {container, *first, *found[container]}:
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
        return None if place is None else self._unit_at(place)

    # -- what stands beside each other -----------------------------------------------------

    def _part(self, cycles: list[list[_Unit]], *, leaves: bool) -> bool:
        """Have the members of each container on a cycle stand beside each other.

        Args:
            cycles: The cycles.
            leaves: Whether leaf modules do, or only boxes.
        """
        placing = self._placing
        found = [one for cycle in cycles for one in _containers(cycle)]
        # More nodes may stand on this level where loops may part it.
        most = SLOW_LIMIT if any(node.run is not None for node in self._loose) else LEVEL_LIMIT
        inside = sum(len(placing.children[one]) for one in found)
        if leaves and len(self._loose) + inside > most:
            return False
        parted = False
        for container in found:
            boxes = [
                one
                for one in placing.children[container]
                if (leaves or one not in placing.leaves) and self._around[one] is container
            ]
            if boxes:
                self._beside += [container] if container not in self._beside else []
                self._open(boxes)
                parted = True
        return parted

    def _join_again(self, container: Scope) -> None:
        """Make one box again of a container where that makes no cycle, or parting ended none."""
        below = self._placing.below(container)
        before = self._around.copy()
        parts = {self._around[scope] for scope in below} - {container}
        cycles = [cycle for cycle in self._cycles() if not parts.isdisjoint(cycle)]
        circling = set[_Unit]().union(*cycles)
        # Most members are on cycles still, or any with another list.
        vain = bool(_containers(circling - parts)) or len(parts & circling) * 2 > len(parts)
        self._open([container])
        if not vain:
            for cycle in self._cycles():
                others = [unit for unit in cycle if unit is not container]
                if len(others) < len(cycle) and not all(map(self._placing.is_loose, others)):
                    self._around, self._known_cycles = before, None
                    return
        inside = {container, *below}
        self._beside = [one for one in self._beside if one not in inside]


def _containers(units: Iterable[_Unit | None]) -> list[Scope]:
    return [unit for unit in units if isinstance(unit, Scope) and unit.kind == "container"]
