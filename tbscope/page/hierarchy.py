"""The tree that TensorBoard's page makes of the names in a GraphDef, and the edges in it.

It reads names, op types and inputs as the page does, and knows nothing of attributes,
shapes or torch. What the page then does with the tree is in `page.py`.

Source: tensorboard/plugins/graph/tf_graph_common/graph.ts and hierarchy.ts
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from tensorboard.compat.proto.graph_pb2 import GraphDef

__all__ = ["Box", "Hierarchy", "Item", "Link", "is_circle", "is_embedded", "parse_input"]

_OUTPUT = re.compile(r"([^:]+):(?:(?:[A-Za-z0-9_]+:|)[0-9]+)")
_SUMMARY = re.compile(r"[a-zA-Z]+Summary")


def is_circle(op: str) -> bool:
    """Tell whether nodes of an op type are drawn as small circles beside what reads them.

    Source: graph.ts, `DefaultBuildParams.inEmbeddingTypes`
    """
    return "Const" in op


def is_embedded(op: str) -> bool:
    """Tell whether nodes of an op type are no shapes of their own: circles and summary icons.

    Source: graph.ts, `DefaultBuildParams`
    """
    return "Const" in op or _SUMMARY.fullmatch(op) is not None


def parse_input(text: str) -> tuple[str, bool]:
    """Give the name of the node that an input names, and whether it is a control input.

    Args:
        text: An entry of `NodeDef.input`: `a`, `a:1`, `a:out:1`, `^a`.

    Source: graph.ts, `normalizeInputs`
    """
    control = text.startswith("^")
    if control:
        text = text[1:]
    if ":" in text:
        found = _OUTPUT.fullmatch(text)
        if found:
            text = found[1]
    return text, control


class Box:
    """A metanode: a prefix of names; the root is one too.

    Attributes:
        name: The whole prefix (`layer1/0`); empty for the root.
        label: What is shown: its last part.
        parent: The box around it; None for the root.
        depth: How many boxes are around it.
        children: Boxes and nodes by label, in order of first appearance. What is
            embedded stands in none.
    """

    __slots__ = ("children", "depth", "label", "name", "parent")

    def __init__(self, name: str, label: str, parent: "Box | None") -> None:
        self.name = name
        self.label = label
        self.parent = parent
        self.depth: int = parent.depth + 1 if parent else 0
        self.children: dict[str, Box | Item] = {}

    def __repr__(self) -> str:
        return f"Box({self.name!r})"


class Item:
    """A node as the page reads it.

    Attributes:
        name: Its name on the page: `a/(a)` for a node `a` with other nodes below it.
        op: Its op type.
        box: The box that it stands in; the innermost one that its name tells if it is
            embedded.
        embedded: Whether it is drawn as a circle or an icon beside other nodes.
        sources: What its data inputs name, in order, embedded nodes too. An input of the
            same node as the one before it is left out, and so is an unknown one.
        controls: What its control inputs name, in order, by the same rules.
    """

    __slots__ = ("box", "controls", "embedded", "name", "op", "sources")

    def __init__(self, name: str, op: str, box: Box, embedded: bool) -> None:
        self.name = name
        self.op = op
        self.box = box
        self.embedded = embedded
        self.sources: list[Item] = []
        self.controls: list[Item] = []

    @property
    def label(self) -> str:
        """What is shown: the last part of the name."""
        return self.name.rpartition("/")[2]

    def __repr__(self) -> str:
        return f"Item({self.name!r}, {self.op!r})"


class Link(NamedTuple):
    """A line between two shapes of one level.

    Attributes:
        data: How many data edges it stands for.
        control: How many control edges.
    """

    data: int
    control: int


class Hierarchy:
    """The nodes of a GraphDef in the boxes that the page draws around them.

    Attributes:
        root: The box around all.
        items: Every node, embedded ones too, by its name on the page.
        boxes: Every box but the root, by name, in order of first appearance.
        strict: The names on the page of nodes that do not keep theirs, by name.
    """

    def __init__(self, nodes: Iterable[tuple[str, str, Sequence[str]]]) -> None:
        """Read nodes.

        Args:
            nodes: Name, op type and inputs (as in `NodeDef.input`) of each. Of two nodes
                with one name, the last gives the op type, and both give edges.
        """
        self.root = Box("", "", None)
        self.items: dict[str, Item] = {}
        self.boxes: dict[str, Box] = {}
        self.strict: dict[str, str] = {}
        # By the name that an input gives; what no input can give as it stands is apart.
        self._known: dict[str, Item] = {}
        self._odd: dict[str, Item] = {}
        self._circles: dict[str, Item] = {}
        self._links: dict[Box, dict[tuple[Box | Item, Box | Item], Link]] | None = None
        placed = self._place(nodes)
        if self.strict:
            # In the order of the nodes again: what was renamed had gone to the end.
            self.items = {item.name: item for item, _ in placed}
        self._connect(placed)

    @classmethod
    def of(cls, graph_def: GraphDef) -> Self:
        """Read the nodes of a GraphDef."""
        return cls((node.name, node.op, node.input) for node in graph_def.node)

    def links(self, box: Box) -> dict[tuple[Box | Item, Box | Item], Link]:
        """Give the lines among the children of a box: (from, to) and what they stand for.

        An embedded node has none: what it reads, its reader reads. They are in the order
        in which the page comes to know them.

        Source: hierarchy.ts, `addEdges`
        """
        if self._links is None:
            self._links = self._link()
        return self._links.get(box, {})

    def _place(
        self, nodes: Iterable[tuple[str, str, Sequence[str]]]
    ) -> list[tuple[Item, Sequence[str]]]:
        """Make an item of each node, and the boxes around it."""
        boxes, known, items = {"": self.root, **self.boxes}, self._known, self.items
        kinds: dict[str, bool] = {}
        placed: list[tuple[Item, Sequence[str]]] = []
        aside: list[tuple[Item, str]] = []
        for name, op, inputs in nodes:
            embedded = kinds.get(op)
            if embedded is None:
                embedded = kinds[op] = is_embedded(op)
            if embedded:
                item = Item(name, op, self.root, True)
                aside.append((item, name))
                placed.append((item, inputs))
                continue
            if name in known:
                # The page keeps one node, with the edges of both.
                item = known[name]
                item.op = op
                placed.append((item, inputs))
                continue
            above, slash, label = name.rpartition("/")
            if slash and not above:
                label = name
            box = boxes.get(above)
            if box is None:
                box = self._open(above, boxes)
            item = known[name] = Item(name, op, box, False)
            placed.append((item, inputs))
            if name in boxes and name:
                self._move(item, boxes[name])
            else:
                box.children[label] = items[name] = item
        del boxes[""]
        self.boxes = boxes
        self._embed(aside)
        return placed

    def _open(self, name: str, boxes: dict[str, Box]) -> Box:
        """Make the boxes of a prefix that are missing."""
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
            was = box.children.get(label)
            # A box takes the place of a node of its name, which moves into it.
            box.children[label] = boxes[name] = box = Box(name, label, box)
            if isinstance(was, Item):
                del self.items[name]
                self._move(was, box)
        return box

    def _move(self, item: Item, box: Box) -> None:
        """Give a node that is named like a box the name that it has in there."""
        label = f"({item.name.rpartition('/')[2]})"
        strict = self.strict[item.name] = f"{item.name}/{label}"
        item.name, item.box = strict, box
        box.children[label] = self.items[strict] = item

    def _embed(self, aside: list[tuple[Item, str]]) -> None:
        """Place what has no shape of its own, now that all boxes are known."""
        boxes, root = self.boxes, self.root
        for item, name in aside:
            self._circles[name] = item
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
        """Find what each input names."""
        known = {**self._known, **self._circles}
        for name in [name for name in known if ":" in name or name[:1] == "^"]:
            if parse_input(name) != (name, False):
                self._odd[name] = known.pop(name)
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
                source = find(name) or self._odd.get(name) or self.items.get(name)
                if source is not None and source is not item:
                    (item.controls if control else item.sources).append(source)
        self._known.clear()
        self._odd.clear()
        self._circles.clear()

    def _link(self) -> dict[Box, dict[tuple[Box | Item, Box | Item], Link]]:
        counts: dict[Box, dict[tuple[Box | Item, Box | Item], list[int]]] = {}
        for item in self.items.values():
            if item.embedded:
                continue
            for source in item.sources:
                if source.embedded:
                    _link_through(source, item, False, counts)
                else:
                    _count(source, item, False, counts)
            for source in item.controls:
                if source.embedded:
                    _link_through(source, item, True, counts)
                else:
                    _count(source, item, True, counts)
        return {
            box: {ends: Link(*count) for ends, count in links.items()}
            for box, links in counts.items()
        }


_Counts = dict[Box, dict[tuple[Box | Item, Box | Item], list[int]]]


def _link_through(embedded: Item, reader: Item, control: bool, counts: _Counts) -> None:
    """Count what an embedded node reads as read by its reader."""
    circle = is_circle(embedded.op)
    for sources, waits in ((embedded.sources, False), (embedded.controls, True)):
        for source in sources:
            if not source.embedded and source is not reader:
                # Of a summary icon, the kind of the edge that leaves it counts.
                _count(source, reader, waits if circle else control, counts)


def _count(source: Item, reader: Item, control: bool, counts: _Counts) -> None:
    """Count an edge where the page draws it: in the innermost box around both."""
    start: Box | Item = source
    end: Box | Item = reader
    above, below = source.box, reader.box
    while above is not below:
        if above.depth >= below.depth:
            start = above
            assert above.parent is not None, "the root is around all"
            above = above.parent
        else:
            end = below
            assert below.parent is not None, "the root is around all"
            below = below.parent
    links = counts.setdefault(above, {})
    count = links.get((start, end))
    if count is None:
        count = links[start, end] = [0, 0]
    count[control] += 1
