"""The layout: the name, op type and inputs under which each node and output is drawn.

The page derives the drawing of a GraphDef from these alone; attributes only add information. So
they are determined first and together. `lay_out` names everything, assigns distinct op types to
siblings that must not be folded, adds boxes for functions and loops to levels that are too full,
splits levels that the page still cannot draw into chunks, and at last adds colour seeds.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import chain

from tbscope.analysis.costs import Costs
from tbscope.drawing.chunks import find_chunks, rename
from tbscope.drawing.class_prefixes import short_names
from tbscope.drawing.color_seeds import NodeHead, seeds
from tbscope.drawing.const_nodes import (
    has_isolated_stack,
    parameters_to_draw,
    rename_beside_boxes,
    rename_beside_leaves,
)
from tbscope.drawing.info_cards import Card, blank_cards, leaf_facts, module_cards
from tbscope.drawing.naming import GraphDefNames, Labels, Style, append_state_keys, name_graph
from tbscope.drawing.placement.containers import STAGES, Helpers, Stage, find_placement
from tbscope.drawing.placement.function_boxes import FunctionBoxes
from tbscope.drawing.placement.split_levels import is_crowded, is_full
from tbscope.drawing.series_folding import op_type_apart, op_types_apart, series_that_break_flow
from tbscope.ir.graph import Graph, Nest, Node, Output, Value
from tbscope.ir.module_tree import ModuleTree
from tbscope.ir.placement.borrowed_calls import place_borrowed_calls
from tbscope.ir.placement.partition import Placement
from tbscope.ir.scope_io import OPERATIONS, read_only_by
from tbscope.ir.scopes import Scope
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.level_graph import read_levels
from tbscope.page.op_types import op_type

_OP_TYPES = {"input": "Input", "parameter": "Parameter", "buffer": "Buffer", "constant": "Tensor"}
# TensorBoard draws a node with `Const` in its op type as a small circle.
_CIRCLES = {"parameter": "ParameterConst", "buffer": "BufferConst", "constant": "Const"}
# The page puts nodes of this op type aside, out of the flow.
_CARD = "NoOp"


@dataclass(slots=True)
class Layout:
    """The names, op types and inputs of everything that is drawn, in the order of the GraphDef.

    Attributes:
        nodes: The head of each node of the graph.
        outputs: The head of each of its outputs.
        cards: The head of each info card.
        info_cards: The info cards.
        boxes: The name of the box of each scope; empty if its contents are at the top level.
        facts: The facts of each node that represents a module.
        seeds: Extra nodes that make equal boxes equal in colour; not part of the graph.
    """

    nodes: list[NodeHead]
    outputs: list[NodeHead]
    cards: list[NodeHead]
    info_cards: list[Card]
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
    rows: bool = True,
) -> Layout:
    """Determine how a graph is drawn.

    Args:
        graph: A graph that keeps the invariants.
        style: The naming style of scopes.
        root: Whether all names begin with the root scope (see `name_graph`).
        circles: Whether parameters and buffers are small circles beside their readers, as far
            as these can be drawn, or nodes like others.
        templates: Whether to add colour seeds, which make equal boxes equal in colour.
        cards: Whether the box of each module contains an info card.
        helpers: Whether functions and loops are boxes: on levels that are too full, or every
            function, or none. Ignored if a user's own function names the boxes.
        work: The costs of the operations in each scope, for info cards; None if unknown.
        also: Further scopes whose boxes need an info card.
        stacks: Nodes that represent many equal blocks: parameters that only they read are
            circles.
        labels: Whether the names of modules include their class in style "tf".
        rows: Whether rows that are long for a reader are split, too.
    Returns:
        The layout; no two of its names are equal.
    """
    tree, work = ModuleTree(graph), work or {}
    embedded, short = read_only_by(graph, {*stacks}), short_names(graph)
    options = _Options(
        graph,
        style=style,
        root=False if has_isolated_stack(graph, stacks) else root,
        circles=circles,
        facts=leaf_facts(graph, work, tree.part_of),
        embedded=embedded,
        info_cards=[*module_cards(graph, work, tree.part_of, embedded)] if cards else [],
        also=also,
        short=short,
        tells_classes=labels == "class",
        borrowed=place_borrowed_calls(graph),
        rows=rows,
    )
    tree.forget()
    if helpers == "none" or callable(style):
        drawing = _Candidate(options, options.borrowed)
    else:
        drawing = _with_function_boxes(options, every=helpers == "all")
    if drawing.names.ends and drawing.hierarchy.root in drawing.crowded:
        # Inputs and outputs may share a chunk only as nodes, so their own boxes are undone.
        options.boxed_ends = False
        drawing.hierarchy.forget()
        drawing = _Candidate(options, drawing.known)
    drawing.split()
    layout, hierarchy = drawing.layout, drawing.hierarchy
    if templates:
        # The class of the module that each box represents.
        classes = {
            name: short.get(scope.part.label, scope.part.label)
            for scope, name in layout.boxes.items()
            if name and scope.kind == "module" and scope.phase == "forward"
        }
        is_step = any(scope.phase != "forward" for scope in layout.boxes)
        parts = ((layout.boxes.get(scope), part) for scope, part in tree.part_of.items())
        parameters = {name: part.holds.parameters for name, part in parts if name}
        layout.seeds = seeds(hierarchy, classes, parameters, is_step=is_step)
    hierarchy.forget()
    return layout


@dataclass(slots=True)
class _Options:
    """The graph and the options of a layout.

    Attributes:
        graph: The graph.
        style: The naming style of scopes.
        root: Whether all names begin with the root scope.
        circles: Whether parameters are circles.
        facts: The facts of each node that represents a module.
        embedded: Nodes that are circles beside every reader.
        info_cards: The info cards of modules.
        also: Further scopes whose boxes need an info card.
        short: The shortened names of classes, by class.
        tells_classes: Whether the names of modules include their class.
        boxed_ends: Whether inputs and outputs whose names the page would cut are in boxes.
        borrowed: The calls and nodes that are drawn in the box of their caller.
        rows: Whether levels that the page can draw are split, too.
    """

    graph: Graph
    style: Style
    root: bool | None
    circles: bool
    facts: dict[Node, dict[str, Nest]]
    embedded: set[Node]
    info_cards: list[Card]
    also: Collection[Scope]
    short: dict[str, str]
    tells_classes: bool
    borrowed: Placement
    rows: bool
    boxed_ends: bool = True


class _Candidate:
    """A candidate drawing of a graph, which may be discarded for a better candidate.

    Args:
        options: The graph and the options.
        known: The calls and nodes that are drawn in the box of their caller; and boxes of functions
            and loops, which are no scopes of the graph.

    Attributes:
        options: The graph and the options.
        names: The names of scopes, nodes, outputs and cards.
        layout: The layout for these names.
        hierarchy: The page's tree of this layout.
        levels: The levels with many children when they were last read. They may belong to an
            earlier hierarchy if that was rebuilt since.
        crowded: The levels that the page cannot draw well.
        full: The levels with too many operations beside each other.
    """

    def __init__(self, options: _Options, known: Placement) -> None:
        self.options, self.known = options, known
        graph, short = options.graph, options.short
        placement = find_placement(graph, circles=options.circles, known=known)
        self._info_cards = list(options.info_cards)
        if options.also:
            # A list whose members are drawn beside each other has no box, and so no card.
            apart = set(placement.beside.values())
            scopes = [scope for scope in options.also if scope not in apart]
            self._info_cards += blank_cards(graph, scopes, self._info_cards, options.embedded)
        self.names = name_graph(
            graph,
            options.style,
            root=options.root,
            cards=[(card.scope, short.get(card.label, card.label)) for card in self._info_cards],
            placement=placement,
            classes=short if options.tells_classes else None,
            boxed_ends=options.boxed_ends,
        )
        if options.circles:
            rename_beside_boxes(graph, self.names)
        self._no_circles: set[Node] = set()
        self._moved = bool(known.all) or options.tells_classes
        self._arrange(self._without_circles(self.names))

    def _without_circles(self, names: GraphDefNames) -> set[Node]:
        """Return the parameters that must be drawn as nodes under these names."""
        options = self.options
        nodes = parameters_to_draw(options.graph, names, constants_only=not options.circles)
        return nodes - options.embedded

    def _arrange(self, no_circles: set[Node]) -> None:
        """Determine op types, the layout and its crowded levels.

        Args:
            no_circles: The parameters that are drawn as nodes from now on.
        """
        options = self.options
        if no_circles:
            rename_beside_leaves(options.graph, self.names, no_circles)
            self._no_circles |= no_circles
        types = _OP_TYPES | (_CIRCLES if options.circles else {"constant": "Const"})
        safe = cache(op_type)
        ops: dict[Node | Output, str] = {
            node: safe(node.op)
            if node.kind in OPERATIONS
            else (_OP_TYPES if node in self._no_circles else types)[node.kind]
            for node in options.graph.nodes
        }
        ops.update(dict.fromkeys(options.graph.outputs, "Output"))
        # The page colours equal boxes: the type of an input or output in a box names the box.
        for end, name in self.names.entries(options.graph):
            if "/" in name and ops[end] in ("Input", "Output"):
                ops[end] = safe(f"{ops[end]}[{name.rpartition('/')[0]}]")
        ops.update(op_types_apart(options.graph, self.names, options.facts, ops))
        ops.update({node: _CIRCLES[node.kind] for node in options.embedded})
        self._ops = ops
        self._build()
        levels = read_levels(self.hierarchy)
        # Series that the page would put aside once folded are kept apart, and read again.
        in_vain = {
            f"{box.name}/{label}" if box.name else label
            for box, level in levels.items()
            for label in series_that_break_flow(level)
        }
        if in_vain:
            entries = self.names.entries(options.graph)
            folded = [entry for entry, name in entries if name in in_vain]
            ops.update({entry: op_type_apart(entry, ops[entry]) for entry in folded})
            self.hierarchy.forget()
            self._build()
            levels = read_levels(self.hierarchy)
        self.full = {box: level for box, level in levels.items() if is_full(level)}
        root = self.hierarchy.root
        if root in levels and not is_crowded(levels[root]):
            # The page counts an entry of the legend among the glyphs of the top level.
            levels[root] = levels[root].with_boxes(1)
        self.levels = levels
        self.crowded = {box: level for box, level in levels.items() if is_crowded(level)}

    def _build(self) -> None:
        """Build the layout and its hierarchy from names, op types and inputs."""
        options, ops, names = self.options, self._ops, self.names
        graph, of_nodes = options.graph, names.nodes
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
            info_cards=self._info_cards,
            boxes=names.scopes,
            facts=options.facts,
        )
        self.hierarchy = Hierarchy(chain(layout.nodes, layout.outputs, layout.cards))

    def full_levels(self) -> Iterator[Scope | None]:
        """Yield the scope of each level that is too full."""
        scopes = {name: scope for scope, name in self.names.scopes.items()}
        for box in {**self.crowded, **self.full}:
            if not box.name or box.name in scopes:
                yield scopes.get(box.name)

    def split(self) -> None:
        """Split the levels that the page cannot draw, or with too many children, into chunks."""
        options, names, free = self.options, self.names, set(self.known.free)
        boxes = [scope for scope in self.known.all if scope.kind != "container"]
        while True:
            mapping = find_chunks(
                self.hierarchy,
                self.levels if options.rows else self.crowded,
                boxed={names.scopes[box] for box in free},
                iterations={names.scopes[box] for box in boxes if box not in free},
                modules={
                    names.nodes[node] for node in options.graph.nodes if node.kind == "module"
                },
            )
            if not mapping:
                break
            self.hierarchy.forget()
            chunked = GraphDefNames(
                dict(zip(names.scopes, rename(names.scopes.values(), mapping), strict=True)),
                dict(zip(names.nodes, rename(names.nodes.values(), mapping), strict=True)),
                *(
                    rename(old_names, mapping)
                    for old_names in (names.outputs, names.cards, names.ends)
                ),
            )
            # An operation that lost its neighbours to other chunks cannot have circles: its
            # parameters become nodes, and levels are examined again.
            no_circles = self._without_circles(chunked)
            if no_circles <= self._no_circles:
                self.names = chunked
                self._moved = True
                break
            self._arrange(no_circles - self._no_circles)
        if self._moved and options.style == "tf":
            append_state_keys(options.graph, self.names)
        if self._moved:
            self._build()


def _with_function_boxes(options: _Options, *, every: bool) -> _Candidate:
    """Return a drawing with boxes for functions and loops on levels that are too full.

    Args:
        options: The graph and the options.
        every: Whether every function is a box.
    """
    has_frames = any(node.run for node in options.graph.nodes if node.kind in OPERATIONS)
    boxes = FunctionBoxes(options.graph, options.borrowed) if every and has_frames else None
    if boxes is not None:
        boxes.add_all_functions()
    drawing = _Candidate(options, options.borrowed if boxes is None else boxes.placement)
    if boxes is None:
        if not has_frames or (not drawing.crowded and not drawing.full):
            return drawing
        boxes = FunctionBoxes(options.graph, options.borrowed)
    tried: set[tuple[Scope | None, Stage]] = set()
    while True:
        boxes.changed = False
        for level in drawing.full_levels():
            for stage in STAGES:
                # Once a stage has made boxes, the level may be drawn well: it is drawn again
                # before its next stage is tried.
                if (level, stage) not in tried:
                    tried.add((level, stage))
                    if boxes.add_boxes(level, stage):
                        break
        if not boxes.changed:
            return drawing
        drawing.hierarchy.forget()
        drawing = _Candidate(options, boxes.placement)


def _inputs(
    values: Iterable[Value], control_inputs: Iterable[Node], names: dict[Node, str]
) -> list[str]:
    """Return the inputs of a NodeDef, data inputs first.

    TensorBoard drops an input from the node of the preceding input, whichever output it reads
    (tf_graph_common/graph.ts, `normalizeInputs`); an empty input between them prevents that.
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
