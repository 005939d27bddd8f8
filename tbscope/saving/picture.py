"""Pictures: what is drawn of a graph, box by box, for the forms that draw it by themselves.

A picture is read from the very GraphDef that TensorBoard's page would get, so that every form has
the page's boxes, names and cards, whatever options it is drawn with.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Unpack

from tensorboard.compat.proto.graph_pb2 import GraphDef

from tbscope.errors import ArgumentError
from tbscope.graphdef.attributes import nest_to_text
from tbscope.graphdef.worth import worth_of_number
from tbscope.ir.graph import Graph, Nest, Shape
from tbscope.options import Drawing
from tbscope.page.constants import ASIDE_OP
from tbscope.page.glyphs import Box, Item
from tbscope.page.hierarchy import Hierarchy
from tbscope.pipeline import draw
from tbscope.sources.graphdef.ops import Op, op_of
from tbscope.words import shown

__all__ = ["FIGURES", "Picture", "Read", "Tensor", "Told", "picture_of"]

FIGURES = {
    "flops": "FLOPs",
    "parameter_count": "parameters",
    "bytes": "parameter memory",
    "duration_us": "time (µs)",
    "allocated_bytes": "memory",
    "peak_bytes": "peak memory",
}
"""The facts by which a picture may be coloured, and what they are called there."""

# The largest of several is that of all.
_LARGEST = ("peak_bytes",)
_LABEL = "_XlaCluster"
_HIDDEN = (_LABEL, "_output_shapes")


class Tensor(NamedTuple):
    """The type of what goes along a line."""

    sizes: Shape | None
    dtype: str

    @property
    def size_text(self) -> str:
        """The sizes as the page prints them: `2×8`, `scalar`, `?` for an unknown one."""
        if self.sizes is None:
            return "?"
        return "×".join("?" if size is None else str(size) for size in self.sizes) or "scalar"

    @property
    def elements(self) -> int:
        """How many elements it has; an unknown size counts as 1."""
        count = 1
        for size in self.sizes or ():
            count *= 1 if size is None else size
        return count


class Read(NamedTuple):
    """One input of a node.

    Attributes:
        source: What it is read from.
        output: Which of its outputs.
        waits: Whether it only waits for it.
    """

    source: Item
    output: int
    waits: bool


@dataclass(slots=True)
class Told:
    """What a picture tells of a node or a box beside its place.

    Attributes:
        facts: Its card, in the order of the page.
        outputs: The types of what it gives.
        device: Where that is.
        reads: Its inputs.
        label: What it is coloured by, where that was asked for.
        kind: What kind of operation it is; empty for none.
        figures: Its numbers, by the keys of `FIGURES`.
    """

    facts: dict[str, str] = field(default_factory=dict)
    outputs: tuple[Tensor, ...] = ()
    device: str = ""
    reads: list[Read] = field(default_factory=list)
    label: str = ""
    kind: str = ""
    figures: dict[str, float] = field(default_factory=dict)


class Picture:
    """A graph as it is drawn.

    Attributes:
        title: The name of the graph.
        root: The box around all.
        boxes: Every other box, parents first.
        items: Every node in the order of the graph, small circles too, without cards.
        notes: What the graph notes about its run.
        hierarchy: The tree of boxes and nodes, with cards.
    """

    def __init__(self, title: str, graph_def: GraphDef, notes: Sequence[str] = ()) -> None:
        self.title = title
        self.notes = tuple(notes)
        self.hierarchy = Hierarchy.of(graph_def)
        self.root = self.hierarchy.root
        self.boxes = list(self.hierarchy.boxes.values())
        self._told: dict[Box | Item, Told] = {}
        ops = [op_of(node) for node in graph_def.node]
        named = {op.name: self.item(op.name) for op in ops}
        self.items = []
        for op in ops:
            item = named[op.name]
            told = _told(op)
            told.reads = [Read(named[name], int(at), False) for name, at in op.reads]
            told.reads += [Read(named[name], 0, True) for name in op.waits]
            if item.op == ASIDE_OP:
                # The card of a module tells of the box that it stands in.
                self._told[item.box] = told
                continue
            self._told[item] = told
            self.items.append(item)
        self._add_up()

    def __getitem__(self, glyph: Box | Item) -> Told:
        """What is told of a node or a box; nothing of a box without a card."""
        told = self._told.get(glyph)
        if told is None:
            told = self._told[glyph] = Told()
        return told

    def children(self, box: Box) -> list[Box | Item]:
        """What stands directly in a box, without its card and without circles."""
        return [
            child
            for child in box.children.values()
            if isinstance(child, Box) or child.op != ASIDE_OP
        ]

    def flow(self, item: Item) -> Iterator[Read]:
        """The inputs of a node that lines lead from; what a circle reads, its reader reads."""
        seen = {item}
        pending = list(reversed(self[item].reads))
        while pending:
            read = pending.pop()
            if not read.source.embedded:
                if read.source is not item:
                    yield read
            elif read.source not in seen:
                seen.add(read.source)
                pending += reversed(self[read.source].reads)

    def tensor(self, read: Read) -> Tensor | None:
        """The type of what is read; None where it is not known, and where nothing is."""
        outputs = self[read.source].outputs
        return outputs[read.output] if not read.waits and read.output < len(outputs) else None

    def class_of(self, glyph: Box | Item) -> str:
        """The class of the module that a box stands for, or the operation of a node."""
        if isinstance(glyph, Item):
            # What makes it a circle is a part of the name that means nothing else.
            return (glyph.op.removesuffix("Const") or "Constant") if glyph.embedded else glyph.op
        return self[glyph].facts.get("class", "").rpartition(".")[2]

    def item(self, name: str) -> Item:
        """Return the node that has a name in the GraphDef."""
        return self.hierarchy.items[self.hierarchy.strict.get(name, name)]

    def _add_up(self) -> None:
        """Give boxes without figures of their own those of what stands in them."""
        for box in (*reversed(self.boxes), self.root):
            figures = self[box].figures
            for key in FIGURES:
                if key in figures:
                    continue
                held = [self[child].figures.get(key) for child in self.children(box)]
                known = [number for number in held if number is not None]
                if known:
                    figures[key] = max(known) if key in _LARGEST else sum(known)


def picture_of(graph: Graph, *, kinds: bool = False, **drawing: Unpack[Drawing]) -> Picture:
    """Draw a graph.

    Args:
        graph: What is known to be a graph.
        kinds: Whether the kind of each operation is told, too; it takes as long again.
        drawing: How it is drawn (see `Drawing`).
    Raises:
        ArgumentError: An option is none, or does not fit the graph.
        GraphError: The graph breaks an invariant.
    """
    if drawing.get("functions", False) is not False:
        raise ArgumentError(
            f"functions={shown(drawing['functions'])} cannot be drawn in a picture",
            why="it is for the panel of functions, which only TensorBoard's page has",
            fix="leave functions out: an .html page colours equal boxes alike by itself",
        )
    # Seeds only help the page to find equal boxes.
    how: Any = {**drawing, "templates": False}
    notes = list(dict.fromkeys(str(note) for note in graph.notes))
    picture = Picture(graph.name, draw(graph, **how).graph_def, notes)
    if kinds:
        how |= {"color_by": "kind", "cards": False}
        labels = {
            node.name: node.attr[_LABEL].s.decode() for node in draw(graph, **how).graph_def.node
        }
        for name, kind in labels.items():
            picture[picture.item(name)].kind = kind
    return picture


def _told(op: Op) -> Told:
    # The page lists attributes by their names, the largest first.
    facts = {key: op.facts[key] for key in reversed(op.facts)}
    dtypes = facts.get("dtype", op.dtype)
    each = dtypes if isinstance(dtypes, list) else [op.dtype] * len(op.shapes)
    told = Told({key: _text(fact) for key, fact in facts.items() if key not in _HIDDEN})
    told.outputs = tuple(
        Tensor(sizes, str(dtype)) for sizes, dtype in zip(op.shapes, each, strict=False)
    )
    told.device = op.device
    told.label = str(facts.get(_LABEL, ""))
    for key in FIGURES:
        number = worth_of_number(facts[key]) if key in facts else None
        if number is not None:
            told.figures[key] = number
    return told


def _text(fact: Nest) -> str:
    return fact if type(fact) is str else nest_to_text(fact)
