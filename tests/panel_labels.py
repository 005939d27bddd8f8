"""The labels of boxes in the page's panel of functions."""

import re

from tbscope.page.constants import LIBRARY
from tbscope.page.glyphs import is_library

_FUNCTION = re.compile(rf"(?:{LIBRARY})?([A-Za-z0-9_]+)_[a-z0-9]{{8}}(?:_[0-9]+)?")


def shown_label(glyph):
    """Return the whole label of a glyph, before it is cut to its width.

    Source: render.ts:1678-1700, `RenderNodeInfo`
    """
    label = glyph.name.rpartition("/")[2]
    if is_library(glyph):
        match = _FUNCTION.fullmatch(label)
        label = match[1] if match else label.removeprefix(LIBRARY)
    return label
