"""Widths of labels: which names the page shows whole in its initial state.

The page measures each label and cuts it to a width. Labels of nodes have one font size. On a
closed box, letters are smaller the more characters the label has, so that a longer label may be
whole where a shorter one is cut. Titles of opened boxes and of stacks are never cut. This model
has four widths of letters, each about the widest of its kind in the page's font (Roboto).

Source: tf_graph_common/node.ts:440-514, `labelBuild` and `enforceLabelWidth`
"""

from functools import cache

from tbscope.page.constants import (
    BOX_LABEL,
    BOX_LABEL_WIDTH,
    BOX_LETTERS,
    NODE_LABEL,
    NODE_LABEL_WIDTH,
)

_NARROW = frozenset("fijlrtI-.,:;!|'()[] ")
_WIDE = frozenset("mwMW@")


def fits_node(label: str) -> bool:
    """Whether the page shows the whole label of a node.

    >>> fits_node("input_ids"), fits_node("attention_mask")
    (True, False)
    """
    return _width(label) * NODE_LABEL <= NODE_LABEL_WIDTH


def fits_box(label: str) -> bool:
    """Whether the page shows the whole label of a closed box.

    >>> fits_box("last_hidden_state"), fits_box("attention_mask")
    (True, False)
    """
    fewest, most = BOX_LETTERS
    large, small = BOX_LABEL
    count = len(label)
    if count > most:
        return False
    part = max(count - fewest, 0) / (most - fewest)
    return _width(label) * (large - (large - small) * part) <= BOX_LABEL_WIDTH


def _width(text: str) -> float:
    """Return the approximate width of a text, as a multiple of its font size."""
    return sum(map(_letter_width, text))


@cache
def _letter_width(letter: str) -> float:
    if letter in _NARROW:
        return 0.3
    if letter in _WIDE or not letter.isascii():
        return 0.85
    return 0.66 if letter.isupper() else 0.53
