"""Partition of a graph into boxes: the box of each node and scope, and the cycles of boxes.

A unit of a level is a node or box directly in the box of the level. A link leads from a unit to a
unit that reads one of its values, or has a control dependency on it. The rules of placement propose
moves of units into other boxes. `Level.settle` is the one loop that tries them: it makes the moves
and undoes those of proposals that do not fit.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias, TypeVar

from tbscope.ir.graph import Node
from tbscope.ir.nodes import sources_of
from tbscope.ir.scopes import Scope, ScopePart
from tbscope.utils.components import find_cycles

Unit: TypeAlias = Node | Scope
"""A child of a level: an operation, or a box."""

_Unit = TypeVar("_Unit", bound=Unit)
_Key = TypeVar("_Key")

Moves: TypeAlias = Mapping[_Unit, Scope | None]
"""The new box of each unit; None for the top level."""


@dataclass(slots=True)
class Placement:
    """The placement of nodes and scopes that are not drawn in their own scope.

    Attributes:
        all: Every scope, parents first: the scopes of a graph, or further boxes.
        boxes: The box of a node that is not its scope, and of a scope that is not its parent.
        beside: The dissolved container of a scope that is drawn beside the other members.
        parts: The path part of a scope whose number differs in its new box.
        free: The boxes that are no scopes of the graph, and in which no module was called.
    """

    all: list[Scope] = field(default_factory=list)
    boxes: dict[Unit, Scope | None] = field(default_factory=dict)
    beside: dict[Scope, Scope] = field(default_factory=dict)
    parts: dict[Scope, ScopePart] = field(default_factory=dict)
    free: list[Scope] = field(default_factory=list)


class Partition:
    """The box in which each node and scope of a graph is drawn.

    Args:
        units: Returns the nodes whose edges count, and the scopes; called when first needed.
        boxes: As in `Placement`; changed by moves.
        sources_of: Returns the nodes that a node reads or has a control dependency on.

    Attributes:
        boxes, sources_of: As the arguments.
    """

    def __init__(
        self,
        units: Callable[[], Iterable[Unit]],
        boxes: dict[Unit, Scope | None],
        sources_of: Callable[[Node], Iterable[Node]] = sources_of,
    ) -> None:
        self._units, self.boxes, self.sources_of = units, boxes, sources_of

    @cached_property
    def inside(self) -> dict[Scope | None, dict[Unit, None]]:
        """The units directly in each box; those of None are at the top level."""
        inside: dict[Scope | None, dict[Unit, None]] = defaultdict(dict)
        for unit in self._units():
            inside[self.box_of(unit)][unit] = None
        return inside

    def box_of(self, unit: Unit) -> Scope | None:
        """Return the box in which a node or scope is drawn."""
        if unit in self.boxes:
            return self.boxes[unit]
        return unit.scope if isinstance(unit, Node) else unit.parent

    def move(self, moves: Moves[_Unit]) -> Moves[_Unit]:
        """Move units into other boxes, and return the moves that undo this."""
        back = {unit: self.box_of(unit) for unit in moves}
        for unit, box in moves.items():
            del self.inside[back[unit]][unit]
            self.inside[box][unit] = None
            self.boxes[unit] = box
            if box is (unit.scope if isinstance(unit, Node) else unit.parent):
                del self.boxes[unit]
        return back


class Level:
    """The units of one level, and the links between them.

    Args:
        partition: The partition of the whole graph, which moves change.
        holder: The box of the level; None for the top level.
        is_box: Whether a scope is a box; the units in other scopes are units of the level.
        deep: Whether a node may move out of a box that stays.
        beyond: Whether the operations of all other levels are units, too.
    """

    def __init__(
        self,
        partition: Partition,
        holder: Scope | None,
        *,
        is_box: Callable[[Scope], bool] = lambda scope: True,
        deep: bool = False,
        beyond: bool = False,
    ) -> None:
        self._partition, self.holder, self._is_box = partition, holder, is_box
        self._cycles: list[list[Unit]] | None = None
        # The unit of each node and scope, as far as known; dropped when it moves.
        self._known = known = dict[Unit | None, Unit | None]({None: None, holder: holder})
        ends: dict[Node, Unit] = {}
        pending = [None if beyond else holder]
        while pending:
            box = pending.pop()
            around = known[box]
            for inner in partition.inside.get(box, ()):
                if isinstance(inner, Scope):
                    pending.append(inner)
                    known.setdefault(inner, inner if around is holder and is_box(inner) else around)
                elif around is holder:
                    known[inner] = ends[inner] = inner
                else:
                    # The nodes of a box move together: their edges are those of the box.
                    ends[inner] = box if box and not deep else inner
        self._edges: dict[tuple[Unit, Unit], None] = {}
        for node, end in ends.items():
            for source in partition.sources_of(node):
                start = ends.get(source)
                if start is not None and start is not end:
                    self._edges[start, end] = None
        self._ends = dict.fromkeys(ends.values())

    @property
    def units(self) -> dict[Unit, None]:
        """The nodes and scopes directly in the box of the level."""
        return self._partition.inside[self.holder]

    def unit_of(self, node_or_scope: Unit) -> Unit | None:
        """Return the unit that a node or scope is, or that contains it; None on other levels."""
        path: list[Unit] = []
        above: Unit | None = node_or_scope
        while above is not None and above not in self._known:
            path.append(above)
            above = self._partition.box_of(above)
        unit = self._known[above]
        for inner in reversed(path):
            if unit is self.holder and (isinstance(inner, Node) or self._is_box(inner)):
                unit = inner
            self._known[inner] = unit
        return unit

    def cycles(self) -> list[list[Unit]]:
        """Return the units of each cycle."""
        if self._cycles is None:
            known = self._known
            units = {
                end: (known[end] if end in known else self.unit_of(end)) or end
                for end in self._ends
            }
            links: dict[tuple[Unit, Unit], None] = {}
            for source, reader in self._edges:
                start, end = units[source], units[reader]
                if start is not end:
                    links[start, end] = None
            self._cycles = find_cycles(links)
            self._circling = set[Unit]().union(*self._cycles)
        return self._cycles

    def circling(self) -> set[Unit]:
        """Return the units that are on a cycle."""
        self.cycles()
        return self._circling

    def move(self, moves: Moves[_Unit]) -> Moves[_Unit]:
        """Move units into other boxes, and return the moves that undo this."""
        if moves:
            self._cycles = None
        changed: set[Unit | None] = set()
        for unit in moves:
            if isinstance(unit, Scope):
                changed.add(self.unit_of(unit))
            else:
                self._known.pop(unit, None)
        if changed:
            known = self._known.items()
            self._known = {inner: unit for inner, unit in known if unit not in changed}
        return self._partition.move(moves)

    def settle(
        self, proposals: Mapping[_Key, Moves[_Unit]], fits: Callable[[_Key], bool]
    ) -> list[_Key]:
        """Make the moves of all proposals, then undo those of the proposals that do not fit.

        Args:
            proposals: The moves of each proposal.
            fits: Whether a proposal may be kept; called while the moves of all are made.
        Returns:
            The keys of the proposals that were kept.
        """
        undo = {key: self.move(moves) for key, moves in proposals.items()}
        for key in [key for key in proposals if not fits(key)]:
            self.move(undo.pop(key))
        return list(undo)
