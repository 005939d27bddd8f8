"""Series: the siblings that the page folds into one stack.

Source: tensorboard/plugins/graph/tf_graph_common/hierarchy.ts:855-1109, `groupSeries`,
`detectSeriesUsingNumericSuffixes`
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import TypeAlias

from tbscope.page.constants import SERIES_SIZE
from tbscope.page.glyphs import Box, Item, Series

__all__ = ["find_series", "fold"]

_NUMBERED = re.compile(r"([^0-9]*)([0-9]+)")
_Numbered: TypeAlias = tuple[float, int]


def find_series(box: Box) -> list[Series]:
    """The stacks that the page makes of the nodes in a box."""
    if len(box.children) < SERIES_SIZE:
        return []
    items = [child for child in box.children.values() if isinstance(child, Item)]
    stacks = fold([item.label for item in items], [item.op for item in items])
    above = f"{box.name}/" if box.name else ""
    return [
        Series(above + name, tuple([items[place] for place in places]))
        for name, places in stacks.items()
    ]


def fold(labels: Sequence[str], ops: Sequence[str]) -> dict[str, list[int]]:
    """Find siblings to fold: five or more of one op type with consecutive numbers.

    Args:
        labels: The last part of the name of each.
        ops: The op type of each; what has none is not folded.
    Returns:
        By the label of each stack (`relu_[1-7]`), the places of its members by their numbers.
        Where two stacks would have one label, the page knows only the later one.
    """
    by_op: dict[str, list[int]] = defaultdict(list)
    for place, op in enumerate(ops):
        if op:
            by_op[op].append(place)
    stacks: dict[str, list[int]] = {}
    for places in by_op.values():
        if len(places) < SERIES_SIZE:
            continue
        stems: dict[str, list[_Numbered]] = defaultdict(list)
        for place in places:
            stem, number = _read_number(labels[place])
            stems[stem].append((number, place))
        for stem, numbered in stems.items():
            if len(numbered) >= SERIES_SIZE:
                for run in _consecutive(numbered):
                    label = f"{stem}[{_digits(run[0][0])}-{_digits(run[-1][0])}]"
                    stacks[label] = [place for _, place in run]
    return stacks


def _read_number(label: str) -> tuple[str, float]:
    """Part a label in its stem and the number at its end.

    A label without a number, or with another digit before it, counts as the first of a
    series: TensorFlow calls `relu` what comes before `relu_1`.
    """
    found = _NUMBERED.fullmatch(label)
    # JavaScript knows no other numbers than these.
    return (found[1], float(found[2])) if found else (label, 0.0)


def _consecutive(numbered: list[_Numbered]) -> Iterator[list[_Numbered]]:
    """The runs of five or more numbers that follow each other."""
    # Of equal numbers the page keeps the order.
    numbered.sort(key=itemgetter(0))
    start = 0
    for at in range(1, len(numbered) + 1):
        if at == len(numbered) or numbered[at][0] != numbered[at - 1][0] + 1:
            if at - start >= SERIES_SIZE:
                yield numbered[start:at]
            start = at


def _digits(number: float) -> str:
    """A number as JavaScript prints it."""
    return str(int(number)) if number < 1e21 else repr(number)
