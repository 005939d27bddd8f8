"""Class names as they are drawn: without the prefix that the classes of a model share, and whole.

`RTDetrEncoderLayer`, `RTDetrMultiheadAttention`, `RTDetrMLPPredictionHead`: the page shows some
thirteen characters of each, and the first six are equal.
"""

import re
from collections import Counter
from collections.abc import Iterable

from tbscope.ir.graph import Graph
from tbscope.page.label_widths import fits_box

# The words that a class name is made of: `RT`, `Detr`, `MLP`, `Wav2`, `Norm2d`, `Block2D`.
_WORD = re.compile(r"(?:[A-Z]+(?![a-z])|[A-Z]?[a-z]+)(?:[0-9]+[dD]?(?![a-z]))?|.")
# A prefix must be shared by at least this number of classes, by this part of all, and by almost as
# many as share the most common prefix.
_FEWEST = 3
_PART = 0.3
_ALMOST = 0.75
_TORCHS = "torch."
# Names made by programs may be a megabyte long; prefixes and parts are looked for in this many
# characters.
_LONGEST = 100


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
    """Return the longest prefix before a capital that most names share, or an empty text.

    >>> find_family(["GPT2Model", "GPT2Block", "GPT2MLP", "NewGELUActivation"])
    'GPT2'
    """
    distinct = set(labels)
    counts = Counter(
        label[:at]
        for label in distinct
        for at, letter in enumerate(label[:_LONGEST])
        if at and letter.isupper()
    )
    fewest = max(_FEWEST, _PART * len(distinct), _ALMOST * max(counts.values(), default=0))
    shared = [start for start, count in counts.items() if count >= fewest]
    return max(shared, key=len, default="")


def whole_part(name: str, names: Iterable[str]) -> str:
    """Return the last words of a class name that the page shows whole, or all but the last one.

    Args:
        name: The name; it is returned as it is if it fits, or if no part of half its length does.
        names: The names of all classes; no other of them may contain the part.

    >>> whole_part("LayerCrossAttention", ["SelfAttention"]), whole_part("Norm", ["Norm"])
    ('CrossAttention', 'Norm')
    >>> whole_part("Qwen2_5OmniMLP", [])  # Not `5OmniMLP`.
    'OmniMLP'
    """
    words = [] if fits_box(name) or len(name) > _LONGEST else _WORD.findall(name)
    parts = ["".join(words[at:]).lstrip("_0123456789") for at in range(1, len(words))]
    parts.append("".join(words[:-1]).rstrip("_"))
    others = {*names} - {name}
    whole = (
        part
        for part in parts
        if fits_box(part)
        and 2 * len(part) >= len(name)
        and not any(part in other for other in others)
    )
    return next(whole, name)
