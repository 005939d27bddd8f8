"""Placement of figures: the drawn node or info card at which each figure of the graph is shown.

Operations that passes removed keep their figures: a figure is shown at the node into which its
operation was merged, else at a neighbour of its scope, else at the info card of that scope. So
the figures in a box add up to those of all operations that ran in its scope, drawn or not.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from tbscope.drawing.figures import Figure, Number, Target
from tbscope.drawing.layout import Layout
from tbscope.graphdef.run_metadata import Stat
from tbscope.ir.graph import Graph, Node, Value
from tbscope.ir.scope_io import OPERATIONS, NearestProperty, add_with_ancestors, self_and_ancestors
from tbscope.ir.scopes import Scope
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.op_types import is_embedded
from tbscope.page.series import find_series

Place: TypeAlias = Node | Scope
"""The place of a figure: a drawn node, or a scope, which means its info card."""

# Drawn nodes with the indices of the operations in the graph that they represent, in order.
_Row: TypeAlias = list[tuple[int, Node]]
# The page ignores figures of nodes without a device.
_DEVICE = "cpu"


class CopyPairs(NamedTuple):
    """The nodes of a graph and of its copy, as they were before passes changed the copy.

    Attributes:
        copies: The copy of each node.
        kernels: The copy of each kernel inside an operation, and that operation.
        outputs: The original outputs of each copied node.
    """

    copies: dict[Node, Node]
    kernels: dict[Node, tuple[Node, Node]]
    outputs: dict[Node, tuple[Value, ...]]

    @classmethod
    def of(cls, graph: Graph, copy: Graph) -> "CopyPairs":
        """Record a graph and its new copy, which no pass has changed yet."""
        copies = dict(zip(graph.nodes, copy.nodes, strict=True))
        kernels = {
            kernel: (copied_kernel, node)
            for node, copied in copies.items()
            if node.body is not None and copied.body is not None
            for kernel, copied_kernel in zip(node.body.nodes, copied.body.nodes, strict=True)
        }
        return cls(copies, kernels, {copied: tuple(copied.outputs) for copied in copy.nodes})


def place_figures(
    figures: Sequence[Figure],
    origin: CopyPairs,
    drawn: Graph,
    layout: Layout,
    stood_for: Mapping[Node | Scope, Node],
) -> list[Stat]:
    """Add figures to the drawn graph: as attributes, and as the stats by which the page colours.

    Args:
        figures: Numbers of nodes and scopes of the graph.
        origin: The nodes of the graph and of its copy before passes changed the copy.
        drawn: The copy as it is drawn; its nodes get attributes.
        layout: The layout of the copy; info cards and nodes that represent modules get facts.
        stood_for: The node that represents each operation and each scope of a stack of blocks.
    Returns:
        The stats of all nodes, colour seeds included; 0 for a node without a figure. Empty if
        no figure feeds a colouring.
    """
    places = _PlaceFinder(origin, drawn, layout, stood_for)
    times: dict[Place, float] = defaultdict(float)
    sizes: dict[Place, int] = defaultdict(int)
    for figure in figures:
        numbers_at: dict[Place, list[Number]] = defaultdict(list)
        for target, number in figure.numbers.items():
            item = places.of(target)
            # An empty drawing has no place.
            if item is not None:
                numbers_at[item].append(number)
            circle = places.circle_of(target)
            if circle is not None:
                _tell(circle.attributes, figure, number)
        # The figures in each scope, at any depth.
        numbers_in: dict[Scope, list[Number]] = defaultdict(list)
        for item, numbers in numbers_at.items():
            number = figure.join(numbers)
            if isinstance(item, Node):
                facts = layout.facts.get(item, item.attributes)
                _tell(facts, figure, number, flops=item.flops)
            if figure.as_us:
                times[item] += number * figure.as_us
            if figure.as_bytes:
                sizes[item] += round(number * figure.as_bytes)
            for scope in self_and_ancestors(item.scope if isinstance(item, Node) else item):
                numbers_in[scope].append(number)
        for card in layout.info_cards:
            if card.scope in numbers_in:
                _tell(card.facts, figure, figure.join(numbers_in[card.scope]))
    if not times and not sizes:
        return []
    stacks = _stacks(layout)
    # The page hatches nodes without stats and hides their names, so every node has one.
    stats = [
        Stat(
            name,
            device,
            times.get(item, 0.0),
            sizes.get(item, 0),
            tuple([value.shape for value in item.outputs]) if isinstance(item, Node) else (),
            stacks.get(name, ""),
        )
        for item, name, device in _drawn_places(drawn, layout)
    ]
    device = stats[0].device if stats else _DEVICE
    for head, output in zip(layout.outputs, drawn.outputs, strict=True):
        shape = (output.given or output.value).shape
        stats.append(Stat(head.name, device, 0.0, 0, (shape,), stacks.get(head.name, "")))
    # Boxes show only sums; boxes of the panel are in no other box, so this 1 adds to nothing.
    return stats + [Stat(seed.name, device, 0.0, 1) for seed in layout.seeds]


def _tell(
    facts: dict[str, object], figure: Figure, number: Number, *, flops: Number | None = None
) -> None:
    """Add a figure to the facts of a card; `_` is appended to a name with another number."""
    shown_facts = facts | {"flops": flops} if flops else facts
    name = figure.name
    while shown_facts.get(name, number) != number:
        name += "_"
    facts[name] = number
    if figure.unit:
        facts[f"{name}.unit"] = figure.unit


def _drawn_places(drawn: Graph, layout: Layout) -> Iterator[tuple[Place, str, str]]:
    """Yield each place with its name in the GraphDef and its device, in the GraphDef's order.

    Embedded nodes are no places: the page shows no figures of them.
    """
    first = ""
    on_device: set[Scope] = set()
    devices: dict[Scope, str] = {}
    for node, entry in zip(drawn.nodes, layout.nodes, strict=True):
        # The device of its first output, else of its first input.
        device = next((value.device for value in chain(node.outputs, node.inputs)), "")
        if device:
            first = first or device
            devices.update(dict.fromkeys(add_with_ancestors(node.scope, on_device), device))
        if not is_embedded(entry.op):
            yield node, entry.name, device or first or _DEVICE
    for card, entry in zip(layout.info_cards, layout.cards, strict=True):
        yield card.scope, entry.name, devices.get(card.scope, _DEVICE)


def _stacks(layout: Layout) -> dict[str, str]:
    """Return the stack of each node that the page folds with its siblings, by name."""
    hierarchy = Hierarchy(chain(layout.nodes, layout.outputs))
    boxes = (hierarchy.root, *hierarchy.boxes.values())
    stacks = [stack for box in boxes for stack in find_series(box)]
    hierarchy.forget()
    return {member.name: stack.name for stack in stacks for member in stack.members}


class _PlaceFinder:
    """Finds the place of each node and each scope of a graph.

    Args:
        origin: The nodes of the graph and of its copy before passes changed the copy.
        drawn: The copy as it is drawn.
        layout: The layout of the copy.
        stood_for: The node that represents each operation and scope of a stack of blocks.
    """

    def __init__(
        self,
        origin: CopyPairs,
        drawn: Graph,
        layout: Layout,
        stood_for: Mapping[Node | Scope, Node],
    ) -> None:
        self._origin, self._stood_for = origin, stood_for
        self._order = {copied: at for at, copied in enumerate(origin.outputs)}
        entries = zip(drawn.nodes, layout.nodes, strict=True)
        # The page does not colour embedded nodes.
        self._embedded = {node for node, entry in entries if is_embedded(entry.op)}
        self._shown = dict.fromkeys(node for node in drawn.nodes if node not in self._embedded)
        modules = {node.scope: node for node in drawn.nodes if node.kind == "module" and node.scope}
        modules |= {scope: node for scope, node in stood_for.items() if isinstance(scope, Scope)}
        self._cards = cards = {card.scope for card in layout.info_cards}
        self._module_around = NearestProperty[Node](modules.get)
        self._told_around = NearestProperty[Place](
            lambda scope: scope if scope in cards else modules.get(scope)
        )
        self._known: dict[Node, Place | None] = {}

    def of(self, target: Target) -> Place | None:
        """Return the place of a figure of a node or a scope; None if nothing is drawn."""
        if isinstance(target, Scope):
            return self._told_around(target) or self._near(target, -1)
        if target in self._origin.kernels:
            kernel, operation = self._origin.kernels[target]
            return kernel if kernel in self._shown else self.of(operation)
        if target not in self._known:
            copied = self._origin.copies[target]
            item: Place | None = self._direct(copied)
            readers = self._readers.get(target) if target.kind not in OPERATIONS else None
            if item is None and readers:
                # The place of a parameter is its first reader, preferably in its own scope.
                own_readers = (reader for reader in readers if reader.scope is target.scope)
                item = self.of(next(own_readers, readers[0]))
            self._known[target] = item or self._near(target.scope, self._order[copied])
        return self._known[target]

    def circle_of(self, target: Target) -> Node | None:
        """Return the circle of a parameter, or None if it is not drawn as a circle."""
        copied = self._origin.copies.get(target) if isinstance(target, Node) else None
        return copied if copied in self._embedded else None

    def _direct(self, copied: Node) -> Node | None:
        """Return the drawn node that is an operation, or into which it was merged; else None."""
        if copied in self._shown:
            return copied
        if copied in self._stood_for:
            return self._stood_for[copied]
        module_node = self._module_around(copied.scope)
        if module_node is not None and copied.kind in OPERATIONS:
            return module_node
        producers = [value.producer for value in self._origin.outputs[copied]]
        # An operation that only returned its inputs is represented by the last of its kernels.
        kernels = copied.body.nodes if copied.body is not None else []
        return next(
            (node for node in (*producers, *reversed(kernels)) if node in self._shown), None
        )

    @cached_property
    def _readers(self) -> dict[Node, list[Node]]:
        readers: dict[Node, list[Node]] = defaultdict(list)
        for reader in self._origin.copies:
            for value in reader.inputs:
                readers[value.producer].append(reader)
        return readers

    def _near(self, scope: Scope | None, at: int) -> Place | None:
        """Return a place near a node that is not drawn, and in its box if possible.

        This is an operation of its scope, else the info card of the scope, else any operation
        in it. If the scope is not drawn at all, the enclosing scope is searched.

        Args:
            scope: The scope of the node.
            at: The index of the node in the graph; -1 for a scope itself.
        """
        row = self._rows(scope)
        if row is None:
            return next(iter(self._shown), None)
        if isinstance(row, Scope):
            return row
        # The next drawn node in the order of the graph, or the last if there is none.
        return row[min(bisect_left(row, at, key=itemgetter(0)), len(row) - 1)][1]

    @cached_property
    def _rows(self) -> "NearestProperty[_Row | Scope]":
        """The candidates in a scope: its drawn operations, its info card, or operations below."""
        own: dict[Scope | None, _Row] = {}
        inside: dict[Scope | None, _Row] = {}
        for copied, at in self._order.items():
            node = self._direct(copied) if copied.kind in OPERATIONS else None
            if node is not None:
                own.setdefault(copied.scope, []).append((at, node))
                for scope in (*self_and_ancestors(copied.scope), None):
                    inside.setdefault(scope, []).append((at, node))

        def near(scope: Scope) -> _Row | Scope | None:
            return own.get(scope) or (scope if scope in self._cards else inside.get(scope))

        return NearestProperty(near, top=own.get(None) or inside.get(None))
