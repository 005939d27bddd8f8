"""The library: the boxes in the page's panel of functions, and how they are called there."""

import re

from tbscope.page.constants import LIBRARY, LIBRARY_ENDING
from tbscope.page.glyphs import Box, Glyph

__all__ = ["is_library", "is_of_legend", "shown_label"]

_WORD = re.compile("[A-Za-z0-9_]+")
_FUNCTION = re.compile(rf"(?:{LIBRARY})?([A-Za-z0-9_]+)_[a-z0-9]{{8}}(?:_[0-9]+)?")


def is_library(glyph: Glyph) -> bool:
    """Tell whether a glyph stands in the panel of functions, not in the graph.

    Source: hierarchy.ts:677-698, `addNodes`; render.ts:950-965, `buildSubhierarchy`
    """
    if not isinstance(glyph, Box) or not glyph.name.startswith(LIBRARY):
        return False
    return glyph.parent is not None and glyph.parent.parent is None


def is_of_legend(name: str) -> bool:
    """Tell whether a node stands in a box of the panel that only tells a colour.

    Such a box has an ending that the panel cuts off, or is called as no function can be.
    """
    box = name.partition("/")[0]
    if not box.startswith(LIBRARY):
        return False
    return box.endswith(LIBRARY_ENDING) or not _WORD.fullmatch(box)


def shown_label(glyph: Glyph) -> str:
    """The whole label of a glyph, before it is cut to its width.

    Source: render.ts:1678-1700, `RenderNodeInfo`
    """
    label = glyph.name.rpartition("/")[2]
    if is_library(glyph):
        found = _FUNCTION.fullmatch(label)
        label = found[1] if found else label.removeprefix(LIBRARY)
    return label
