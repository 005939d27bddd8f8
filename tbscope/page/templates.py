"""Structures: the boxes of a hierarchy that TensorBoard's page regards as equal inside.

The page compares the direct children of two boxes (op types of nodes, structures of boxes),
the lines among them, and the order in which op types first appear below. Names count only
where they fold nodes into a series. Edges that enter or leave a box, attributes and embedded
nodes do not count.

Source: tensorboard/plugins/graph/tf_graph_common/template.ts
"""

from collections.abc import Hashable
from typing import NamedTuple, TypeAlias

from tbscope.page.glyphs import Box, Glyph, Item
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.series import find_series

_Kind: TypeAlias = "str | int"
"""The kind of a child: the op type of a node, or the number of a box's structure."""

# The number of refinement steps, which is the distance up to which neighbours are compared.
_ROUNDS = 3


class _BoxContents(NamedTuple):
    """The direct contents of a box.

    Attributes:
        kinds: The kind of each child.
        links: The lines among the children, by their indices (from, to).
        ops: All op types below, in order of first appearance.
    """

    kinds: list[_Kind]
    links: list[tuple[int, int]]
    ops: tuple[str, ...]


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
        self._number = 0
        # The index of the first node of each op type below a box.
        self._firsts: dict[Box, dict[str, int]] = {}
        self._exact: dict[Hashable, Structure] = {}
        self._signatures: dict[
            Hashable, tuple[Structure, _BoxContents] | dict[Hashable, Structure]
        ] = {}
        self._colours: dict[Hashable, int] = {}
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
        kinds: list[_Kind] = []
        inner: dict[Structure, None] = {}
        depth = size = 0
        firsts: dict[str, int] = {}
        order, of = self.order, self.of
        for child in box.children.values():
            if type(child) is Item:
                kinds.append(child.op)
                size += 1
                index = order[child]
                if index < firsts.get(child.op, index + 1):
                    firsts[child.op] = index
            else:
                assert type(child) is Box
                structure = of[child]
                kinds.append(structure.number)
                inner[structure] = None
                size += structure.size
                depth = max(depth, structure.depth)
                # A box has one parent, so that its own entry is not needed afterwards.
                for op, index in self._firsts.pop(child).items():
                    if index < firsts.get(op, index + 1):
                        firsts[op] = index
        self._firsts[box] = firsts
        ops = tuple(sorted(firsts, key=firsts.__getitem__) if inner else firsts)
        index_of: dict[Glyph, int] = {
            child: index for index, child in enumerate(box.children.values())
        }
        links = [(index_of[a], index_of[b]) for a, b in self._hierarchy.links(box)]
        # Shortcut: most boxes equal an earlier box exactly, in labels and order.
        exact = (tuple(box.children), tuple(kinds), tuple(links), ops)
        known = self._exact.get(exact)
        if known is None:
            new = Structure(self._number + 1, box, depth + 1, size)
            known = self._exact[exact] = self._like(new, _BoxContents(kinds, links, ops))
            if known is new:
                self._number += 1
                known.children = inner
        return known

    def _like(self, new: Structure, inside: _BoxContents) -> Structure:
        """Return the earlier structure that equals a new one, or the new one."""
        signature = (new.depth, new.size, len(inside.kinds), len(inside.links), inside.ops)
        seen = self._signatures.get(signature)
        if seen is None:
            # The costly refinement is delayed until a second box has this signature.
            self._signatures[signature] = new, inside
            return new
        if isinstance(seen, tuple):
            first, first_inside = seen
            seen = self._signatures[signature] = {self._refine(first.box, first_inside): first}
        return seen.setdefault(self._refine(new.box, inside), new)

    def _refine(self, box: Box, inside: _BoxContents) -> Hashable:
        """Return a description of the children by their kinds and neighbours, in no order.

        Colours (as in Weisfeiler-Leman refinement) are numbers that are equal for children of
        equal kind and equal neighbourhood.
        """
        kinds, links, _ = inside
        sources: list[list[int]] = [[] for _ in kinds]
        readers: list[list[int]] = [[] for _ in kinds]
        for start, end in links:
            sources[end].append(start)
            readers[start].append(end)
        numbers = self._colours
        colours = [numbers.setdefault((kind,), len(numbers)) for kind in kinds]
        for _ in range(_ROUNDS):
            neighbourhoods = [
                (
                    colour,
                    tuple(sorted([colours[neighbour] for neighbour in sources[index]])),
                    tuple(sorted([colours[neighbour] for neighbour in readers[index]])),
                )
                for index, colour in enumerate(colours)
            ]
            colours = [
                numbers.setdefault(neighbourhood, len(numbers)) for neighbourhood in neighbourhoods
            ]
        stacks = sorted((stack.members[0].op, len(stack.members)) for stack in find_series(box))
        return tuple(sorted(colours)), tuple(stacks)
