"""The layout: under which name, as which op type and with which inputs everything is drawn.

What the page makes of a GraphDef it decides by these alone; attributes only tell. So they
are settled first, all together: names, what must not be folded, what stands in chunks,
and the seeds of the colours.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import NamedTuple

from tbscope.drawing.bundler import Bundler
from tbscope.drawing.bundles import STAGES, Bundles, Helpers, Stage
from tbscope.drawing.cards import Card, blank_cards, leaf_facts, module_cards
from tbscope.drawing.chunks import find_chunks, rename
from tbscope.drawing.circles import (
    is_one_alone,
    move_out_of_leaves,
    parameters_to_draw,
    read_by_stacks,
)
from tbscope.drawing.classes import mirrored_boxes
from tbscope.drawing.cuts import MANY_LOOSE, MOST_LOOSE, count_loose, is_crowded
from tbscope.drawing.families import short_names
from tbscope.drawing.gradients import find_gradients, first_of, reader_op
from tbscope.drawing.naming import Labels, Names, Style, name_graph, tell_keys
from tbscope.drawing.series import folded_in_vain, op_type_apart, op_types_apart
from tbscope.drawing.stands import find_stands
from tbscope.drawing.templates import Seed, seeds
from tbscope.figures.costs import Work
from tbscope.ir.graph import Graph, Nest, Node, Output, Value
from tbscope.ir.guests import Guests, find_guests
from tbscope.ir.modules import ModuleTree
from tbscope.ir.regions import OPERATIONS
from tbscope.ir.scopes import Scope
from tbscope.page.glyphs import Box
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.ops import op_type
from tbscope.page.siblings import Siblings, bears_seeds, find_siblings

__all__ = ["NodeHead", "Layout", "lay_out"]

_OP_TYPES = {"input": "Input", "parameter": "Parameter", "buffer": "Buffer", "constant": "Tensor"}
# TensorBoard draws what has `Const` in its op type as a small circle.
_CIRCLES = {"parameter": "ParameterConst", "buffer": "BufferConst", "constant": "Const"}
# The page puts a node of this type aside, out of the flow.
_CARD = "NoOp"


class NodeHead(NamedTuple):
    """What the page reads of one NodeDef before its attributes.

    Attributes:
        name: Its name.
        op: Its op type.
        inputs: What it reads, as in `NodeDef.input`.
    """

    name: str
    op: str
    inputs: Sequence[str]


# As `NodeHead(name, op, inputs)`, in a third of the time.
_new_head = partial(tuple.__new__, NodeHead)


@dataclass(slots=True)
class Layout:
    """All that is drawn, in the order of the GraphDef.

    Attributes:
        seeds: What makes equal boxes equal in colour; no part of the graph.
        nodes: One head for each node of the graph.
        outputs: One for each of its outputs.
        cards: One for each card.
        told: The cards.
        boxes: The name of the box of each scope; empty for one at the top level.
        facts: What is told of each node that stands for a module.
    """

    seeds: list[Seed] = field(default_factory=list)
    nodes: list[NodeHead] = field(default_factory=list)
    outputs: list[NodeHead] = field(default_factory=list)
    cards: list[NodeHead] = field(default_factory=list)
    told: list[Card] = field(default_factory=list)
    boxes: dict[Scope, str] = field(default_factory=dict)
    facts: dict[Node, dict[str, Nest]] = field(default_factory=dict)


def lay_out(
    graph: Graph,
    *,
    style: Style = "tf",
    root: bool | None = None,
    circles: bool = True,
    templates: bool = True,
    cards: bool = True,
    helpers: Helpers = "auto",
    work: Mapping[Scope, Work] | None = None,
    also: Collection[Scope] = (),
    stacks: Collection[Node] = (),
    labels: Labels = "name",
) -> Layout:
    """Settle how a graph is drawn.

    Args:
        graph: A graph that keeps the invariants.
        style: How scopes are named.
        root: Whether all names begin with the one scope that holds all (see `name_graph`).
        circles: Whether parameters and buffers are small circles beside what reads them,
            wherever that can be drawn, or nodes like others.
        templates: Whether equal boxes are made to have equal colours.
        cards: Whether the box of each module holds a node that tells of it.
        helpers: Whether functions and loops are boxes: where a level is too full, or every
            function, or none; not where a user's own function names all boxes.
        work: What ran in each scope, for the cards; None where that is not known.
        also: Further scopes whose boxes need such a node.
        stacks: Nodes that stand for many equal blocks: what they alone read is a circle.
        labels: Whether modules that are called by a number tell their class in style "tf".
    Returns:
        The layout; no two of its names are equal.
    """
    tree = ModuleTree(graph)
    parts = tree.part_of
    embedded = read_by_stacks(graph, stacks)
    root = False if is_one_alone(graph, stacks) else root
    given = _Given(graph, style, root, circles, leaf_facts(graph, work or {}, parts), embedded)
    given.short = short_names(graph)
    given.tells_classes = labels == "class"
    given.gradients = find_gradients(graph)
    given.guests = find_guests(graph)
    if cards:
        given.told += module_cards(graph, work or {}, parts, embedded)
    tree.forget()
    given.also += also
    drawing = _Drawing(given)
    if helpers != "none" and not callable(style):
        drawing = _bundled(drawing, every=helpers == "all")
    if drawing.names.ends and drawing.hierarchy.root in drawing.crowded:
        # What is cut into chunks are nodes, and inputs and outputs may share a box.
        given.boxed_ends = False
        drawing = drawing.anew()
    drawing.cut()
    layout, hierarchy, names, facts = (
        drawing.layout,
        drawing.hierarchy,
        drawing.names,
        given.facts,
    )
    layout.boxes = names.scopes
    layout.facts = facts
    if templates:
        classes, mirrored = _classes(names.scopes, given.short), mirrored_boxes(names.scopes)
        made = seeds(hierarchy, classes, mirrored)
        boxes = {seed.name.partition("/")[0] for seed in made}
        # The page counts their boxes when it looks for what to put aside at the top level.
        top = drawing.levels.get(hierarchy.root)
        layout.seeds = made if bears_seeds(hierarchy, len(boxes), top) else []
    hierarchy.forget()
    return layout


@dataclass(slots=True)
class _Given:
    """What is drawn, and how.

    Attributes:
        graph: The graph.
        style: How scopes are named.
        root: Whether all names begin with the one scope that holds all.
        circles: Whether parameters are circles.
        facts: What is told of each node that stands for a module.
        embedded: What is a circle wherever it is read.
        told: The cards of modules.
        also: Further scopes whose boxes need a card.
        short: How classes are called that are not called by their whole names.
        tells_classes: Whether modules that are called by a number tell their class.
        gradients: What reads gradients, with these.
        boxed_ends: Whether inputs and outputs whose names the page would cut are boxes.
        guests: What stands in the box of who called it.
    """

    graph: Graph
    style: Style
    root: bool | None
    circles: bool
    facts: dict[Node, dict[str, Nest]]
    embedded: set[Node]
    told: list[Card] = field(default_factory=list)
    also: list[Scope] = field(default_factory=list)
    short: dict[str, str] = field(default_factory=dict)
    tells_classes: bool = False
    gradients: dict[Node, Collection[Value]] = field(default_factory=dict)
    boxed_ends: bool = True
    guests: Guests = field(default_factory=Guests)


class _Drawing:
    """One way to draw a graph, which may be tried and left.

    Args:
        given: What is drawn, and how.
        bundles: Boxes that are no scopes of the graph; None for none.

    Attributes:
        given: What is drawn, and how.
        names: The name of everything.
        layout: What the page is given of it.
        hierarchy: How the page reads that.
        levels: The levels of many things as they were read last; those of another hierarchy
            where it was made anew since.
        crowded: The levels that the page cannot draw well.
        full: The levels with so many loose operations that it is hard to read, and how many.
    """

    def __init__(self, given: _Given, bundles: Bundles | None = None) -> None:
        self.given = given
        graph = given.graph
        stands = find_stands(graph, circles=given.circles, bundles=bundles, guests=given.guests)
        self._told = list(given.told)
        if given.also:
            # A list that is no box has no card either.
            apart = set(stands.beside.values())
            scopes = [scope for scope in given.also if scope not in apart]
            self._told += blank_cards(graph, scopes, self._told, given.embedded)
        short = given.short
        labels = [(card.scope, short.get(card.label, card.label)) for card in self._told]
        self.names = name_graph(
            graph,
            given.style,
            root=given.root,
            cards=labels,
            stands=stands,
            classes=short if given.tells_classes else None,
            boxed_ends=given.boxed_ends,
        )
        self._no_circles: set[Node] = set()
        self._bundles = bundles
        self._moved = bundles is not None or given.tells_classes
        found = parameters_to_draw(graph, self.names, constants_only=not given.circles)
        self._arrange(found - given.embedded)

    def _arrange(self, no_circles: set[Node]) -> None:
        """Settle op types and levels; draw these parameters as nodes."""
        given = self.given
        if no_circles:
            move_out_of_leaves(given.graph, self.names, no_circles)
            self._no_circles |= no_circles
        self._ops = _op_types(
            given.graph,
            self.names,
            given.facts,
            circles=given.circles,
            no_circles=self._no_circles,
        )
        self._ops.update({node: _CIRCLES[node.kind] for node in given.embedded})
        self._ops.update({node: reader_op(node) for node in given.gradients})
        self._join()
        self.levels = levels = self._unfold(find_siblings(self.hierarchy))
        self.crowded = {box: level for box, level in levels.items() if is_crowded(level)}
        loose = {box: count_loose(level) for box, level in levels.items()}
        self.full = {box: count for box, count in loose.items() if count > MANY_LOOSE}

    def _unfold(self, levels: dict[Box, Siblings]) -> dict[Box, Siblings]:
        """Have the page fold nothing that it would put aside then; return the levels so."""
        found = {
            f"{box.name}/{label}" if box.name else label
            for box, level in levels.items()
            for label in folded_in_vain(level)
        }
        if not found:
            return levels
        things: list[tuple[Node | Output, str]] = [*self.names.nodes.items()]
        things += zip(self.given.graph.outputs, self.names.outputs, strict=True)
        ops = self._ops
        ops.update({one: op_type_apart(one, ops[one]) for one, name in things if name in found})
        self.hierarchy.forget()
        self._join()
        return find_siblings(self.hierarchy)

    def _join(self) -> None:
        self.layout = _joined(self.given, self.names, self._ops, self._told)
        self.hierarchy = _hierarchy(self.layout)

    def anew(self) -> "_Drawing":
        """Return the drawing with the same boxes, as it is given now."""
        self.hierarchy.forget()
        return _Drawing(self.given, self._bundles)

    def wanting(self) -> Iterator[tuple[Scope | None, Sequence[Stage]]]:
        """Yield the scope of each level that is too full, and what may part it."""
        scopes: dict[str, Scope | None] = {"": None}
        scopes.update((name, scope) for scope, name in self.names.scopes.items())
        for box in {**self.crowded, **self.full}:
            if box.name not in scopes:
                continue
            stages = list(STAGES)
            if box not in self.crowded:
                # It needs no cut: no module need move.
                stages = ["functions", "steps"] if self.full[box] > MOST_LOOSE else ["functions"]
            yield scopes[box.name], stages

    def _find_chunks(self) -> dict[str, str]:
        """Return the new names of all that must stand in chunks."""
        named, bundles = self.names, self._bundles
        nodes = self.given.graph.nodes
        free = set() if bundles is None else set(bundles.free)
        boxes = (
            [] if bundles is None else [one for one in bundles.scopes if one.kind != "container"]
        )
        return find_chunks(
            self.hierarchy,
            self.crowded,
            bundles={named.scopes[box] for box in free},
            rounds={named.scopes[box] for box in boxes if box not in free},
            modules={named.nodes[node] for node in nodes if node.kind == "module"},
        )

    def cut(self) -> None:
        """Cut what the page cannot draw into chunks."""
        given = self.given
        mapping: dict[str, str] = {}
        while self.crowded:
            mapping = self._find_chunks()
            if not mapping:
                break
            self.hierarchy.forget()
            chunked = _renamed(self.names, mapping)
            # What has lost its neighbours to other chunks has no circles either.
            found = parameters_to_draw(given.graph, chunked, constants_only=not given.circles)
            found -= given.embedded
            if found <= self._no_circles:
                self.names = chunked
                self._moved = True
                break
            self._arrange(found - self._no_circles)
        if self._moved and given.style == "tf":
            tell_keys(given.graph, self.names)
        if self._moved:
            self._join()


def _bundled(drawing: _Drawing, *, every: bool) -> _Drawing:
    """Return a drawing with boxes for functions and loops where levels are too full."""
    if not every and not drawing.crowded and not drawing.full:
        return drawing
    bundler = Bundler(drawing.given.graph, drawing.given.guests)
    if not bundler.knows:
        return drawing
    if every:
        bundler.bundle_all()
    tried: set[tuple[Scope | None, Stage]] = set()
    while True:
        if bundler.changed:
            bundler.changed = False
            drawing.hierarchy.forget()
            drawing = _Drawing(drawing.given, bundler.found)
        for level, stages in drawing.wanting():
            for stage in stages:
                # What is in a box now may leave a level that is drawn well.
                if (level, stage) not in tried:
                    tried.add((level, stage))
                    if bundler.bundle(level, stage):
                        break
        if not bundler.changed:
            return drawing


def _op_types(
    graph: Graph,
    names: Names,
    facts: dict[Node, dict[str, Nest]],
    *,
    circles: bool,
    no_circles: set[Node],
) -> dict[Node | Output, str]:
    """Return the op type of each node and output."""
    types = _OP_TYPES | (_CIRCLES if circles else {"constant": "Const"})
    safe: dict[str, str] = {}
    ops: dict[Node | Output, str] = {}
    for node in graph.nodes:
        kind = node.kind
        if kind in OPERATIONS:
            op = safe.get(node.op)
            if op is None:
                op = safe[node.op] = op_type(node.op)
            ops[node] = op
        else:
            ops[node] = types[kind] if node not in no_circles else _OP_TYPES[kind]
    ops.update(dict.fromkeys(graph.outputs, "Output"))
    ops.update(op_types_apart(graph, names, facts, ops))
    return ops


def _joined(given: _Given, names: Names, ops: dict[Node | Output, str], told: list[Card]) -> Layout:
    graph, of_nodes = given.graph, names.nodes
    read = {node: first_of(node.inputs, found) for node, found in given.gradients.items()}
    layout = Layout(told=told)
    layout.nodes = [
        _new_head(
            (
                of_nodes[node],
                ops[node],
                _inputs(read.get(node, node.inputs), node.control_inputs, of_nodes)
                if node.inputs or node.control_inputs
                else (),
            )
        )
        for node in graph.nodes
    ]
    layout.outputs = [
        NodeHead(name, ops[out], _inputs([out.value], out.control_inputs, of_nodes))
        for name, out in zip(names.outputs, graph.outputs, strict=True)
    ]
    layout.cards = [NodeHead(name, _CARD, ()) for name in names.cards]
    return layout


def _inputs(
    values: Iterable[Value], control_inputs: Iterable[Node], names: dict[Node, str]
) -> list[str]:
    """Return the references of a node, data first.

    TensorBoard drops a reference to the same node as the one before it, whatever its
    output (tf_graph_common/graph.ts, `normalizeInputs`); an empty one keeps them apart.
    """
    references: list[str] = []
    last: Node | None = None
    for value in values:
        node = value.producer
        if node is last:
            references.append("")
        references.append(f"{names[node]}:{value.index}" if value.index else names[node])
        last = node
    for node in control_inputs:
        if node is last:
            references.append("")
        references.append(f"^{names[node]}")
        last = node
    return references


def _hierarchy(layout: Layout) -> Hierarchy:
    return Hierarchy(chain(layout.nodes, layout.outputs, layout.cards))


def _renamed(names: Names, mapping: dict[str, str]) -> Names:
    """Return the names as they are with chunks."""
    return Names(
        dict(zip(names.scopes, rename(names.scopes.values(), mapping), strict=True)),
        dict(zip(names.nodes, rename(names.nodes.values(), mapping), strict=True)),
        rename(names.outputs, mapping),
        rename(names.cards, mapping),
        rename(names.ends, mapping),
    )


def _classes(names: dict[Scope, str], short: Mapping[str, str]) -> dict[str, str]:
    """Return the class of the module that each box stands for, or whose gradients are in it."""
    return {
        name: short.get(scope.part.label, scope.part.label)
        for scope, name in names.items()
        if name and (scope.kind == "module" or (scope.phase != "forward" and scope.part.attribute))
    }
