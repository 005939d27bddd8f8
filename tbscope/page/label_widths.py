"""Widths of labels: which names the page shows whole, where nobody has clicked.

It measures a label and cuts what is too wide. That of a node has one size, that of a closed box
is written the smaller the more characters it has, so that a longer one may be whole where a
shorter one is not. Titles of opened boxes and of stacks are never cut.

Source: tf_graph_common/node.ts:440-514, `labelBuild` and `enforceLabelWidth`
"""

from functools import lru_cache
from itertools import pairwise

from tbscope.page.constants import (
    BOX_LABEL,
    BOX_LABEL_WIDTH,
    BOX_LETTERS,
    NODE_LABEL,
    NODE_LABEL_WIDTH,
)
from tbscope.page.roboto import CLOSER, UNITS, WIDTHS

__all__ = ["blanks_to_fit", "fits_box", "fits_node"]

_WIDTHS = {letter: width for width, letters in WIDTHS.items() for letter in letters}
_CLOSER = {pair: units for units, pairs in CLOSER.items() for pair in pairs.split()}
# Of a character that the table does not have, as wide as the widest that it has.
_WIDEST = max(WIDTHS)


def fits_node(label: str) -> bool:
    """Tell whether the page shows the whole label of a node.

    >>> fits_node("input_ids"), fits_node("attention_mask")
    (True, False)
    """
    return _units(label) * NODE_LABEL <= NODE_LABEL_WIDTH * UNITS


def fits_box(label: str) -> bool:
    """Tell whether the page shows the whole label of a closed box.

    >>> fits_box("last_hidden_state"), fits_box("attention_mask")
    (True, False)
    """
    fewest, most = BOX_LETTERS
    large, small = BOX_LABEL
    count = len(label)
    if count > most:
        return False
    part = max(count - fewest, 0) / (most - fewest)
    return _units(label) * (large - (large - small) * part) <= BOX_LABEL_WIDTH * UNITS


def blanks_to_fit(label: str) -> int | None:
    """Return the fewest blanks behind a label with which a closed box shows it whole.

    They are not seen, and the page counts them when it chooses the size of the letters. None where
    no number of them helps.

    >>> blanks_to_fit("EncoderLayer"), blanks_to_fit("DecoderLayer")
    (0, 1)
    """
    rooms = range(max(BOX_LETTERS[1] - len(label), 0) + 1)
    return next((count for count in rooms if fits_box(label + " " * count)), None)


@lru_cache(maxsize=1 << 12)
def _units(text: str) -> int:
    """The width of a text, in units of the font."""
    alone = sum(_WIDTHS.get(letter, _WIDEST) for letter in text)
    return alone + sum(_CLOSER.get(one + other, 0) for one, other in pairwise(text))
