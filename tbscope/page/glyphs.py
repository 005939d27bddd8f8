"""Glyphs: the boxes, nodes and stacks of which every drawing of the page is made."""

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Box", "Glyph", "Item", "Series", "box_around", "members_of"]


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


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Siblings that are folded into one stack.

    Attributes:
        name: What the page calls the stack (`net/relu_[1-7]`).
        members: The nodes in it, by their numbers.
    """

    name: str
    members: tuple[Item, ...]


Glyph: TypeAlias = Box | Item | Series
"""One thing that is drawn: a box, a node, or a stack."""


def members_of(glyph: Glyph) -> tuple[Glyph, ...]:
    """The glyphs that a stack stands for; of any other, itself."""
    return glyph.members if isinstance(glyph, Series) else (glyph,)


def box_around(glyph: Box | Item) -> Box | None:
    """The box in which a node or a box is; None for the root."""
    return glyph.box if isinstance(glyph, Item) else glyph.parent
