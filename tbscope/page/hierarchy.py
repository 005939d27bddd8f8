"""The tree that TensorBoard's page makes of the names in a GraphDef, and the edges in it.

It reads names, op types and inputs as the page does, and knows nothing of attributes,
shapes or torch. What the page then draws of each box is in `scenes.py`.

Source: tensorboard/plugins/graph/tf_graph_common/graph.ts and hierarchy.ts
"""

import re
from collections.abc import Iterable, Sequence
from typing import Self

from tensorboard.compat.proto.graph_pb2 import GraphDef

from tbscope.page.edges import Doors, Edges, Links
from tbscope.page.glyphs import Box, Item
from tbscope.page.op_types import is_embedded

__all__ = ["Hierarchy", "parse_input"]

_OUTPUT = re.compile(r"([^:]+):(?:(?:[A-Za-z0-9_]+:|)[0-9]+)")


def parse_input(text: str) -> tuple[str, bool]:
    """Return the name of the node that an input names, and whether it is a control input.

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
        self._edges: Edges | None = None
        placed = self._place(nodes)
        if self.strict:
            # In the order of the nodes again: what was renamed had gone to the end.
            self.items = {item.name: item for item, _ in placed}
        self._connect(placed)

    @classmethod
    def of(cls, graph_def: GraphDef) -> Self:
        """Read the nodes of a GraphDef."""
        return cls((node.name, node.op, node.input) for node in graph_def.node)

    def links(self, box: Box) -> Links:
        """The lines among the children of a box, in the order in which the page meets them.

        An embedded node has none: what it reads, its reader reads.
        """
        return self._walked().links.get(box, {})

    @property
    def doors(self) -> Doors:
        """Where data crosses the sides of boxes."""
        return self._walked().doors

    def regroup(self, boxes: Iterable[Box]) -> None:
        """Take other boxes than the names tell, parents first, once all children are in them."""
        self.boxes = {box.name: box for box in boxes}
        self._edges = None

    def forget(self) -> None:
        """Let go of all nodes and boxes, once nothing of them is asked any more."""
        # They refer to each other: garbage that only the collector finds.
        for item in self.items.values():
            item.sources.clear()
            item.controls.clear()
        for box in (self.root, *self.boxes.values()):
            box.children.clear()
        self.items.clear()
        self.boxes.clear()
        self._edges = None

    def _walked(self) -> Edges:
        if self._edges is None:
            self._edges = Edges(self.items.values())
        return self._edges

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
        """Rename a node that is named like a box, and put it in there."""
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
