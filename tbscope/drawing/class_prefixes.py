"""Class prefixes: the prefix that the classes of a model share, and their names without it.

`RTDetrEncoderLayer`, `RTDetrMultiheadAttention`, `RTDetrMLPPredictionHead`: the page shows some
thirteen characters of each, and the first six are equal.
"""

import re
from collections import Counter
from collections.abc import Iterable

from tbscope.ir.graph import Graph
from tbscope.page.label_widths import fits_box

__all__ = ["find_family", "short_names"]

# The words that a class name is made of: `RT`, `Detr`, `MLP`, `Wav2`, `V2`.
_WORD = re.compile(r"[A-Z]+[0-9]*(?=[A-Z][a-z]|_|\Z)|[A-Z]?[a-z]+[0-9]*|[0-9]+|_+|.")
# A prefix must be shared by at least this number of classes, and by this part of all.
_FEWEST = 3
_PART = 0.3
_TORCHS = "torch."


def short_names(graph: Graph) -> dict[str, str]:
    """Return the drawn names of classes that differ from their own names, by class.

    The prefix that most classes outside of torch share is left out, if the page would cut one
    of these names. The model itself is named by the prefix alone.
    """
    calls = graph.calls
    labels = {call.scope.part.label for call in calls if not call.class_name.startswith(_TORCHS)}
    family = find_family(labels)
    if not family or all(fits_box(label) for label in labels if label.startswith(family)):
        return {}
    everyone = {call.scope.part.label for call in calls}
    shortened = {}
    for label in labels:
        rest = label.removeprefix(family).lstrip("_")
        if rest != label and rest[:1].isupper() and rest not in everyone:
            shortened[label] = rest
    return shortened | {
        call.scope.part.label: family.rstrip("_")
        for call in calls
        if call.scope.parent is None and call.scope.part.label in shortened
    }


def find_family(labels: Iterable[str]) -> str:
    """Return the prefix of whole words that most names share, or an empty text.

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
    shared = [start for start, count in counts.items() if count >= most]
    return max(shared, key=lambda start: (counts[start], len(start)), default="")
