"""Places: where in a drawing the figures of a graph's nodes stand.

What passes leave out keeps its figure: it stands where the operation has become part of
another one, else at a neighbour of the same scope, else at the card of that scope. So the
figures of a box add up to those of all that ran in its scope, drawn or not.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from tbscope.drawing.figures import Figure, Number, Target
from tbscope.drawing.layout import Layout
from tbscope.graphdef.run_metadata import Stat
from tbscope.ir.graph import Graph, Node, Value
from tbscope.ir.scope_io import OPERATIONS, Nearest, add_with_above, upward
from tbscope.ir.scopes import Scope
from tbscope.page.constants import SERIES_SIZE
from tbscope.page.op_types import is_embedded
from tbscope.page.series import fold

__all__ = ["Origin", "Place", "place_figures"]

Place: TypeAlias = Node | Scope
"""A drawn node, or the scope whose card it is."""

# Places of operations with their positions in the graph, in order.
_Row: TypeAlias = list[tuple[int, Node]]
# The page takes no figures of what is on no device.
_DEVICE = "cpu"


class Origin(NamedTuple):
    """The nodes of a copy, as they were before passes changed it.

    Attributes:
        twins: The copy of each node.
        kernels: The copy of each kernel inside an operation, and that operation.
        outputs: What each copy of a node gave.
    """

    twins: dict[Node, Node]
    kernels: dict[Node, tuple[Node, Node]]
    outputs: dict[Node, tuple[Value, ...]]

    @classmethod
    def of(cls, graph: Graph, copy: Graph) -> "Origin":
        """Remember what a new copy of a graph holds."""
        twins = dict(zip(graph.nodes, copy.nodes, strict=True))
        kernels = {
            kernel: (twin_kernel, node)
            for node, twin in twins.items()
            if node.body is not None and twin.body is not None
            for kernel, twin_kernel in zip(node.body.nodes, twin.body.nodes, strict=True)
        }
        return cls(twins, kernels, {twin: tuple(twin.outputs) for twin in copy.nodes})


def place_figures(
    figures: Sequence[Figure],
    origin: Origin,
    drawn: Graph,
    layout: Layout,
    stood_for: Mapping[Node | Scope, Node],
) -> list[Stat]:
    """Put figures on the drawn graph: as attributes, and as the stats that the page colours by.

    Args:
        figures: Numbers of nodes and scopes of the graph.
        origin: What the copy of the graph held before passes changed it.
        drawn: The copy as it is drawn; its nodes get attributes.
        layout: How it is drawn; its cards, and the nodes that stand for modules, get facts.
        stood_for: The node that stands for operations of the copy, and for scopes, which are
            part of it now.
    Returns:
        The stats of all nodes, with those that only shape colours; of those without a figure
        for a colouring they tell nothing. None where no node has one.
    """
    places = _Places(origin, drawn, layout, stood_for)
    times: dict[Place, float] = defaultdict(float)
    sizes: dict[Place, int] = defaultdict(int)
    for figure in figures:
        held: dict[Place, list[Number]] = defaultdict(list)
        for target, number in figure.numbers.items():
            place = places.of(target)
            # Where nothing at all is drawn, nothing can tell a number.
            if place is not None:
                held[place].append(number)
            circle = places.circle_of(target)
            if circle is not None:
                _tell(circle.attributes, figure, number)
        # By each scope, the figures of everything in it and below it.
        inside: dict[Scope, list[Number]] = defaultdict(list)
        for place, numbers in held.items():
            number = figure.join(numbers)
            if isinstance(place, Node):
                facts = layout.facts.get(place, place.attributes)
                _tell(facts, figure, number, flops=place.flops)
            if figure.as_us:
                times[place] += number * figure.as_us
            if figure.as_bytes:
                sizes[place] += round(number * figure.as_bytes)
            for scope in upward(place.scope if isinstance(place, Node) else place):
                inside[scope].append(number)
        for card in layout.told:
            if card.scope in inside:
                _tell(card.facts, figure, figure.join(inside[card.scope]))
    if not times and not sizes:
        return []
    stacks = _stacks(layout)
    # What has no stat the page hatches, and hides its name: so all has one, if only of nothing.
    stats = [
        Stat(
            name,
            device,
            times.get(place, 0.0),
            sizes.get(place, 0),
            tuple([value.shape for value in place.outputs]) if isinstance(place, Node) else (),
            stacks.get(name, ""),
        )
        for place, name, device in _drawn_places(drawn, layout)
    ]
    device = stats[0].device if stats else _DEVICE
    values = [output.given or output.value for output in drawn.outputs]
    for head, value in zip(layout.outputs, values, strict=True):
        stack = stacks.get(head.name, "")
        stats.append(Stat(head.name, device, 0.0, 0, (value.shape,), stack))
    # A box has nothing to tell but sums, and one of the panel stands in no other.
    return stats + [Stat(seed.name, device, 0.0, 1) for seed in layout.seeds]


def _tell(
    facts: dict[str, Any], figure: Figure, number: Number, *, flops: Number | None = None
) -> None:
    """Add a figure to the facts of a card, under a name that is free or has the same number."""
    told = facts | {"flops": flops} if flops else facts
    name = figure.name
    while told.get(name, number) != number:
        name += "_"
    facts[name] = number
    if figure.unit:
        facts[f"{name}.unit"] = figure.unit


def _drawn_places(drawn: Graph, layout: Layout) -> Iterator[tuple[Place, str, str]]:
    """Return each place with its name in the GraphDef and its device, in the GraphDef's order.

    What is embedded in what reads it is none: the page has no figures of it.
    """
    first = ""
    on_device: set[Scope] = set()
    devices: dict[Scope, str] = {}
    for node, entry in zip(drawn.nodes, layout.nodes, strict=True):
        # The device of its first output, else of its first input.
        device = next((value.device for value in chain(node.outputs, node.inputs)), "")
        if device:
            first = first or device
            devices.update(dict.fromkeys(add_with_above(node.scope, on_device), device))
        if not is_embedded(entry.op):
            yield node, entry.name, device or first or _DEVICE
    for card, entry in zip(layout.told, layout.cards, strict=True):
        yield card.scope, entry.name, devices.get(card.scope, _DEVICE)


def _stacks(layout: Layout) -> dict[str, str]:
    """Return the stack of each node that the page folds with its siblings."""
    levels: dict[str, dict[str, str]] = defaultdict(dict)
    for head in chain(layout.nodes, layout.outputs):
        if head.name[-1].isdigit() and not is_embedded(head.op):
            levels[head.name.rpartition("/")[0]][head.name] = head.op
    found: dict[str, str] = {}
    for box, ops in levels.items():
        if len(ops) >= SERIES_SIZE:
            names = list(ops)
            labels = [name.rpartition("/")[2] for name in names]
            for stack, places in fold(labels, list(ops.values())).items():
                found.update({names[place]: f"{box}/{stack}" for place in places})
    return found


class _Places:
    """Finds the place of each node and each scope of a graph.

    Args:
        origin: What the copy of the graph held before passes changed it.
        drawn: The copy as it is drawn.
        layout: How it is drawn.
        stood_for: What is part of another node now.
    """

    def __init__(
        self,
        origin: Origin,
        drawn: Graph,
        layout: Layout,
        stood_for: Mapping[Node | Scope, Node],
    ) -> None:
        self._origin, self._stood_for = origin, stood_for
        self._order = {twin: at for at, twin in enumerate(origin.outputs)}
        entries = zip(drawn.nodes, layout.nodes, strict=True)
        # What is embedded in what reads it has no colour.
        self._embedded = {node for node, entry in entries if is_embedded(entry.op)}
        self._shown = dict.fromkeys(node for node in drawn.nodes if node not in self._embedded)
        modules = {node.scope: node for node in drawn.nodes if node.kind == "module" and node.scope}
        modules |= {scope: node for scope, node in stood_for.items() if isinstance(scope, Scope)}
        self._cards = cards = {card.scope for card in layout.told}
        self._module_around = Nearest[Node](modules.get)
        self._told_around = Nearest[Place](
            lambda scope: scope if scope in cards else modules.get(scope)
        )
        self._known: dict[Node, Place | None] = {}

    def of(self, target: Target) -> Place | None:
        """Return the place of a figure of a node or a scope; None where nothing is drawn."""
        if isinstance(target, Scope):
            return self._told_around(target) or self._near(target, -1)
        if target in self._origin.kernels:
            kernel, operation = self._origin.kernels[target]
            return kernel if kernel in self._shown else self.of(operation)
        if target not in self._known:
            twin = self._origin.twins[target]
            place: Place | None = self._direct(twin)
            readers = self._readers.get(target) if target.kind not in OPERATIONS else None
            if place is None and readers:
                # A parameter stands at its first reader, in its own scope if there is one.
                inside = (reader for reader in readers if reader.scope is target.scope)
                place = self.of(next(inside, readers[0]))
            self._known[target] = place or self._near(target.scope, self._order[twin])
        return self._known[target]

    def circle_of(self, target: Target) -> Node | None:
        """Return the circle of a parameter, if its figure stands at the node that reads it."""
        twin = self._origin.twins.get(target) if isinstance(target, Node) else None
        return twin if twin in self._embedded else None

    def _direct(self, twin: Node) -> Node | None:
        """Return the drawn node that an operation is, or has become part of."""
        if twin in self._shown:
            return twin
        if twin in self._stood_for:
            return self._stood_for[twin]
        place = self._module_around(twin.scope)
        if place is not None and twin.kind in OPERATIONS:
            return place
        givers = [value.producer for value in self._origin.outputs[twin]]
        # Where all that it gave was handed on, the last of its kernels stands for it.
        kernels = twin.body.nodes if twin.body is not None else []
        return next((one for one in (*givers, *reversed(kernels)) if one in self._shown), None)

    @cached_property
    def _readers(self) -> dict[Node, list[Node]]:
        found: dict[Node, list[Node]] = defaultdict(list)
        for reader in self._origin.twins:
            for value in reader.inputs:
                found[value.producer].append(reader)
        return found

    def _near(self, scope: Scope | None, at: int) -> Place | None:
        """Return a place for a node that is not drawn, near to it and not outside of its box.

        That is an operation of the same scope, the card of the scope, or anything in it;
        where nothing of it is drawn, the same for the scope around it.
        """
        row = self._rows(scope)
        if row is None:
            return next(iter(self._shown), None)
        if isinstance(row, Scope):
            return row
        # The next place, or the last one before.
        return row[min(bisect_left(row, at, key=itemgetter(0)), len(row) - 1)][1]

    @cached_property
    def _rows(self) -> "Nearest[_Row | Scope]":
        """The nearest to a scope: the drawn operations in it, its card, or those below."""
        own: dict[Scope | None, _Row] = {}
        inside: dict[Scope | None, _Row] = {}
        for twin, at in self._order.items():
            place = self._direct(twin) if twin.kind in OPERATIONS else None
            if place is not None:
                own.setdefault(twin.scope, []).append((at, place))
                for scope in (*upward(twin.scope), None):
                    inside.setdefault(scope, []).append((at, place))

        def near(scope: Scope) -> _Row | Scope | None:
            return own.get(scope) or (scope if scope in self._cards else inside.get(scope))

        return Nearest(near, top=own.get(None) or inside.get(None))
