"""Cuts: a picture down to a depth, for forms in which boxes neither open nor close.

Boxes with at most `depth` boxes around their contents are drawn open, the others as one closed
shape each. So every line is between two shapes, whatever boxes it crosses.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from tbscope.errors import ArgumentError
from tbscope.messages import shown
from tbscope.page.glyphs import Box, Item
from tbscope.saving.box_tree import Glyph, Picture, Tensor
from tbscope.saving.repeats import Folds

_Drawn = TypeVar("_Drawn")

PAGE = (700, 1000)
"""The width and the height of a page in points, for letters of 11 points."""

# No more shapes fit on a page even with the smallest nodes and gaps, so Graphviz is not run.
_MOST_SHAPES = 250


@dataclass(slots=True, eq=False)
class ShapeEdge:
    """A line between two shapes.

    Attributes:
        start: The shape at its start.
        end: The shape at its end.
        tensors: The type of each tensor on it, once; None if the type is unknown. A line without
            tensors is a control dependency.
    """

    start: Glyph
    end: Glyph
    tensors: dict[tuple[Item, int], Tensor | None] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The label of the line: the sizes of one tensor, or the number of tensors."""
        tensors = list(self.tensors.values())
        sizes = {tensor.size_text for tensor in tensors if tensor is not None}
        if len(tensors) == 1:
            return "".join(sizes)
        if len(sizes) == 1 and None not in tensors:
            return f"{len(tensors)} of {''.join(sizes)}"
        return f"{len(tensors)} tensors" if tensors else ""

    @property
    def elements(self) -> int:
        """The number of elements of the largest tensor."""
        counts = [tensor.elements for tensor in self.tensors.values() if tensor is not None]
        return max(counts, default=0)


class Cut:
    """The shapes and lines of a picture down to a depth.

    Attributes:
        picture: The picture.
        depth: The number of boxes around the innermost nodes that are drawn.
        folds: The runs of the picture, drawn as their first block; None if all blocks are drawn.
        lines: The lines, in the order of their first tensors.
        shapes: The number of shapes, open boxes included.
    """

    def __init__(
        self, picture: Picture, depth: int | None = None, folds: Folds | None = None
    ) -> None:
        self.picture = picture
        self.folds = folds
        deepest = max((box.depth for box in picture.boxes), default=0)
        self.depth = deepest if depth is None else min(depth, deepest)
        edges: dict[tuple[Glyph, Glyph], ShapeEdge] = {}
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
                line = edges.get((start, end))
                if line is None:
                    line = edges[start, end] = ShapeEdge(start, end)
                if not read.waits:
                    line.tensors[read.source, read.output] = picture.tensor(read)
        self.lines = list(edges.values())
        self.shapes = sum(1 for _ in self.walk())

    def is_open(self, box: Box) -> bool:
        """Whether a box is drawn with its contents."""
        return box.depth <= self.depth

    def shape_of(self, item: Item) -> Glyph:
        """Return the shape of a node: itself, or its outermost closed box."""
        shape: Glyph = item
        box = item.box
        while box.parent is not None:
            if not self.is_open(box):
                shape = box
            box = box.parent
        return shape

    def title(self, glyph: Glyph) -> tuple[str, str]:
        """Return the label and the second line of a node or a box."""
        known = self.folds.titles.get(glyph) if self.folds else None
        return known or (glyph.label, self.picture.second_line(glyph))

    def walk(self) -> Iterator[Glyph]:
        """Return all shapes and open boxes, each box before its contents."""
        return self.picture.walk(self.is_open)


def check_depth(depth: object) -> None:
    """Raise ArgumentError unless this is a depth; None is the deepest that fits."""
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
        size_of: Returns the width and height of a drawing in points.
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
