"""Families: what the classes of a model begin with, and their names without it.

`RTDetrEncoderLayer`, `RTDetrMultiheadAttention`, `RTDetrMLPPredictionHead`: the page shows some
thirteen characters of each, of which six tell nothing.
"""

import re
from collections import Counter
from collections.abc import Iterable

from tbscope.ir.graph import Graph
from tbscope.page.constants import BOX_ROOM

__all__ = ["find_family", "short_names"]

# As words are joined in the name of a class: `RT`, `Detr`, `MLP`, `Wav2`, `V2`.
_WORD = re.compile(r"[A-Z]+[0-9]*(?=[A-Z][a-z]|_|\Z)|[A-Z]?[a-z]+[0-9]*|[0-9]+|_+|.")
# So many classes at least have to begin alike, and half of all.
_FEWEST = 3
_PART = 0.5
_TORCHS = "torch."


def short_names(graph: Graph) -> dict[str, str]:
    """Return the names of the classes of a graph's modules as they are drawn, where they differ.

    What most classes that are none of torch's begin with is left out, where the page would cut
    one of them; of the model itself, which has the family's name, the rest is.
    """
    calls = graph.calls
    labels = {call.scope.part.label for call in calls if not call.class_name.startswith(_TORCHS)}
    family = find_family(labels)
    if not family or not any(len(label) > BOX_ROOM for label in labels if label.startswith(family)):
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
