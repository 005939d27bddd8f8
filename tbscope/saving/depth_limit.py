"""Cuts: a picture down to a depth, for forms in which boxes neither open nor close.

Boxes with fewer boxes around them than the depth are drawn with what is in them, the others as one
closed shape each. So every line is one between two shapes, whatever boxes it crosses.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from tbscope.errors import ArgumentError
from tbscope.messages import shown
from tbscope.page.glyphs import Box, Item
from tbscope.saving.box_tree import Picture, Tensor
from tbscope.saving.repeats import Folds

__all__ = ["PAGE", "Cut", "Line", "check_depth", "fitting"]

_Drawn = TypeVar("_Drawn")

PAGE = (700, 1000)
"""The width and the height of a page in points, for letters of 11 points."""

# More of the smallest nodes with the gaps between them fit no page: Graphviz is spared them.
_MOST_SHAPES = 250


@dataclass(slots=True, eq=False)
class Line:
    """A line between two shapes.

    Attributes:
        start: From where.
        end: To where.
        tensors: The type of each tensor that goes along it, once; None where it is not known.
            With none of them, the end only waits for the start.
    """

    start: Box | Item
    end: Box | Item
    tensors: dict[tuple[Item, int], Tensor | None] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """What stands beside it: the sizes of one tensor, or how many there are."""
        given = list(self.tensors.values())
        sizes = {tensor.size_text for tensor in given if tensor is not None}
        if len(given) == 1:
            return "".join(sizes)
        if len(sizes) == 1 and None not in given:
            return f"{len(given)} of {''.join(sizes)}"
        return f"{len(given)} tensors" if given else ""

    @property
    def elements(self) -> int:
        """How many elements the largest tensor has."""
        given = [tensor.elements for tensor in self.tensors.values() if tensor is not None]
        return max(given, default=0)


class Cut:
    """What of a picture is drawn down to a depth.

    Attributes:
        picture: The picture.
        depth: How many boxes are around the innermost nodes that are drawn.
        folds: The runs of the picture, of which the first block is drawn; None if all are.
        lines: The lines, in the order in which they are first met.
        shapes: How many shapes and open boxes there are.
    """

    def __init__(
        self, picture: Picture, depth: int | None = None, folds: Folds | None = None
    ) -> None:
        self.picture = picture
        self.folds = folds
        deepest = max((box.depth for box in picture.boxes), default=0)
        self.depth = deepest if depth is None else min(depth, deepest)
        found: dict[tuple[Box | Item, Box | Item], Line] = {}
        for item in picture.items:
            if item.embedded:
                continue
            for read in picture.flow(item):
                ends = folds.ends(read.source, item) if folds else (read.source, item)
                if ends is None:
                    continue
                start, end = map(self.shape_of, ends)
                if start is end:
                    continue
                line = found.get((start, end))
                if line is None:
                    line = found[start, end] = Line(start, end)
                if not read.waits:
                    line.tensors[read.source, read.output] = picture.tensor(read)
        self.lines = list(found.values())
        self.shapes = sum(1 for _ in self.walk())

    def is_open(self, box: Box) -> bool:
        """Tell whether a box is drawn with what is in it."""
        return box.depth <= self.depth

    def shape_of(self, item: Item) -> Box | Item:
        """Return what is drawn for a node: itself, or the closed box that it is in."""
        shape: Box | Item = item
        box: Box | None = item.box
        while box is not None and box.parent is not None:
            if not self.is_open(box):
                shape = box
            box = box.parent
        return shape

    def title(self, glyph: Box | Item) -> tuple[str, str]:
        """Return the label and the second line of a node or a box."""
        known = self.folds.titles.get(glyph) if self.folds else None
        return known or (glyph.label, self.picture.second_line(glyph))

    def walk(self) -> Iterator[Box | Item]:
        """Yield all that is drawn: each box before what is in it."""
        pending: list[Box | Item] = list(reversed(self.picture.children(self.picture.root)))
        while pending:
            glyph = pending.pop()
            yield glyph
            if isinstance(glyph, Box) and self.is_open(glyph):
                pending += reversed(self.picture.children(glyph))


def check_depth(depth: object) -> None:
    """Raise ArgumentError unless this is a depth, or None for what fits."""
    if depth is not None and (type(depth) is not int or depth < 0):
        raise ArgumentError(
            f"a graph cannot be drawn to the depth {shown(depth)}",
            why="it is a whole number of boxes around a node, an int from 0, or None",
            fix="depth=2, or leave depth out",
        )


def fitting(
    folds: Folds,
    draw: Callable[[Cut], _Drawn],
    size_of: Callable[[_Drawn], tuple[float, float]],
) -> _Drawn:
    """Return the drawing of the deepest cut that fits a page; of the shallowest if none does.

    Args:
        folds: A picture with its runs.
        draw: Draws a cut.
        size_of: Gives the size of a drawing in points.
    """
    cut = Cut(folds.picture, None, folds)
    while cut.depth:
        if cut.shapes <= _MOST_SHAPES:
            drawn = draw(cut)
            width, height = size_of(drawn)
            if width <= PAGE[0] and height <= PAGE[1]:
                return drawn
        cut = Cut(folds.picture, cut.depth - 1, folds)
    return draw(cut)
