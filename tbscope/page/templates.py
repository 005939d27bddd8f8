"""Structures: which boxes of a hierarchy TensorBoard's page holds for the same inside.

The page compares what stands directly in two boxes (op types of nodes, structures of
boxes), the lines among that, and the order in which op types first appear below. Names
count where they have nodes folded into a series. What leaves or enters a box, attributes
and embedded nodes do not count.

Source: tensorboard/plugins/graph/tf_graph_common/template.ts
"""

from collections.abc import Hashable
from typing import NamedTuple, TypeAlias

from tbscope.page.glyphs import Box, Glyph, Item
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.series import find_series

__all__ = ["Structure", "Structures"]

_Kind: TypeAlias = "str | int"
"""What a child is: a node's op type, or the number of a box's structure."""

# How far around a child its place among the others is told by what it is linked with.
_ROUNDS = 3


class _Inside(NamedTuple):
    """What stands directly in a box: its children, the lines among them, all op types below."""

    kinds: list[_Kind]
    links: list[tuple[int, int]]
    ops: tuple[str, ...]


class Structure:
    """The inside that some boxes have in common.

    Attributes:
        number: Different for each, children before parents.
        box: The first box that has it.
        depth: How many levels are below: 1 where only nodes stand in it.
        size: How many nodes are below.
        count: How many boxes have it.
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

    def __repr__(self) -> str:
        return f"Structure({self.number}, {self.box.name!r} x{self.count})"


class Structures:
    """The structure of every box but the root.

    Attributes:
        of: The structure of each box.
        all: Each structure once, in the order in which the page first meets it.
        order: The place of each node among all.
    """

    def __init__(self, hierarchy: Hierarchy) -> None:
        self.of: dict[Box, Structure] = {}
        self.order = {item: at for at, item in enumerate(hierarchy.items.values())}
        self._hierarchy = hierarchy
        self._number = 0
        # Where each op type first appears below a box.
        self._firsts: dict[Box, dict[str, int]] = {}
        self._exact: dict[Hashable, Structure] = {}
        self._signatures: dict[Hashable, tuple[Structure, _Inside] | dict[Hashable, Structure]] = {}
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
        """The nodes in a box and in the boxes inside of it, in the order of the GraphDef."""
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
                at = order[child]
                if at < firsts.get(child.op, at + 1):
                    firsts[child.op] = at
            else:
                assert type(child) is Box
                structure = of[child]
                kinds.append(structure.number)
                inner[structure] = None
                size += structure.size
                depth = max(depth, structure.depth)
                for op, at in self._firsts.pop(child).items():
                    if at < firsts.get(op, at + 1):
                        firsts[op] = at
        self._firsts[box] = firsts
        ops = tuple(sorted(firsts, key=firsts.__getitem__) if inner else firsts)
        places: dict[Glyph, int] = {child: at for at, child in enumerate(box.children.values())}
        links = [(places[a], places[b]) for a, b in self._hierarchy.links(box)]
        # Most boxes are equal by the letter to one that is known.
        exact = (tuple(box.children), tuple(kinds), tuple(links), ops)
        found = self._exact.get(exact)
        if found is None:
            new = Structure(self._number + 1, box, depth + 1, size)
            found = self._exact[exact] = self._like(new, _Inside(kinds, links, ops))
            if found is new:
                self._number += 1
                found.children = inner
        return found

    def _like(self, new: Structure, inside: _Inside) -> Structure:
        """The known structure that is like a new one, or the new one."""
        signature = (new.depth, new.size, len(inside.kinds), len(inside.links), inside.ops)
        known = self._signatures.get(signature)
        if known is None:
            # What nothing else resembles need not be looked at.
            self._signatures[signature] = new, inside
            return new
        if isinstance(known, tuple):
            first, first_inside = known
            known = self._signatures[signature] = {self._refine(first.box, first_inside): first}
        return known.setdefault(self._refine(new.box, inside), new)

    def _refine(self, box: Box, inside: _Inside) -> Hashable:
        """Describe children by what they are and what is around them, in no order."""
        kinds, links, _ = inside
        sources: list[list[int]] = [[] for _ in kinds]
        readers: list[list[int]] = [[] for _ in kinds]
        for start, end in links:
            sources[end].append(start)
            readers[start].append(end)
        known = self._colours
        colours = [known.setdefault((kind,), len(known)) for kind in kinds]
        for _ in range(_ROUNDS):
            around = [
                (
                    colour,
                    tuple(sorted([colours[at] for at in sources[place]])),
                    tuple(sorted([colours[at] for at in readers[place]])),
                )
                for place, colour in enumerate(colours)
            ]
            colours = [known.setdefault(each, len(known)) for each in around]
        stacks = sorted((stack.members[0].op, len(stack.members)) for stack in find_series(box))
        return tuple(sorted(colours)), tuple(stacks)
