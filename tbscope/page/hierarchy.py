"""The tree that TensorBoard's page builds from the names in a GraphDef, and the edges in it.

It reads names, op types and inputs as the page does, and no attributes or shapes.
`level_graph.py` models how the page then draws each box.

Source: tensorboard/plugins/graph/tf_graph_common/graph.ts, and hierarchy.ts (edges:
hierarchy.ts:790, `addEdges`)
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Self, TypeAlias

from tensorboard.compat.proto.graph_pb2 import GraphDef

from tbscope.page.glyphs import Box, Glyph, Item
from tbscope.page.op_types import is_circle, is_embedded


class Link(NamedTuple):
    """A line between two glyphs of one level.

    Attributes:
        data: The number of data edges that it represents.
        control: The number of control edges that it represents.
    """

    data: int
    control: int


Links: TypeAlias = Mapping[tuple[Glyph, Glyph], Link]
"""Lines by the glyphs at their ends: from, to."""

_DATA, _CONTROL = Link(1, 0), Link(0, 1)


class _Crossings(NamedTuple):
    """The glyphs at which data enters or leaves their boxes.

    Attributes:
        entered: The glyphs that read data from outside of the box that contains them.
        left: The glyphs whose data is read outside of that box.
    """

    entered: set[Glyph]
    left: set[Glyph]


class _Edges:
    """All edges of a graph, found in one walk.

    Attributes:
        links: The lines among the children of each box.
        doors: The glyphs at which data enters or leaves their boxes.
    """

    __slots__ = ("doors", "links")

    def __init__(self, items: Iterable[Item]) -> None:
        self.links: dict[Box, dict[tuple[Glyph, Glyph], Link]] = {}
        self.doors = _Crossings(set(), set())
        for item in items:
            if not item.embedded:
                for sources, waits in ((item.sources, False), (item.controls, True)):
                    for source in sources:
                        if not source.embedded:
                            self._add(source, item, waits)
                        elif source.sources or source.controls:
                            self._add_through(source, item, waits)

    def _add_through(self, embedded: Item, reader: Item, control: bool) -> None:
        """Count the edges of an embedded node as edges of its reader."""
        for source, waits in read_through(embedded, control):
            if not source.embedded and source is not reader:
                self._add(source, reader, waits)

    def _add(self, source: Item, reader: Item, control: bool) -> None:
        """Count an edge in the innermost box that contains both ends.

        The glyphs at whose borders its data leaves or enters boxes below are recorded, too.
        """
        start: Glyph = source
        end: Glyph = reader
        above, below = source.box, reader.box
        while above is not below:
            if above.depth >= below.depth:
                if not control:
                    self.doors.left.add(start)
                start = above
                assert above.parent is not None, "the root is around all"
                above = above.parent
            else:
                if not control:
                    self.doors.entered.add(end)
                end = below
                assert below.parent is not None, "the root is around all"
                below = below.parent
        links = self.links.get(above)
        if links is None:
            links = self.links[above] = {}
        link = links.get((start, end))
        if link is None:
            # Most lines represent a single edge, and share one of two links.
            links[start, end] = _CONTROL if control else _DATA
        else:
            links[start, end] = Link(link.data + (not control), link.control + control)


def read_through(embedded: Item, control: bool) -> Iterator[tuple[Item, bool]]:
    """Yield the sources of an embedded node, and whether its reader's edge is a control edge.

    For a circle, the kind of its own input edges counts, even if its reader has only a
    control dependency on it. For a summary icon, the kind of the edge to its reader counts.

    Args:
        embedded: The node between.
        control: Whether its reader has only a control dependency on it.
    """
    circle = is_circle(embedded.op)
    for sources, waits in ((embedded.sources, False), (embedded.controls, True)):
        for source in sources:
            yield source, waits if circle else control


_OUTPUT = re.compile(r"([^:]+):(?:(?:[A-Za-z0-9_]+:|)[0-9]+)")


def parse_input(text: str) -> tuple[str, bool]:
    """Return the name of the node that an input refers to, and whether it is a control input.

    Args:
        text: An entry of `NodeDef.input`: `a`, `a:1`, `a:out:1`, `^a`.

    Source: graph.ts, `normalizeInputs`
    """
    control = text.startswith("^")
    if control:
        text = text[1:]
    if ":" in text:
        match = _OUTPUT.fullmatch(text)
        if match:
            text = match[1]
    return text, control


class Hierarchy:
    """The nodes of a GraphDef in the boxes that the page draws around them.

    Attributes:
        root: The box that contains everything.
        items: Every node, embedded nodes included, by its name on the page.
        boxes: Every box but the root, by name, in order of first appearance.
        strict: The page's name of each node that is named like a box, by its original name
            (`a/(a)` by `a`).
    """

    def __init__(self, nodes: Iterable[tuple[str, str, Sequence[str]]]) -> None:
        """Read nodes.

        Args:
            nodes: Name, op type and inputs (as in `NodeDef.input`) of each. Two nodes with
                one name become one, with the op type of the last and the edges of both.
        """
        self.root = Box("", "", None)
        self.items: dict[str, Item] = {}
        self.boxes: dict[str, Box] = {}
        self.strict: dict[str, str] = {}
        # Nodes by name, until their inputs are resolved.
        self._known: dict[str, Item] = {}
        self._edges: _Edges | None = None
        placed = self._place(nodes)
        if self.strict:
            # Restores the order of the nodes: renamed nodes had moved to the end.
            self.items = {item.name: item for item, _ in placed}
        self._connect(placed)

    @classmethod
    def of(cls, graph_def: GraphDef) -> Self:
        """Read the nodes of a GraphDef."""
        return cls((node.name, node.op, node.input) for node in graph_def.node)

    def links(self, box: Box) -> Links:
        """Return the lines among the children of a box, in the order of the page.

        An embedded node has none: its inputs count as inputs of its reader.
        """
        return self._walked().links.get(box, {})

    @property
    def doors(self) -> _Crossings:
        """The glyphs at which data enters or leaves their boxes."""
        return self._walked().doors

    def regroup(self, boxes: Iterable[Box]) -> None:
        """Replace the boxes that follow from names.

        Args:
            boxes: The new boxes, parents first, with all children already in them.
        """
        self.boxes = {box.name: box for box in boxes}
        self._edges = None

    def forget(self) -> None:
        """Release all nodes and boxes; the hierarchy must not be used afterwards."""
        # Nodes and boxes refer to each other: only the garbage collector would free them.
        for item in self.items.values():
            item.sources.clear()
            item.controls.clear()
        for box in (self.root, *self.boxes.values()):
            box.children.clear()
        self.items.clear()
        self.boxes.clear()
        self._edges = None

    def _walked(self) -> _Edges:
        if self._edges is None:
            self._edges = _Edges(self.items.values())
        return self._edges

    def _place(
        self, nodes: Iterable[tuple[str, str, Sequence[str]]]
    ) -> list[tuple[Item, Sequence[str]]]:
        """Make an item of each node, and its enclosing boxes."""
        boxes, known, items = {"": self.root, **self.boxes}, self._known, self.items
        placed: list[tuple[Item, Sequence[str]]] = []
        aside: list[tuple[Item, str]] = []
        for name, op, inputs in nodes:
            if is_embedded(op):
                item = Item(name, op, self.root, True)
                aside.append((item, name))
            elif name in known:
                # The page keeps one node with the edges of both.
                item = known[name]
                item.op = op
            else:
                above, slash, label = name.rpartition("/")
                if slash and not above:
                    label = name
                box = boxes.get(above)
                if box is None:
                    box = self._open(above, boxes)
                item = known[name] = Item(name, op, box, False)
                if name in boxes and name:
                    self._move(item, boxes[name])
                else:
                    box.children[label] = items[name] = item
            placed.append((item, inputs))
        del boxes[""]
        self.boxes = boxes
        self._embed(aside)
        return placed

    def _open(self, name: str, boxes: dict[str, Box]) -> Box:
        """Make the missing boxes of a prefix, and return the innermost."""
        missing = []
        box = None
        while box is None:
            missing.append(name)
            above, slash, _ = name.rpartition("/")
            name = above if slash else ""
            box = boxes.get(name)
        for name in reversed(missing):
            above, slash, label = name.rpartition("/")
            if slash and not above:
                label = name
            previous = box.children.get(label)
            # A box takes the place of a node of its name, which moves into it.
            box.children[label] = boxes[name] = box = Box(name, label, box)
            if isinstance(previous, Item):
                del self.items[name]
                self._move(previous, box)
        return box

    def _move(self, item: Item, box: Box) -> None:
        """Move a node that is named like a box into that box, as `a/(a)`."""
        label = f"({item.name.rpartition('/')[2]})"
        strict = self.strict[item.name] = f"{item.name}/{label}"
        item.name, item.box = strict, box
        box.children[label] = self.items[strict] = item

    def _embed(self, aside: list[tuple[Item, str]]) -> None:
        """Assign embedded nodes to boxes, now that all boxes exist."""
        boxes, root = self.boxes, self.root
        for item, name in aside:
            self._known[name] = item
            if name in boxes:
                item.box = boxes[name]
                item.name = self.strict[name] = f"{name}/({name.rpartition('/')[2]})"
            else:
                above = name.rpartition("/")[0]
                while above and above not in boxes:
                    above = above.rpartition("/")[0]
                item.box = boxes[above] if above else root
            self.items[item.name] = item

    def _connect(self, placed: list[tuple[Item, Sequence[str]]]) -> None:
        """Resolve the inputs of each node to the nodes that they name."""
        # A name that `parse_input` would change is in `odd` instead.
        known, odd = self._known, dict[str, Item]()
        for name in [name for name in known if ":" in name or name[:1] == "^"]:
            if parse_input(name) != (name, False):
                odd[name] = known.pop(name)
        find = known.get
        for item, inputs in placed:
            last: str | None = None
            for text in inputs:
                source = find(text)
                if source is not None:
                    if text != last:
                        last = text
                        if source is not item:
                            item.sources.append(source)
                    continue
                name, control = parse_input(text)
                if name == last:
                    continue
                last = name
                source = find(name) or odd.get(name) or self.items.get(name)
                if source is not None and source is not item:
                    (item.controls if control else item.sources).append(source)
        known.clear()
