"""Pictures: the boxes, nodes and info cards of a drawn graph, for forms other than TensorBoard's.

A picture is read from the GraphDef that TensorBoard's page would get, so that every form has the
page's boxes, names and cards, with any options of the drawing. Lines among the children of a box,
into it and out of it are found when the box is opened: most boxes of a large graph are never
opened.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple, TypeAlias, Unpack

from tbscope.analysis.units import worth_of_number
from tbscope.graphdef.attr_bytes import key_by_worth, nest_to_text
from tbscope.ir.graph import Graph, Nest, Shape
from tbscope.options import Drawing
from tbscope.page.constants import ASIDE_OP
from tbscope.page.glyphs import Box, Item
from tbscope.page.hierarchy import Hierarchy
from tbscope.pipeline import to_graph_def
from tbscope.sources.graphdef.paths import (
    attribute_value,
    device_of,
    dtypes_of,
    op_of,
    plain_op,
    reference_of,
    shapes_of,
)

Glyph: TypeAlias = Box | Item
"""A box, or a node."""

FIGURES = {
    "flops": "FLOPs",
    "parameter_count": "parameters",
    "bytes": "parameter memory",
    "duration_us": "time",
    "allocated_bytes": "memory",
    "peak_bytes": "peak memory",
}
"""The titles of the facts by which a picture may be coloured, by their keys."""

LARGEST = ("peak_bytes",)
"""The facts whose number for a box is the maximum over its nodes, and not the sum."""

ENDS = ("Input", "Output")
"""The operations of the nodes for inputs and outputs of the graph."""

_LABEL = "_XlaCluster"
_SHAPES = "_output_shapes"
_HIDDEN = (_LABEL, _SHAPES)


class Tensor(NamedTuple):
    """The type of a tensor on a line: its sizes and dtype."""

    sizes: Shape | None
    dtype: str

    @property
    def size_text(self) -> str:
        """The sizes as the page prints them: `2×8`, `scalar`, `?` if unknown."""
        if self.sizes is None:
            return "?"
        return "×".join("?" if size is None else str(size) for size in self.sizes) or "scalar"

    @property
    def elements(self) -> int:
        """The number of elements; an unknown size counts as 1."""
        count = 1
        for size in self.sizes or ():
            count *= 1 if size is None else size
        return count


class NodeInput(NamedTuple):
    """One input of a node.

    Attributes:
        source: The node that is read.
        output: The index of its output.
        waits: Whether it is a control dependency, without a tensor.
    """

    source: Item
    output: int
    waits: bool


class Picture:
    """A drawn graph: the tree of its boxes and nodes, with their info cards.

    Attributes:
        title: The name of the graph.
        root: The outermost box.
        boxes: Every other box, parents first.
        items: Every node in the order of the graph, constant nodes (small circles) included, nodes
            of info cards not.
        notes: The notes of the graph on its run.
        graph: The graph, or None if only its drawing is available.
        differences: The lines of the differences of two graphs, each with the first node or box
            that it names; None for a picture of one graph.
        hierarchy: The tree of boxes and nodes, with the nodes of info cards.
        labels_are_kinds: Whether the labels of nodes are the kinds of their operations.
    """

    def __init__(self, title: str, nodes: Sequence[Any], notes: Sequence[str] = ()) -> None:
        """Put the nodes of a GraphDef into boxes; their info cards are read on demand."""
        self.title = title
        self.notes = tuple(notes)
        self.graph: Graph | None = None
        self.differences: list[tuple[str, Glyph | None]] | None = None
        self.hierarchy = Hierarchy((node.name, node.op, node.input) for node in nodes)
        self.root = self.hierarchy.root
        self.boxes = list(self.hierarchy.boxes.values())
        self.items: list[Item] = []
        self.labels_are_kinds = False
        self._outputs: dict[Glyph, tuple[Tensor, ...]] = {}
        self._numbers: dict[tuple[Glyph, str], float | None] = {}
        self._reads: dict[Item, list[NodeInput]] = {}
        # The NodeDef of each node, and the info node of each box that has one.
        self._nodes: dict[Glyph, Any] = {}
        # The classes of one block and the number of blocks in each run of equal blocks.
        self._runs: dict[Glyph, tuple[str, int]] = {}
        carded: list[Box] = []
        for node in nodes:
            item = self.item(node.name)
            if item.op == ASIDE_OP:
                # The info node of a module describes its box, and is not drawn as a node there.
                self._nodes[item.box] = node
                carded.append(item.box)
            else:
                self.items.append(item)
                self._nodes[item] = node
        for box in carded:
            box.children = {
                label: child
                for label, child in box.children.items()
                if isinstance(child, Box) or child.op != ASIDE_OP
            }

    @property
    def glyphs(self) -> list[Glyph]:
        """Every box but the root, then every node."""
        return [*self.boxes, *self.items]

    def facts(self, glyph: Glyph) -> dict[str, str]:
        """The entries of an info card in the order of the page; none for a box without a card.

        Cards are read on demand: most nodes of a large graph are never selected.
        """
        node = self._nodes.get(glyph)
        read = {} if node is None else op_of(node).facts
        # The page lists attributes by their names, the largest first.
        return {
            key: fact if type(fact) is str else nest_to_text(fact)
            for key, fact in reversed(read.items())
            if key not in _HIDDEN
        }

    def fold(self, box: Box, what: str, times: int) -> None:
        """Mark a box as a run of equal blocks.

        Args:
            box: A box that no node of the GraphDef names.
            what: The classes of one block.
            times: The number of blocks in the box.
        """
        self._runs[box] = what, times

    def surround(self, parent: Box, label: str, members: Sequence[Glyph]) -> Box:
        """Return a new box with some children of a parent, whose `children` stay unchanged."""
        box = Box(f"{parent.name}/{label}" if parent.name else label, label, parent)
        box.children = {member.label: member for member in members}
        for member in members:
            if isinstance(member, Box):
                member.parent = box
            else:
                member.box = box
        return box

    def repeats(self, box: Box) -> int:
        """The number of equal blocks in a box, or 0 if a node of the GraphDef names the box."""
        return self._runs[box][1] if box in self._runs else 0

    def figure(self, glyph: Glyph, key: str) -> float | None:
        """One number of a node or a box, by a key of `FIGURES`, or None if it has none.

        A box without the number on its card has the sum (or maximum) of its children.
        """
        if key not in self._figures:
            return None
        if (glyph, key) not in self._numbers:
            number = worth_of_number(self.fact(glyph, key))
            if number is None and isinstance(glyph, Box):
                inside = [self.figure(child, key) for child in self.children(glyph)]
                numbers = [part for part in inside if part is not None]
                if numbers:
                    number = max(numbers) if key in LARGEST else sum(numbers)
            self._numbers[glyph, key] = number
        return self._numbers[glyph, key]

    @cached_property
    def _figures(self) -> list[str]:
        """The keys of `FIGURES` that some node or info card has."""
        names = set().union(*(node.attr for node in self._nodes.values()))
        return [key for key in FIGURES if key in names or key_by_worth(key) in names]

    def fact(self, glyph: Glyph, key: str) -> Nest:
        """One attribute of a node, or of the info card of a box, or None if it has none."""
        node = self._nodes.get(glyph)
        if node is None:
            return None
        for name in (key_by_worth(key), key):
            if name in node.attr:
                return attribute_value(node.attr[name])
        return None

    def reads(self, item: Item) -> list[NodeInput]:
        """The inputs of a node: first the tensors, then the control dependencies."""
        if item not in self._reads:
            inputs = []
            for text in self._nodes[item].input:
                waits = text.startswith("^")
                name, output = reference_of(text[1:] if waits else text)
                # A GraphDef of another library may name nodes that it does not contain.
                source = self.hierarchy.items.get(self.hierarchy.strict.get(name, name))
                if source is not None:
                    inputs.append(NodeInput(source, output, waits))
            self._reads[item] = sorted(inputs, key=lambda read: read.waits)
        return self._reads[item]

    def mark(self, glyph: Glyph, of: str) -> str:
        """The label by which a node or a box is coloured, or the kind of a node's operation.

        Args:
            glyph: The node or the box.
            of: "label" or "kind".
        """
        is_kind = self.labels_are_kinds and isinstance(glyph, Item)
        node = self._nodes.get(glyph)
        if (of == "kind") is not is_kind or node is None or _LABEL not in node.attr:
            return ""
        label: str = node.attr[_LABEL].s.decode("utf-8", "backslashreplace")
        return label

    def outputs(self, glyph: Glyph) -> tuple[Tensor, ...]:
        """The types of the outputs of a node; empty for a box."""
        if isinstance(glyph, Box):
            return ()
        if glyph not in self._outputs:
            node = self._nodes[glyph]
            shapes = shapes_of(node)
            self._outputs[glyph] = tuple(map(Tensor, shapes, dtypes_of(node, len(shapes))))
        return self._outputs[glyph]

    def device(self, glyph: Glyph) -> str:
        """The device of a node, as torch names it; empty for a box."""
        return "" if isinstance(glyph, Box) else device_of(self._nodes[glyph].device)

    def trainable(self, glyph: Glyph) -> str:
        """The text "trainable", "frozen" or "partly trainable"; empty without parameters."""
        if isinstance(glyph, Item) and self.class_of(glyph) == "Parameter":
            learnt = self.fact(glyph, "requires_grad")
            return "" if learnt is None else "trainable" if learnt else "frozen"
        count = worth_of_number(self.fact(glyph, "parameter_count"))
        if not count:
            return ""
        # The card of a module has the second number only if it differs from the first.
        learnt = worth_of_number(self.fact(glyph, "trainable_parameter_count"))
        if learnt is None or learnt == count:
            return "trainable"
        return "partly trainable" if learnt else "frozen"

    def children(self, box: Box) -> list[Glyph]:
        """The boxes and nodes directly in a box, without constant nodes."""
        return list(box.children.values())

    def walk(self, enters: Callable[[Box], bool] | None = None) -> Iterator[Glyph]:
        """Yield all boxes but the root and all nodes, each box before its contents.

        Args:
            enters: Whether the contents of a box are yielded, too; None for those of all boxes.
        """
        pending = self.children(self.root)[::-1]
        while pending:
            glyph = pending.pop()
            yield glyph
            if isinstance(glyph, Box) and (enters is None or enters(glyph)):
                pending += reversed(self.children(glyph))

    def flow(self, item: Item) -> Iterator[NodeInput]:
        """The inputs of a node that are drawn as lines, with the inputs of its constant nodes."""
        seen = {item}
        pending = list(reversed(self.reads(item)))
        while pending:
            read = pending.pop()
            if not read.source.embedded:
                if read.source is not item:
                    yield read
            elif read.source not in seen:
                seen.add(read.source)
                pending += reversed(self.reads(read.source))

    def tensor(self, read: NodeInput) -> Tensor | None:
        """The type of the tensor of an input, or None if unknown, or for a control dependency."""
        return None if read.waits else self.type_of(read.source, read.output)

    def type_of(self, item: Item, output: int) -> Tensor | None:
        """The type of an output, or None if it is unknown."""
        outputs = self.outputs(item)
        return outputs[output] if output < len(outputs) else None

    def class_of(self, glyph: Glyph) -> str:
        """The class of the module of a box, or the operation of a node."""
        if isinstance(glyph, Item):
            of = plain_op(glyph.op)
            # The ending `Const` only makes the page draw the node as a circle.
            return (of.removesuffix("Const") or "Constant") if glyph.embedded else of
        node = self._nodes.get(glyph)
        if node is None or "class" not in node.attr:
            return ""
        return str(attribute_value(node.attr["class"])).rpartition(".")[2]

    def second_line(self, glyph: Glyph) -> str:
        """The text below a label: the equal blocks, or the class unless the label contains it."""
        if glyph in self._runs:
            return "{} × {}".format(*self._runs[glyph])
        of = self.class_of(glyph)
        return "" if of.lower() in glyph.label.lower() else of

    def item(self, name: str) -> Item:
        """Return the node with a name in the GraphDef."""
        return self.hierarchy.items[self.hierarchy.strict.get(name, name)]


def picture_of(graph: Graph, **drawing: Unpack[Drawing]) -> Picture:
    """Draw a graph, and return its picture.

    Args:
        graph: A graph, whose type the caller has checked.
        drawing: Options of the drawing (see `Drawing`).
    Raises:
        ArgumentError: An option is unknown, or does not fit the graph.
        GraphError: The graph breaks an invariant.
    """
    # Seeds only help TensorBoard's page to find equal boxes, and a row of these is one box here.
    how: Any = {**drawing, "templates": False, "rows": False}
    notes = list(dict.fromkeys(str(note) for note in graph.notes))
    picture = Picture(graph.name, to_graph_def(graph, **how).node, notes)
    picture.graph = graph
    # Without `color_by`, the labels are kinds, the default.
    picture.labels_are_kinds = "color_by" not in drawing
    return picture


_JOINT = -1
"""The column of operations of several ranks together."""

# Ranks in the form of `tbscope.ir.metadata`, as they are in the names of a drawing.
_RANKS = re.compile(r"(stage_\d+_)?ranks?_\d[\d,_a-z-]*")


@dataclass(slots=True, eq=False)
class _LevelEdge:
    """The tensors from one glyph of a level to another, each once.

    Attributes:
        tensors: The outputs of nodes that flow along it.
        waits: Whether it includes a control dependency.
    """

    tensors: dict[tuple[Item, int], None] = field(default_factory=dict)
    waits: bool = False


LinesOf: TypeAlias = dict[tuple[Glyph, Glyph], _LevelEdge]
"""Lines by the glyphs at their ends."""


class Around(NamedTuple):
    """The lines of one box.

    Attributes:
        within: From child to child.
        entering: From a node outside to a child.
        leaving: From a child to a node outside.
    """

    within: LinesOf
    entering: LinesOf
    leaving: LinesOf


class Lines:
    """The lines of a picture; safe for several threads.

    Attributes:
        of: Returns the lines of a box.
    """

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self._order = {item: at for at, item in enumerate(picture.items)}
        self.of = cache(self._find)

    @cached_property
    def _readers(self) -> dict[Item, list[Item]]:
        """The readers of each node, also through constant nodes (circles)."""
        readers: dict[Item, list[Item]] = {}
        for item in self._picture.items:
            if not item.embedded:
                for read in self._picture.flow(item):
                    readers.setdefault(read.source, []).append(item)
        return readers

    def _find(self, box: Box) -> Around:
        below, child_of = _below(box)
        below.sort(key=self._order.__getitem__)
        around = Around({}, {}, {})
        outside: dict[Item, None] = {}
        for item in below:
            end = child_of.get(item.box, item)
            for read in self._picture.flow(item):
                source = read.source
                start: Glyph = child_of.get(source.box, source)
                if start is source and source.box is not box:
                    _join(around.entering, (source, end), read)
                elif start is not end:
                    _join(around.within, (start, end), read)
            if box.parent is not None:
                for reader in self._readers.get(item, ()):
                    if reader.box is not box and reader.box not in child_of:
                        outside[reader] = None
        for reader in sorted(outside, key=self._order.__getitem__):
            for read in self._picture.flow(reader):
                source = read.source
                if source.box is box or source.box in child_of:
                    _join(around.leaving, (child_of.get(source.box, source), reader), read)
        return around


def _below(box: Box) -> tuple[list[Item], dict[Box, Box]]:
    """Return the nodes in a box at any depth, and the child that contains each inner box."""
    items: list[Item] = []
    child_of: dict[Box, Box] = {}
    pending = [(child, child) for child in box.children.values()]
    while pending:
        glyph, child = pending.pop()
        if isinstance(glyph, Item):
            items.append(glyph)
        else:
            assert isinstance(child, Box), "only a box has something in it"
            child_of[glyph] = child
            pending += [(inner, child) for inner in glyph.children.values()]
    return items, child_of


def _join(lines: LinesOf, ends: tuple[Glyph, Glyph], read: NodeInput) -> None:
    line = lines.setdefault(ends, _LevelEdge())
    # A tensor with several readers counts once.
    if read.waits:
        line.waits = True
    else:
        line.tensors[read.source, read.output] = None


def columns_of(picture: Picture, box: Box, within: LinesOf) -> list[int]:
    """Return the column of each child of a box, or `JOINT`; empty if it has no two boxes of ranks.

    Args:
        picture: The picture.
        box: The box.
        within: The lines among its children.
    """
    children = picture.children(box)
    boxes = [
        child
        for child in children
        if isinstance(child, Box) and _RANKS.fullmatch(child.label) and not picture.class_of(child)
    ]
    if len(boxes) < 2:
        return []
    columns: dict[Glyph, int] = {child: at for at, child in enumerate(boxes)}
    beside: dict[Glyph, set[int]] = {}
    for start, end in within:
        for child_end, rank_box in ((start, end), (end, start)):
            if rank_box in columns:
                beside.setdefault(child_end, set()).add(columns[rank_box])
    for child in children:
        # A child with lines to one rank alone is in the column of that rank.
        near = beside.get(child, set())
        columns.setdefault(child, next(iter(near)) if len(near) == 1 else _JOINT)
    return [columns[child] for child in children]
