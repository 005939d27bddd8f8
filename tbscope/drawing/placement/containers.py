"""Placement of nodes and scopes: the box in which each is drawn, if it is not its own scope.

A container that is never called (`ModuleList`, `ModuleDict`) runs no operation itself: edges
through the operations that its parent runs between two members would leave its box and enter it
again. So these operations are drawn in the box of the container, too. If that does not help,
since other modules run between the members, the container is dissolved: its members are drawn
beside each other in the parent's box. No operation leaves the box of the module that ran it.

The levels are processed from the outside inwards. On each, `_Level.place_units` first moves
operations into containers, or members of containers out of them, until no two boxes read each
other. It then restores containers that need not be dissolved or were dissolved in vain, and at last
moves operations that have neighbours only in one container into it.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Literal, TypeAlias

from tbscope.ir.graph import Graph, Node
from tbscope.ir.nodes import sources_of
from tbscope.ir.placement.partition import Level, Partition, Placement, Unit
from tbscope.ir.scope_io import OPERATIONS, OWNED, STATE
from tbscope.ir.scopes import Scope
from tbscope.page.constants import LEVEL_LIMIT, SLOW_LIMIT
from tbscope.utils.components import find_cycles

Helpers: TypeAlias = Literal["auto", "all", "none"]
"""The helper functions and loops that are boxes: those on levels that are too full ("auto"), every
function and the loops on these levels ("all"), or none."""

Stage: TypeAlias = Literal["functions", "parts", "steps"]
"""The boxes to look for: functions in which no module was called, any functions, or loops."""
STAGES: tuple[Stage, ...] = ("functions", "parts", "steps")
"""All stages, the mildest first."""

# Scope kinds that are neither modules nor named by the user.
_LOOSE_BOXES = frozenset({"function", "op"})
# An operation with more readers in a container would fill that box with lines.
_MOST_READERS = 4


def find_placement(graph: Graph, *, circles: bool, known: Placement) -> Placement:
    """Return the placement with which no two boxes read each other, as far as possible.

    Args:
        graph: The graph as it is drawn, with leaf modules as nodes.
        circles: Whether parameters are circles beside their readers, which link no boxes.
        known: The calls and nodes that are drawn in the box of their caller; and the boxes of
            functions and loop iterations, which are no scopes of the graph.
    """
    placement = replace(known, all=[*graph.scopes(), *known.all], boxes={**known.boxes}, beside={})
    # A container that is alone on its level cannot read its own results.
    parents = {scope.parent for scope in placement.all if scope.kind == "container"}
    several = len([scope for scope in placement.all if scope.parent in parents]) > len(parents)
    loose = (node for node in graph.nodes if node.kind == "op" and node.scope in parents)
    if several or known.all or (parents and any(loose)):
        _Placer(graph, placement, circles=circles).place_boxes()
    if known.all:
        _spare_boxes(placement, [scope for scope in known.all if scope.kind == "container"])
    return placement


def _spare_boxes(placement: Placement, pieces: list[Scope]) -> None:
    """Dissolve the pieces of lists that contain a single scope and no operation.

    Args:
        placement: Changed in place.
        pieces: The part of a list that one loop iteration called, as a box in that iteration.
    """
    contents: dict[Scope | None, list[Unit]] = defaultdict(list)
    for unit, box in placement.boxes.items():
        contents[box].append(unit)
    for scope in pieces:
        if scope not in placement.boxes:
            contents[scope.parent].append(scope)
    for piece in pieces:
        match contents[piece]:
            case [Scope() as scope]:
                placement.beside[scope] = piece


class _Placer:
    """Determines the placement for one graph, level by level, outer levels first.

    Attributes:
        placement: The placement so far.
        partition: The nodes in their boxes, without circles.
        leaves: The node of each leaf module that is drawn as a node.
        sources: The nodes that each node reads or has a control dependency on, without circles.
    """

    def __init__(self, graph: Graph, placement: Placement, *, circles: bool) -> None:
        self.placement = placement
        self._graph = graph
        hidden = OWNED if circles else frozenset({"constant"})
        shown = OPERATIONS if circles else OPERATIONS | STATE
        self.sources = {
            node: [source for source in sources_of(node) if source.kind not in hidden]
            for node in graph.nodes
        }
        self.partition = Partition(
            lambda: [*(node for node in graph.nodes if node.kind in shown), *placement.all],
            placement.boxes,
            self.sources.__getitem__,
        )
        self.leaves = {
            node.scope: node for node in graph.nodes if node.kind == "module" and node.scope
        }

    def place_boxes(self) -> None:
        """Determine the placement on all levels."""
        pending: list[Scope | None] = [None]
        while pending:
            holder = pending.pop()
            units = self.partition.inside[holder]
            boxes = [unit for unit in units if isinstance(unit, Scope) and unit not in self.leaves]
            # A container that is alone on its level cannot read its own results.
            if _containers(boxes) and len([unit for unit in units if _is_op_or_box(unit)]) > 1:
                boxes = _Level(self, holder).place_units()
            pending += boxes

    def is_loose(self, unit: Unit) -> bool:
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


class _Level(Level):
    """One level: the boxes and operations in a scope, and the links between them.

    Args:
        placing: The placement of the whole graph.
        holder: The scope whose level it is; None for the top level.
    """

    def __init__(self, placing: _Placer, holder: Scope | None) -> None:
        super().__init__(placing.partition, holder)
        self._placing = placing
        # The dissolved container of each of its members that is a unit of this level now.
        self._members: dict[Scope, Scope] = {}

    def place_units(self) -> list[Scope]:
        """Determine the placement on this level, and return its boxes, containers included."""
        # Containers of leaf modules are dissolved only if boxes would still read each other.
        for leaves in (False, True):
            while self._move_into_containers() or self._dissolve(leaves=leaves):
                pass
        for container in reversed(dict.fromkeys(self._members.values())):
            self._restore(container)
        while self._move_into_containers():
            pass
        self._move_helpers()
        self._move_sums()
        dissolved = {*self._members.values(), *self._placing.leaves}
        boxes = [unit for unit in self.units if isinstance(unit, Scope)]
        self._placing.placement.beside |= self._members
        self._placing.partition.move(self._members)
        return [box for box in boxes if box not in dissolved]

    def _loose(self) -> dict[Node, None]:
        """Return the operations directly on the level."""
        units = self.units
        return {unit: None for unit in units if isinstance(unit, Node) and _is_op_or_box(unit)}

    # -- moves into a container ------------------------------------------------------------

    def _move_into_containers(self) -> bool:
        """Move the other units of each cycle with a single container into that container.

        Returns:
            Whether any unit was moved.
        """
        moved = False
        for cycle in self.cycles():
            containers = _containers(cycle)
            movable = [unit for unit in cycle if unit not in containers]
            if len(containers) == 1 and all(map(self._placing.is_loose, movable)):
                self._move(movable, containers[0])
                moved = True
        return moved

    def _move(self, units: Iterable[Unit], container: Scope) -> None:
        self.move(dict.fromkeys(units, container))
        for unit in units:
            if isinstance(unit, Scope):
                self._members.pop(unit, None)

    def _move_helpers(self) -> None:
        """Move connected operations whose sources and readers are all in one container into it."""
        for helpers in self._helpers():
            helper_set = set(helpers)
            sources = {
                node for helper in helpers for node in self._placing.sources[helper]
            } - helper_set
            readers = {node for helper in helpers for node in self._placing.readers[helper]}
            neighbours = sources | (readers - helper_set)
            units = {self._neighbour(neighbour) for neighbour in neighbours}
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
        independent: set[Unit | None] = {None}
        for node in self._loose():
            units = {self._neighbour(source) for source in self._placing.sources[node]}
            if units <= independent:
                independent.add(node)
            for container in _containers(units):
                if units <= {container, *independent, *readers_of[container]}:
                    readers_of[container][node] = None
        return readers_of

    def _helpers(self) -> Iterable[list[Node]]:
        """Return the operations of this level in groups that are connected by edges."""
        loose = self._loose()
        steps = [
            (source, node)
            for node in loose
            for source in self._placing.sources[node]
            if source in loose
        ]
        # The order is not topological: nodes that were moved here come last, even if others read
        # them.
        groups = find_cycles([*steps, *((node, source) for source, node in steps)])
        joined = set(chain(*groups))
        return [*groups, *([node] for node in loose if node not in joined)]

    def _neighbour(self, node: Node | None) -> Unit | None:
        """Return the unit that is or contains a node; None for other levels and inputs."""
        unit = None if node is None else self.unit_of(node)
        return unit if unit is not None and _is_op_or_box(unit) else None

    # -- dissolved containers --------------------------------------------------------------

    def _dissolve(self, *, leaves: bool) -> bool:
        """Dissolve the containers on cycles: their members become units of this level.

        Args:
            leaves: Whether leaf modules become units, too, or only boxes.
        Returns:
            Whether any member became a unit.
        """
        containers = [unit for cycle in self.cycles() for unit in _containers(cycle)]
        members: dict[Scope, Scope] = {
            unit: container
            for container in containers
            for unit in self._placing.partition.inside[container]
            if isinstance(unit, Scope) and (leaves or unit not in self._placing.leaves)
        }
        if leaves and containers:
            # More nodes are allowed here if boxes for functions and loops may relieve the level.
            loose = self._loose()
            most = SLOW_LIMIT if any(node.run is not None for node in loose) else LEVEL_LIMIT
            inside = [container for container in self._members.values() if container in containers]
            if len(loose) + len(members) + len(inside) > most:
                return False
        self._members |= members
        self.move(dict.fromkeys(members, self.holder))
        return bool(members)

    def _restore(self, container: Scope) -> None:
        """Restore a dissolved container if that makes no cycle, or if dissolving was in vain."""
        parts: dict[Scope, Scope] = {}
        for member, around in self._members.items():
            if around is container or around in parts:
                parts[member] = around
        members = parts.keys()
        circling = {unit for cycle in self.cycles() if members & cycle for unit in cycle}
        # Dissolving was in vain if most members are still on cycles, or any with another container.
        in_vain = len(members & circling) * 2 > len(parts) or bool(_containers(circling - members))

        def fits(_: Scope) -> bool:
            return in_vain or all(
                unit is container or self._placing.is_loose(unit)
                for cycle in self.cycles()
                if container in cycle
                for unit in cycle
            )

        if self.settle({container: parts}, fits):
            for member in parts:
                del self._members[member]


def _is_op_or_box(unit: Unit) -> bool:
    return isinstance(unit, Scope) or unit.kind == "op"


def _containers(units: Iterable[Unit | None]) -> list[Scope]:
    return [unit for unit in units if isinstance(unit, Scope) and unit.kind == "container"]
