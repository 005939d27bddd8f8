"""Structures: the boxes of a hierarchy that TensorBoard's page regards as equal inside.

The page compares the direct children of two boxes (op types of nodes, structures of boxes),
the lines among them, and the order in which op types first appear below. Names count only
where they fold nodes into a series. Edges that enter or leave a box, attributes and embedded
nodes do not count.

Here the order of the children counts, in place of that of the op types: code that runs twice
makes the children in one order.

Source: tensorboard/plugins/graph/tf_graph_common/template.ts
"""

from tbscope.page.glyphs import Box, Glyph, Item
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.series import find_series


class Structure:
    """The inside that one or several boxes have in common.

    Attributes:
        number: Unique, children before parents.
        box: The first box that has this structure.
        depth: The number of levels below: 1 if the box contains only nodes.
        size: The number of nodes below.
        count: The number of boxes that have this structure.
        children: The structures of boxes directly in it, each once, in order.
    """

    __slots__ = ("box", "children", "count", "depth", "number", "size")

    def __init__(self, number: int, box: Box, depth: int, size: int) -> None:
        self.number = number
        self.box = box
        self.depth = depth
        self.size = size
        self.count = 0
        self.children: dict[Structure, None] = {}


class Structures:
    """The structure of every box but the root.

    Attributes:
        of: The structure of each box.
        all: Each structure once, in the order in which the page first meets it.
        order: The index of each node in the GraphDef.
    """

    def __init__(self, hierarchy: Hierarchy) -> None:
        self.of: dict[Box, Structure] = {}
        self.order = {item: at for at, item in enumerate(hierarchy.items.values())}
        self._hierarchy = hierarchy
        self._known: dict[tuple[object, ...], Structure] = {}
        boxes = list(hierarchy.boxes.values())
        # Boxes come parents first.
        for box in reversed(boxes):
            self.of[box] = self._find(box)
        self.all = list(dict.fromkeys(self.of[box] for box in boxes))
        for box in reversed(boxes):
            structure = self.of[box]
            structure.box = box
            structure.count += 1

    def items_below(self, box: Box) -> list[Item]:
        """Return the nodes in a box, at any depth, in the order of the GraphDef."""
        below: list[Item] = []
        pending = [box]
        while pending:
            for child in pending.pop().children.values():
                if isinstance(child, Item):
                    below.append(child)
                else:
                    pending.append(child)
        return sorted(below, key=self.order.__getitem__)

    def _find(self, box: Box) -> Structure:
        kinds: list[str | int] = []
        inner: dict[Structure, None] = {}
        depth = size = 0
        for child in box.children.values():
            if type(child) is Item:
                kinds.append(child.op)
                size += 1
            else:
                assert type(child) is Box
                structure = self.of[child]
                kinds.append(structure.number)
                inner[structure] = None
                size += structure.size
                depth = max(depth, structure.depth)
        index_of: dict[Glyph, int] = {
            child: index for index, child in enumerate(box.children.values())
        }
        links = sorted((index_of[a], index_of[b]) for a, b in self._hierarchy.links(box))
        stacks = sorted((stack.members[0].op, len(stack.members)) for stack in find_series(box))
        key = tuple(kinds), tuple(links), tuple(stacks)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Structure(len(self._known) + 1, box, depth + 1, size)
            known.children = inner
        return known
