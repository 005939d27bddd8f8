"""The layout: under which name, as which op type and with which inputs everything is drawn.

What the page makes of a GraphDef it decides by these alone; attributes only tell. So they
are settled first, all together: names, what must not be folded, what stands in chunks,
and the seeds of the colours.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain

from tbscope.analysis.costs import Costs
from tbscope.drawing.chunks import find_chunks, rename
from tbscope.drawing.class_prefixes import short_names
from tbscope.drawing.color_seeds import NodeHead, seeds
from tbscope.drawing.const_nodes import (
    is_one_alone,
    move_out_of_leaves,
    parameters_to_draw,
    read_by_stacks,
)
from tbscope.drawing.info_cards import Card, blank_cards, leaf_facts, module_cards
from tbscope.drawing.naming import Labels, Names, Style, name_graph, tell_keys
from tbscope.drawing.placement.containers import STAGES, Helpers, Stage, Stands, find_stands
from tbscope.drawing.placement.function_boxes import Bundler
from tbscope.drawing.placement.split_levels import MANY_LOOSE, MOST_LOOSE, count_loose, is_crowded
from tbscope.drawing.series_folding import folded_in_vain, op_type_apart, op_types_apart
from tbscope.ir.graph import Graph, Nest, Node, Output, Value
from tbscope.ir.module_tree import ModuleTree
from tbscope.ir.placement.borrowed_calls import Guests, find_guests
from tbscope.ir.scope_io import OPERATIONS
from tbscope.ir.scopes import Scope
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.level_graph import bears_seeds, find_siblings
from tbscope.page.op_types import op_type

__all__ = ["Layout", "lay_out"]

_OP_TYPES = {"input": "Input", "parameter": "Parameter", "buffer": "Buffer", "constant": "Tensor"}
# TensorBoard draws what has `Const` in its op type as a small circle.
_CIRCLES = {"parameter": "ParameterConst", "buffer": "BufferConst", "constant": "Const"}
# The page puts a node of this type aside, out of the flow.
_CARD = "NoOp"


@dataclass(slots=True)
class Layout:
    """All that is drawn, in the order of the GraphDef.

    Attributes:
        nodes: One head for each node of the graph.
        outputs: One for each of its outputs.
        cards: One for each card.
        told: The cards.
        boxes: The name of the box of each scope; empty for one at the top level.
        facts: What is told of each node that stands for a module.
        seeds: What makes equal boxes equal in colour; no part of the graph.
    """

    nodes: list[NodeHead]
    outputs: list[NodeHead]
    cards: list[NodeHead]
    told: list[Card]
    boxes: dict[Scope, str]
    facts: dict[Node, dict[str, Nest]]
    seeds: list[NodeHead] = field(default_factory=list)


def lay_out(
    graph: Graph,
    *,
    style: Style = "tf",
    root: bool | None = None,
    circles: bool = True,
    templates: bool = True,
    cards: bool = True,
    helpers: Helpers = "auto",
    work: Mapping[Scope, Costs] | None = None,
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
    tree, work = ModuleTree(graph), work or {}
    embedded, short = read_by_stacks(graph, stacks), short_names(graph)
    given = _Given(
        graph,
        style=style,
        root=False if is_one_alone(graph, stacks) else root,
        circles=circles,
        facts=leaf_facts(graph, work, tree.part_of),
        embedded=embedded,
        told=[*module_cards(graph, work, tree.part_of, embedded)] if cards else [],
        also=also,
        short=short,
        tells_classes=labels == "class",
        guests=find_guests(graph),
    )
    tree.forget()
    drawing = _Drawing(given)
    if helpers != "none" and not callable(style):
        drawing = _bundled(drawing, every=helpers == "all")
    if drawing.names.ends and drawing.hierarchy.root in drawing.crowded:
        # What is cut into chunks are nodes, and inputs and outputs may share a box.
        given.boxed_ends = False
        drawing.hierarchy.forget()
        drawing = _Drawing(given, drawing.bundles)
    drawing.cut()
    layout, hierarchy = drawing.layout, drawing.hierarchy
    if templates:
        # The class of the module that each box stands for, or whose gradients are in it.
        classes = {
            name: short.get(scope.part.label, scope.part.label)
            for scope, name in layout.boxes.items()
            if name
            and (scope.kind == "module" or (scope.phase != "forward" and scope.part.attribute))
        }
        made = seeds(hierarchy, classes)
        # The page counts their boxes when it looks for what to put aside at the top level.
        count = len({seed.name.partition("/")[0] for seed in made})
        if bears_seeds(hierarchy, count, drawing.levels.get(hierarchy.root)):
            layout.seeds = made
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
        boxed_ends: Whether inputs and outputs whose names the page would cut are boxes.
        guests: What stands in the box of who called it.
    """

    graph: Graph
    style: Style
    root: bool | None
    circles: bool
    facts: dict[Node, dict[str, Nest]]
    embedded: set[Node]
    told: list[Card]
    also: Collection[Scope]
    short: dict[str, str]
    tells_classes: bool
    guests: Guests
    boxed_ends: bool = True


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

    def __init__(self, given: _Given, bundles: Stands | None = None) -> None:
        self.given, self.bundles = given, bundles
        graph, short = given.graph, given.short
        stands = find_stands(graph, circles=given.circles, bundles=bundles, guests=given.guests)
        self._told = list(given.told)
        if given.also:
            # A list that is no box has no card either.
            apart = set(stands.beside.values())
            scopes = [scope for scope in given.also if scope not in apart]
            self._told += blank_cards(graph, scopes, self._told, given.embedded)
        self.names = name_graph(
            graph,
            given.style,
            root=given.root,
            cards=[(card.scope, short.get(card.label, card.label)) for card in self._told],
            stands=stands,
            classes=short if given.tells_classes else None,
            boxed_ends=given.boxed_ends,
        )
        self._no_circles: set[Node] = set()
        self._moved = bundles is not None or given.tells_classes
        self._arrange(self._without_circles(self.names))

    def _without_circles(self, names: Names) -> set[Node]:
        """Return the parameters that must be nodes where all is named so."""
        given = self.given
        found = parameters_to_draw(given.graph, names, constants_only=not given.circles)
        return found - given.embedded

    def _arrange(self, no_circles: set[Node]) -> None:
        """Settle op types and levels; draw these parameters as nodes."""
        given = self.given
        if no_circles:
            move_out_of_leaves(given.graph, self.names, no_circles)
            self._no_circles |= no_circles
        types = _OP_TYPES | (_CIRCLES if given.circles else {"constant": "Const"})
        safe = cache(op_type)
        ops: dict[Node | Output, str] = {
            node: safe(node.op)
            if node.kind in OPERATIONS
            else (_OP_TYPES if node in self._no_circles else types)[node.kind]
            for node in given.graph.nodes
        }
        ops.update(dict.fromkeys(given.graph.outputs, "Output"))
        ops.update(op_types_apart(given.graph, self.names, given.facts, ops))
        ops.update({node: _CIRCLES[node.kind] for node in given.embedded})
        self._ops = ops
        self._join()
        levels = find_siblings(self.hierarchy)
        # The page folds nothing that it would put aside then.
        in_vain = {
            f"{box.name}/{label}" if box.name else label
            for box, level in levels.items()
            for label in folded_in_vain(level)
        }
        if in_vain:
            things: list[tuple[Node | Output, str]] = [*self.names.nodes.items()]
            things += zip(given.graph.outputs, self.names.outputs, strict=True)
            folded = [one for one, name in things if name in in_vain]
            ops.update({one: op_type_apart(one, ops[one]) for one in folded})
            self.hierarchy.forget()
            self._join()
            levels = find_siblings(self.hierarchy)
        self.levels = levels
        self.crowded = {box: level for box, level in levels.items() if is_crowded(level)}
        loose = {box: count_loose(level) for box, level in levels.items()}
        self.full = {box: count for box, count in loose.items() if count > MANY_LOOSE}

    def _join(self) -> None:
        """Join names, op types and inputs to what the page is given."""
        given, ops, names = self.given, self._ops, self.names
        graph, of_nodes = given.graph, names.nodes
        ends = zip(names.outputs, graph.outputs, strict=True)
        self.layout = layout = Layout(
            nodes=[
                NodeHead(
                    of_nodes[node],
                    ops[node],
                    _inputs(node.inputs, node.control_inputs, of_nodes)
                    if node.inputs or node.control_inputs
                    else (),
                )
                for node in graph.nodes
            ],
            outputs=[
                NodeHead(name, ops[out], _inputs([out.value], out.control_inputs, of_nodes))
                for name, out in ends
            ],
            cards=[NodeHead(name, _CARD, ()) for name in names.cards],
            told=self._told,
            boxes=names.scopes,
            facts=given.facts,
        )
        self.hierarchy = Hierarchy(chain(layout.nodes, layout.outputs, layout.cards))

    def wanting(self) -> Iterator[tuple[Scope | None, Sequence[Stage]]]:
        """Yield the scope of each level that is too full, and what may part it."""
        scopes: dict[str, Scope | None] = {"": None}
        scopes.update((name, scope) for scope, name in self.names.scopes.items())
        for box in {**self.crowded, **self.full}:
            stages = STAGES
            if box not in self.crowded:
                # It needs no cut: no module need move.
                stages = ("functions", "steps") if self.full[box] > MOST_LOOSE else ("functions",)
            if box.name in scopes:
                yield scopes[box.name], stages

    def cut(self) -> None:
        """Cut what the page cannot draw into chunks."""
        given, names, bundles = self.given, self.names, self.bundles
        free = set() if bundles is None else set(bundles.free)
        boxes = [] if bundles is None else [one for one in bundles.all if one.kind != "container"]
        while self.crowded:
            mapping = find_chunks(
                self.hierarchy,
                self.crowded,
                bundles={names.scopes[box] for box in free},
                rounds={names.scopes[box] for box in boxes if box not in free},
                modules={names.nodes[one] for one in given.graph.nodes if one.kind == "module"},
            )
            if not mapping:
                break
            self.hierarchy.forget()
            chunked = Names(
                dict(zip(names.scopes, rename(names.scopes.values(), mapping), strict=True)),
                dict(zip(names.nodes, rename(names.nodes.values(), mapping), strict=True)),
                *(rename(some, mapping) for some in (names.outputs, names.cards, names.ends)),
            )
            # What has lost its neighbours to other chunks has no circles either.
            found = self._without_circles(chunked)
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
