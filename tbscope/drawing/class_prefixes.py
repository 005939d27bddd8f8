"""Families: what the classes of a model begin with, and their names without it.

`RTDetrEncoderLayer`, `RTDetrMultiheadAttention`, `RTDetrMLPPredictionHead`: the page shows some
thirteen characters of each, of which six tell nothing. What is still too long for the legend is
shortened there.
"""

import re
from collections import Counter
from collections.abc import Iterable

from tbscope.ir.graph import Graph
from tbscope.page.label_widths import blanks_to_fit, fits_box

__all__ = ["find_family", "short_names", "shown_whole"]

# As words are joined in the name of a class: `RT`, `Detr`, `MLP`, `Wav2`, `V2`.
_WORD = re.compile(r"[A-Z]+[0-9]*(?=[A-Z][a-z]|_|\Z)|[A-Z]?[a-z]+[0-9]*|[0-9]+|_+|.")
# So many classes at least have to begin alike, and half of all.
_FEWEST = 3
_PART = 0.5
_TORCHS = "torch."
# Before the rest of a name.
_LEFT_OUT = ".."
_LETTER = re.compile("[A-Za-z]")


def short_names(graph: Graph) -> dict[str, str]:
    """Return the names of the classes of a graph's modules as they are drawn, where they differ.

    What most classes that are none of torch's begin with is left out, where the page would cut
    one of them; of the model itself, which has the family's name, the rest is.
    """
    calls = graph.calls
    labels = {call.scope.part.label for call in calls if not call.class_name.startswith(_TORCHS)}
    family = find_family(labels)
    if not family or all(fits_box(label) for label in labels if label.startswith(family)):
        return {}
    everyone = {call.scope.part.label for call in calls}
    found = {}
    for label in labels:
        rest = label.removeprefix(family).lstrip("_")
        if rest != label and rest[:1].isupper() and rest not in everyone:
            found[label] = rest
    return found | {
        call.scope.part.label: family.rstrip("_")
        for call in calls
        if call.scope.parent is None and call.scope.part.label in found
    }


def find_family(labels: Iterable[str]) -> str:
    """Return the longest beginning, in whole words, that most names share; empty for none.

    >>> find_family(["GPT2Model", "GPT2Block", "GPT2MLP", "NewGELUActivation"])
    'GPT2'
    """
    distinct = set(labels)
    counts: Counter[str] = Counter()
    for label in distinct:
        start = ""
        words = _WORD.findall(label)
        for word in words[:-1]:
            start += word
            counts[start] += 1
    most = max(_FEWEST, _PART * len(distinct))
    return max((start for start, count in counts.items() if count >= most), key=len, default="")


def shown_whole(title: str) -> str:
    """Return an entry of the legend as the page shows it whole, if that can be had.

    It gets blanks behind it, with which the page writes smaller. Where these do not help, words
    are left out before the last ones, which tell the kind of module, and a mark stands for them.

    >>> shown_whole("DecoderLayer"), shown_whole("DisentangledSelfAttention")
    ('DecoderLayer   ', 'Dis..SelfAttention')
    >>> shown_whole("LayerCrossAttention")
    '..CrossAttention'
    """
    whole = _with_blanks(title)
    if whole:
        return whole
    words = _WORD.findall(title)
    rests = ("".join(words[at:]).lstrip("_.") for at in range(1, len(words)))
    for rest in rests:
        shown = _with_blanks(_LEFT_OUT + rest)
        if shown and _LETTER.search(rest):
            room = range(len(title) - len(rest) - len(_LEFT_OUT), _FEWEST - 1, -1)
            starts = (title[:count].rstrip("_.") for count in room)
            longer = (_with_blanks(start + _LEFT_OUT + rest) for start in starts)
            return next(filter(None, longer), shown)
    return title


def _with_blanks(label: str) -> str:
    """Return a label with the blanks for which the page shows it whole; empty if none help."""
    blanks = blanks_to_fit(label)
    return "" if blanks is None else label + " " * blanks
