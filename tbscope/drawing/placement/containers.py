"""Placement of nodes and scopes: the box in which each is drawn, if it is not its own scope.

A container that is never called (`ModuleList`, `ModuleDict`) runs no operation itself: edges
through the operations that its parent runs between two members would leave its box and enter it
again. So these operations are drawn in the box of the container, too. If that does not help,
since other modules run between the members, the container is dissolved: its members are drawn
beside each other in the parent's box. No operation leaves the box of the module that ran it.

The levels are processed from the outside inwards. On each, `_Level.place_units` first moves
operations into containers or dissolves containers until no two boxes read each other, then restores
containers that need not be dissolved or were dissolved in vain, and at last moves operations that
have neighbours only in one container into it.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

from tbscope.ir.graph import Graph, Node
from tbscope.ir.nodes import sources_of
from tbscope.ir.placement.borrowed_calls import BorrowedPlacement
from tbscope.ir.scope_io import OWNED, STATE
from tbscope.ir.scopes import Scope, ScopePart
from tbscope.page.constants import LEVEL_LIMIT, SLOW_LIMIT
from tbscope.utils.components import find_cycles

__all__ = ["STAGES", "Helpers", "Placement", "Stage", "find_placement"]

Helpers: TypeAlias = Literal["auto", "all", "none"]
"""The helper functions and loops that are boxes: those on levels that are too full ("auto"), every
function and the loops on these levels ("all"), or none."""

Stage: TypeAlias = Literal["functions", "parts", "steps"]
"""The boxes to look for: functions in which no module was called, any functions, or loops."""
STAGES: tuple[Stage, ...] = ("functions", "parts", "steps")
"""All stages, the mildest first."""

# An operation, or a box. A leaf module that is drawn as one node counts as a box here.
_Unit: TypeAlias = Node | Scope
_Links: TypeAlias = dict[tuple[_Unit, _Unit], None]

# Scope kinds that are neither modules nor named by the user.
_LOOSE_BOXES = frozenset({"function", "op"})
# An operation with more readers in a container would fill that box with lines.
_MOST_READERS = 4


@dataclass(slots=True)
class Placement:
    """The placement of nodes and scopes that are not drawn in their own scope.

    Attributes:
        all: Every scope, parents first: the scopes of a graph, or further boxes.
        nodes: The box of an operation: a container, or the module that called a method.
        scopes: The box of a scope that is not its parent.
        beside: The dissolved container of a scope that is drawn beside the other members.
        parts: The path part of a scope whose number differs in its new box.
        free: The boxes that are no scopes of the graph, and in which no module was called.
    """

    all: list[Scope] = field(default_factory=list)
    nodes: dict[Node, Scope] = field(default_factory=dict)
    scopes: dict[Scope, Scope] = field(default_factory=dict)
    beside: dict[Scope, Scope] = field(default_factory=dict)
    parts: dict[Scope, ScopePart] = field(default_factory=dict)
    free: list[Scope] = field(default_factory=list)


def find_placement(
    graph: Graph,
    *,
    circles: bool,
    boxed: Placement | None,
    borrowed: BorrowedPlacement,
) -> Placement:
    """Return the placement with which no two boxes read each other, as far as possible.

    Args:
        graph: The graph as it is drawn, with leaf modules as nodes.
        circles: Whether parameters are circles beside their readers, which link no boxes.
        boxed: Boxes of functions and loop iterations, which are no scopes of the graph; None
            for none.
        borrowed: The calls and nodes that are drawn in the box of their caller.
    """
    placement = Placement(list(graph.scopes()))
    placement.scopes |= borrowed.hosts
    placement.parts |= borrowed.parts
    placement.nodes |= borrowed.nodes
    if boxed is not None:
        placement.all += boxed.all
        placement.nodes |= boxed.nodes
        placement.scopes |= boxed.scopes
        placement.parts |= boxed.parts
    # A container that is alone on its level cannot read its own results.
    parents = {scope.parent for scope in placement.all if scope.kind == "container"}
    several = len([scope for scope in placement.all if scope.parent in parents]) > len(parents)
    loose = (node for node in graph.nodes if node.kind == "op" and node.scope in parents)
    if several or boxed is not None or (parents and any(loose)):
        _Placer(graph, placement, circles=circles).place_boxes()
    if boxed is not None:
        _spare_boxes(placement, [scope for scope in boxed.all if scope.kind == "container"])
    return placement


def _spare_boxes(placement: Placement, pieces: list[Scope]) -> None:
    """Dissolve the pieces of lists that contain a single scope and no operation.

    Args:
        placement: Changed in place.
        pieces: The part of a list that one loop iteration called, as a box in that iteration.
    """
    contents: dict[Scope, list[Scope]] = defaultdict(list)
    for scope, box in placement.scopes.items():
        contents[box].append(scope)
    for scope in pieces:
        contents[placement.scopes.get(scope, scope.parent)].append(scope)  # type: ignore[index]
    working = set(placement.nodes.values())
    for piece in pieces:
        if len(contents[piece]) == 1 and piece not in working:
            placement.beside[contents[piece][0]] = piece


class _Placer:
    """Determines the placement for one graph, level by level, outer levels first.

    Attributes:
        placement: The placement so far.
        own: The nodes directly in each box.
        children: The scopes directly in each box, leaf modules included.
        leaves: The node of each leaf module that is drawn as a node.
        sources: The nodes that each node reads or has a control dependency on, without circles.
    """

    def __init__(self, graph: Graph, placement: Placement, *, circles: bool) -> None:
        self.placement = placement
        self._graph = graph
        hidden = OWNED if circles else frozenset({"constant"})
        self.sources = {
            node: [source for source in sources_of(node) if source.kind not in hidden]
            for node in graph.nodes
        }
        self.own: dict[Scope | None, dict[Node, None]] = defaultdict(dict)
        self.children: dict[Scope | None, list[Scope]] = defaultdict(list)
        self.leaves: dict[Scope, Node] = {}
        for node in graph.nodes:
            self.own[placement.nodes.get(node, node.scope)][node] = None
            if node.kind == "module" and node.scope is not None:
                self.leaves[node.scope] = node
        for scope in placement.all:
            self.children[placement.scopes.get(scope, scope.parent)].append(scope)

    def place_boxes(self) -> None:
        """Determine the placement on all levels."""
        pending: list[Scope | None] = [None]
        while pending:
            holder = pending.pop()
            boxes = [scope for scope in self.children[holder] if scope not in self.leaves]
            if any(scope.kind == "container" for scope in boxes):
                loose = [node for node in self.own[holder] if node.kind == "op"]
                # A container that is alone on its level cannot read its own results.
                if loose or len(self.children[holder]) > 1:
                    boxes = _Level(self, holder, loose).place_units()
            pending += boxes

    def is_loose(self, unit: _Unit) -> bool:
        """Whether a node or box may move into a container.

        Users must not rely on its name: it is an operation, a function box, the box of an
        operation's kernels, or a leaf module without parameters and buffers.
        """
        if isinstance(unit, Node):
            return True
        leaf = self.leaves.get(unit)
        if leaf is None:
            return unit.kind in _LOOSE_BOXES
        return not any(value.producer.kind in STATE for value in leaf.inputs)

    def below(self, scope: Scope | None) -> list[Scope]:
        """Return all scopes in a box, at any depth."""
        scopes: list[Scope] = []
        pending = list(self.children[scope])
        while pending:
            inner = pending.pop()
            scopes.append(inner)
            pending += self.children[inner]
        return scopes

    @cached_property
    def readers(self) -> dict[Node, list[Node | None]]:
        """The readers of each node; None represents an output of the graph."""
        readers_of: dict[Node, list[Node | None]] = defaultdict(list)
        for reader in self._graph.nodes:
            for source in self.sources[reader]:
                readers_of[source].append(reader)
        for node in dict.fromkeys(output.value.producer for output in self._graph.outputs):
            readers_of[node].append(None)
        return readers_of

    def move(self, unit: _Unit, holder: Scope | None, container: Scope) -> None:
        """Move an operation or a box from its current box into a container."""
        if isinstance(unit, Node):
            self.placement.nodes[unit] = container
            del self.own[holder][unit]
            self.own[container][unit] = None
        else:
            # The current parent may be a dissolved container, and not the holder itself.
            self.children[self.placement.scopes.get(unit, unit.parent)].remove(unit)
            self.placement.scopes[unit] = container
            self.children[container].append(unit)


class _Level:
    """One level: the boxes and operations in a scope, and the links between them.

    A unit is an operation or box directly on this level. A place is an operation on this level,
    or the scope below it that directly contains an operation; links are stored by places, since
    units change when containers are dissolved.

    Args:
        placing: The placement of the whole graph.
        holder: The scope whose level it is; None for the top level.
        loose: The operations directly on the level.
    """

    def __init__(self, placing: _Placer, holder: Scope | None, loose: list[Node]) -> None:
        self._placing = placing
        self._holder = holder
        self._loose = dict.fromkeys(loose)
        self._dissolved: list[Scope] = []
        # None if a unit has moved since they were found.
        self._known_cycles: list[list[_Unit]] | None = None
        # The box on this level that contains each scope below it.
        self._around: dict[Scope, Scope] = {}
        self._open_boxes(placing.children[holder])
        self._places = places = dict[Node, _Unit](zip(loose, loose, strict=True))
        for scope in placing.below(holder):
            places.update(dict.fromkeys(placing.own[scope], scope))
        self._pairs: _Links = {}
        for node, end in places.items():
            for source in placing.sources[node]:
                start = places.get(source)
                if start is not None and start is not end:
                    self._pairs[start, end] = None

    def place_units(self) -> list[Scope]:
        """Determine the placement on this level, and return its boxes, containers included."""
        placing = self._placing
        # Containers of leaf modules are dissolved only if boxes would still read each other.
        for leaves in (False, True):
            while self._move_into_containers(self._cycles()) or self._dissolve(
                self._cycles(), leaves=leaves
            ):
                pass
        for container in reversed(self._dissolved):
            self._restore(container)
        while self._move_into_containers(self._cycles()):
            pass
        self._move_helpers()
        self._move_sums()
        for container in self._dissolved:
            for child in placing.children[container]:
                if self._around[child] is not container:
                    placing.placement.beside[child] = container
        boxes = dict.fromkeys([*placing.children[self._holder], *self._around.values()])
        return [box for box in boxes if box not in self._dissolved and box not in placing.leaves]

    # -- cycles ----------------------------------------------------------------------------

    def _cycles(self) -> list[list[_Unit]]:
        if self._known_cycles is None:
            links: _Links = {}
            for start, end in self._pairs:
                ends = self._unit_at(start), self._unit_at(end)
                if ends[0] is not ends[1]:
                    links[ends] = None
            self._known_cycles = find_cycles(links)
        return self._known_cycles

    def _unit_at(self, node_or_scope: _Unit) -> _Unit:
        """Return the unit that an operation is, or the unit that contains a scope."""
        return node_or_scope if isinstance(node_or_scope, Node) else self._around[node_or_scope]

    def _open_boxes(self, boxes: Iterable[Scope]) -> None:
        """Make boxes, with all scopes in them, units of this level."""
        self._known_cycles = None
        for box in boxes:
            self._around.update(dict.fromkeys([box, *self._placing.below(box)], box))

    # -- moves into a container ------------------------------------------------------------

    def _move_into_containers(self, cycles: list[list[_Unit]]) -> bool:
        """Move the other units of each cycle with a single container into that container.

        Returns:
            Whether any unit was moved.
        """
        moved = False
        for cycle in cycles:
            containers = _containers(cycle)
            movable = [unit for unit in cycle if unit not in containers]
            if len(containers) == 1 and all(map(self._placing.is_loose, movable)):
                self._move(movable, containers[0])
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
        moved: dict[_Unit, _Unit] = {node: container for node in units if isinstance(node, Node)}
        self._pairs = {
            (moved.get(start, start), moved.get(end, end)): None for start, end in self._pairs
        }

    def _move_helpers(self) -> None:
        """Move connected operations whose sources and readers are all in one container into it."""
        for helpers in self._helpers():
            helper_set = set(helpers)
            sources = {
                node for helper in helpers for node in self._placing.sources[helper]
            } - helper_set
            readers = {node for helper in helpers for node in self._placing.readers[helper]}
            neighbours = sources | (readers - helper_set)
            units = {self._unit_of(neighbour) for neighbour in neighbours}
            containers = _containers(units)
            if len(units) == len(containers) == 1 and (sources or len(neighbours) <= _MOST_READERS):
                self._move(helpers, containers[0])

    def _move_sums(self) -> None:
        """Move the operations that add up results of many members of a container into it.

        Each of these operations reads a member and the preceding operation; only the last
        operation has other readers.
        """
        for container, row in self._readers_alone().items():
            readers = {node: set(self._placing.readers[node]) for node in row}
            inner = {node for node in row if readers[node] and row.keys() >= readers[node]}
            last = set().union(*[readers[node] for node in inner]) - inner
            if len(inner) >= _MOST_READERS and len(last) == 1:
                self._move([node for node in row if node in inner or node in last], container)

    def _readers_alone(self) -> dict[Scope, dict[Node, None]]:
        """Return the operations that read a container, and otherwise only independent nodes.

        Independent are nodes outside of the level, operations on it that read only these, and
        operations that were already found for the container.
        """
        readers_of: dict[Scope, dict[Node, None]] = defaultdict(dict)
        independent: set[_Unit | None] = {None}
        for node in self._loose:
            units = {self._unit_of(source) for source in self._placing.sources[node]}
            if units <= independent:
                independent.add(node)
            for container in _containers(units):
                if units <= {container, *independent, *readers_of[container]}:
                    readers_of[container][node] = None
        return readers_of

    def _helpers(self) -> Iterable[list[Node]]:
        """Return the operations of this level in groups that are connected by edges."""
        # Union-find, since the order is not topological: nodes that were moved here come last,
        # even if others read them.
        group_of = {node: node for node in self._loose}

        def find(node: Node) -> Node:
            while group_of[node] is not node:
                group_of[node] = node = group_of[group_of[node]]
            return node

        for node in self._loose:
            for source in self._placing.sources[node]:
                if source in group_of:
                    group_of[find(node)] = find(source)
        groups: dict[Node, list[Node]] = {}
        for node in self._loose:
            groups.setdefault(find(node), []).append(node)
        return groups.values()

    def _unit_of(self, node: Node | None) -> _Unit | None:
        node_or_scope = None if node is None else self._places.get(node)
        return None if node_or_scope is None else self._unit_at(node_or_scope)

    # -- dissolved containers --------------------------------------------------------------

    def _dissolve(self, cycles: list[list[_Unit]], *, leaves: bool) -> bool:
        """Dissolve the containers on cycles: their members become units of this level.

        Args:
            cycles: The cycles.
            leaves: Whether leaf modules become units, too, or only boxes.
        Returns:
            Whether any member became a unit.
        """
        placing = self._placing
        containers = [unit for cycle in cycles for unit in _containers(cycle)]
        # More nodes are allowed on this level if boxes for functions and loops may relieve it.
        most = SLOW_LIMIT if any(node.run is not None for node in self._loose) else LEVEL_LIMIT
        inside = sum(len(placing.children[unit]) for unit in containers)
        if leaves and len(self._loose) + inside > most:
            return False
        parted = False
        for container in containers:
            boxes = [
                unit
                for unit in placing.children[container]
                if (leaves or unit not in placing.leaves) and self._around[unit] is container
            ]
            if boxes:
                self._dissolved += [container] if container not in self._dissolved else []
                self._open_boxes(boxes)
                parted = True
        return parted

    def _restore(self, container: Scope) -> None:
        """Restore a dissolved container if that makes no cycle, or if dissolving was in vain."""
        below = self._placing.below(container)
        before = self._around.copy()
        parts = {self._around[scope] for scope in below} - {container}
        cycles = [cycle for cycle in self._cycles() if not parts.isdisjoint(cycle)]
        circling = set[_Unit]().union(*cycles)
        # Dissolving was in vain if most members are still on cycles, or any with another container.
        vain = bool(_containers(circling - parts)) or len(parts & circling) * 2 > len(parts)
        self._open_boxes([container])
        if not vain:
            for cycle in self._cycles():
                others = [unit for unit in cycle if unit is not container]
                if len(others) < len(cycle) and not all(map(self._placing.is_loose, others)):
                    self._around, self._known_cycles = before, None
                    return
        inside = {container, *below}
        self._dissolved = [dissolved for dissolved in self._dissolved if dissolved not in inside]


def _containers(units: Iterable[_Unit | None]) -> list[Scope]:
    return [unit for unit in units if isinstance(unit, Scope) and unit.kind == "container"]
