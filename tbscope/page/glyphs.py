"""Glyphs: the three kinds of shapes that the page draws, which are boxes, nodes and stacks."""

from dataclasses import dataclass
from typing import TypeAlias

from tbscope.page.constants import LIBRARY


class Box:
    """A metanode of the page: a prefix of names. The root is a box, too.

    Attributes:
        name: The whole prefix (`layer1/0`); empty for the root.
        label: The last part of the name, which the page shows.
        parent: The enclosing box; None for the root.
        depth: The number of enclosing boxes.
        children: Boxes and nodes by label, in order of first appearance, without embedded
            nodes.
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
        box: The box that contains it; for an embedded node, the innermost existing box that
            is a prefix of its name.
        embedded: Whether it is drawn as a circle or an icon beside other nodes.
        sources: The nodes of its data inputs, in order, embedded nodes included. Repeated
            inputs from one node in a row count once; unknown names are left out.
        controls: The nodes of its control inputs, in order, by the same rules.
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
        """The last part of the name, which the page shows."""
        return self.name.rpartition("/")[2]

    def __repr__(self) -> str:
        return f"Item({self.name!r}, {self.op!r})"


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Siblings that are folded into one stack.

    Attributes:
        name: The page's name for the stack (`net/relu_[1-7]`).
        members: The nodes in it, ordered by their numbers.
    """

    name: str
    members: tuple[Item, ...]


Glyph: TypeAlias = Box | Item | Series
"""A shape that the page draws: a box, a node, or a stack."""


def box_around(glyph: Box | Item) -> Box | None:
    """Return the box that contains a node or a box; None for the root."""
    return glyph.box if isinstance(glyph, Item) else glyph.parent


def is_library(glyph: Glyph) -> bool:
    """Whether a glyph is drawn in the panel of functions and not in the graph.

    Source: hierarchy.ts:677-698, `addNodes`; render.ts:950-965, `buildSubhierarchy`
    """
    if not isinstance(glyph, Box) or not glyph.name.startswith(LIBRARY):
        return False
    return glyph.parent is not None and glyph.parent.parent is None
