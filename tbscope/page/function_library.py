"""Function library: the boxes in the page's panel of functions."""

import re

from tbscope.page.constants import LIBRARY, LIBRARY_ENDING
from tbscope.page.glyphs import Box, Glyph

__all__ = ["is_library", "is_of_legend"]

_WORD = re.compile("[A-Za-z0-9_]+")


def is_library(glyph: Glyph) -> bool:
    """Whether a glyph is drawn in the panel of functions and not in the graph.

    Source: hierarchy.ts:677-698, `addNodes`; render.ts:950-965, `buildSubhierarchy`
    """
    if not isinstance(glyph, Box) or not glyph.name.startswith(LIBRARY):
        return False
    return glyph.parent is not None and glyph.parent.parent is None


def is_of_legend(name: str) -> bool:
    """Whether a node is in a box of the panel that serves only as a legend of colours.

    The name of this kind of box ends in `LIBRARY_ENDING`, or contains a character that no
    function's name can contain.
    """
    box = name.partition("/")[0]
    if not box.startswith(LIBRARY):
        return False
    return box.endswith(LIBRARY_ENDING) or not _WORD.fullmatch(box)
