"""Columns: the ranks of a distributed run side by side, and what they do together below them."""

import re

from tbscope.page.glyphs import Box
from tbscope.saving.lines import LinesOf
from tbscope.saving.picture import Glyph, Picture

__all__ = ["JOINT", "columns_of"]

JOINT = -1
"""The column of what several ranks do together."""

# As `tbscope.ir.ranks` says them, in the names of a drawing.
_RANKS = re.compile(r"(stage_\d+_)?ranks?_\d[\d,_a-z-]*")


def columns_of(picture: Picture, box: Box, within: LinesOf) -> list[int]:
    """Return the column of each child of a box, or `JOINT`; none for a box without two ranks.

    Args:
        picture: The picture.
        box: The box.
        within: The lines among its children.
    """
    children = picture.children(box)
    boxes = [
        child
        for child in children
        if isinstance(child, Box) and _RANKS.fullmatch(child.label) and not picture.class_of(child)
    ]
    if len(boxes) < 2:
        return []
    columns: dict[Glyph, int] = {child: at for at, child in enumerate(boxes)}
    beside: dict[Glyph, set[int]] = {}
    for start, end in within:
        for one, other in ((start, end), (end, start)):
            if other in columns:
                beside.setdefault(one, set()).add(columns[other])
    for child in children:
        # An input, or an output, of one rank is in its column.
        near = beside.get(child, set())
        columns.setdefault(child, next(iter(near)) if len(near) == 1 else JOINT)
    return [columns[child] for child in children]
