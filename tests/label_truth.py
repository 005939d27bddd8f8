"""Widths of labels to the letter, by a table of the page's font: the measure of the rule of thumb.

`tbscope.page.label_widths` knows four widths of letters; this knows all, and pairs of them.
"""

from itertools import pairwise

from roboto import CLOSER, UNITS, WIDTHS

from tbscope.page.constants import (
    BOX_LABEL,
    BOX_LABEL_WIDTH,
    BOX_LETTERS,
    NODE_LABEL,
    NODE_LABEL_WIDTH,
)

_WIDTHS = {letter: width for width, letters in WIDTHS.items() for letter in letters}
_CLOSER = {pair: units for units, pairs in CLOSER.items() for pair in pairs.split()}
# Of a character that the table does not have, as wide as the widest that it has.
_WIDEST = max(WIDTHS)


def node_is_whole(label):
    """Whether the page shows the whole label of a node."""
    return _units(label) * NODE_LABEL <= NODE_LABEL_WIDTH * UNITS


def box_is_whole(label):
    """Whether the page shows the whole label of a closed box."""
    fewest, most = BOX_LETTERS
    large, small = BOX_LABEL
    count = len(label)
    if count > most:
        return False
    part = max(count - fewest, 0) / (most - fewest)
    return _units(label) * (large - (large - small) * part) <= BOX_LABEL_WIDTH * UNITS


def _units(text):
    """The width of a text, in units of the font."""
    alone = sum(_WIDTHS.get(letter, _WIDEST) for letter in text)
    return alone + sum(_CLOSER.get(one + other, 0) for one, other in pairwise(text))
