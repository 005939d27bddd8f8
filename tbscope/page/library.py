"""The library: the boxes in the page's panel of functions, and how they are called there."""

import re

from tbscope.page.constants import LIBRARY
from tbscope.page.glyphs import Box, Glyph

__all__ = ["is_library", "shown_label"]

_FUNCTION = re.compile(rf"(?:{LIBRARY})?([A-Za-z0-9_]+)_[a-z0-9]{{8}}(?:_[0-9]+)?")


def is_library(glyph: Glyph) -> bool:
    """Tell whether a glyph stands in the panel of functions, not in the graph.

    Source: hierarchy.ts:677-698, `addNodes`; render.ts:950-965, `buildSubhierarchy`
    """
    if not isinstance(glyph, Box) or not glyph.name.startswith(LIBRARY):
        return False
    return glyph.parent is not None and glyph.parent.parent is None


def shown_label(glyph: Glyph) -> str:
    """The whole label of a glyph, before it is cut to its width.

    Source: render.ts:1678-1700, `RenderNodeInfo`
    """
    label = glyph.name.rpartition("/")[2]
    if is_library(glyph):
        found = _FUNCTION.fullmatch(label)
        label = found[1] if found else label.removeprefix(LIBRARY)
    return label
