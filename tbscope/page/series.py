"""Siblings: those that the page folds into one stack, and those that it puts aside.

Glyphs with far more lines than others on their level (a high degree) are put aside.

Source: tensorboard/plugins/graph/tf_graph_common/hierarchy.ts:855-1109, `groupSeries`,
`detectSeriesUsingNumericSuffixes`; render.ts:2038-2134, `extractHighInOrOutDegree`
"""

import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TypeAlias, TypeVar

from tbscope.page.constants import CROWD_SIZE, DEGREE_LIMIT, SERIES_SIZE
from tbscope.page.glyphs import Box, Item, Series

_NUMBERED = re.compile(r"([^0-9]*)([0-9]+)")
_Numbered: TypeAlias = tuple[float, int]


def find_series(box: Box) -> list[Series]:
    """Return the stacks into which the page folds nodes of a box."""
    if len(box.children) < SERIES_SIZE:
        return []
    items = [child for child in box.children.values() if isinstance(child, Item)]
    stacks = fold([item.label for item in items], [item.op for item in items])
    above = f"{box.name}/" if box.name else ""
    return [
        Series(above + name, tuple([items[index] for index in members]))
        for name, members in stacks.items()
    ]


def fold(labels: Sequence[str], ops: Sequence[str]) -> dict[str, list[int]]:
    """Return the siblings to fold: five or more of one op type with consecutive numbers.

    Args:
        labels: The last part of the name of each sibling.
        ops: The op type of each; a sibling with an empty op type (a box) is not folded.
    Returns:
        The indices of the members, in the order of their numbers, by the label of each stack
        (`relu_[1-7]`). If two stacks would have one label, the page keeps only the later.
    """
    by_op: dict[str, list[int]] = defaultdict(list)
    for index, op in enumerate(ops):
        if op:
            by_op[op].append(index)
    stacks: dict[str, list[int]] = {}
    for members in by_op.values():
        if len(members) < SERIES_SIZE:
            continue
        stems: dict[str, list[_Numbered]] = defaultdict(list)
        for index in members:
            stem, number = _read_number(labels[index])
            stems[stem].append((number, index))
        for stem, numbered in stems.items():
            if len(numbered) >= SERIES_SIZE:
                for run in _consecutive(numbered):
                    label = f"{stem}[{_digits(run[0][0])}-{_digits(run[-1][0])}]"
                    stacks[label] = [index for _, index in run]
    return stacks


def _read_number(label: str) -> tuple[str, float]:
    """Split a label into its stem and the number at its end.

    A label without a number, or with a digit in its stem, has number 0: TensorFlow names
    the first of a series `relu`, and the next `relu_1`.
    """
    match = _NUMBERED.fullmatch(label)
    # Numbers are floats, as in JavaScript.
    return (match[1], float(match[2])) if match else (label, 0.0)


def _consecutive(numbered: list[_Numbered]) -> Iterator[list[_Numbered]]:
    """Yield the runs of five or more consecutive numbers."""
    # The sort is stable, like the page's, so that equal numbers keep their order.
    numbered.sort(key=itemgetter(0))
    start = 0
    for index in range(1, len(numbered) + 1):
        if index == len(numbered) or numbered[index][0] != numbered[index - 1][0] + 1:
            if index - start >= SERIES_SIZE:
                yield numbered[start:index]
            start = index


def _digits(number: float) -> str:
    """Return a number as JavaScript prints it."""
    return str(int(number)) if number < 1e21 else repr(number)


_Glyph = TypeVar("_Glyph", bound=Hashable)
_Lines: TypeAlias = Mapping[tuple[_Glyph, _Glyph], bool]


def find_crowded(glyphs: Collection[_Glyph], lines: _Lines[_Glyph]) -> set[_Glyph]:
    """Return the glyphs with far more lines than the others; none if the level has few glyphs.

    Args:
        glyphs: The glyphs of a level that are still in the flow, as objects or numbers.
        lines: Whether a line carries data (or only control), by its ends (from, to).
    """
    if len(glyphs) < CROWD_SIZE:
        return set()
    return {
        *_outliers(_degrees(glyphs, lines, side=1), spread=1),
        *_outliers(_degrees(glyphs, lines, side=0), spread=4),
    }


def _degrees(glyphs: Collection[_Glyph], lines: _Lines[_Glyph], *, side: int) -> dict[_Glyph, int]:
    """Return the number of lines of each glyph on one side; control lines count if no data does.

    Args:
        glyphs: The glyphs.
        lines: As for `find_crowded`.
        side: 0 for lines to readers, 1 for lines from sources.
    """
    data = dict.fromkeys(glyphs, 0)
    control = data.copy()
    for ends, carries in lines.items():
        if carries:
            data[ends[side]] += 1
        else:
            control[ends[side]] += 1
    return {glyph: count or control[glyph] for glyph, count in data.items()}


def _outliers(degrees: Mapping[_Glyph, int], *, spread: int) -> list[_Glyph]:
    """Return the glyphs whose degree exceeds the upper quartile by more than some spreads.

    A spread is the distance between the lower and the upper quartile.
    """
    ordered = sorted(degrees.values())
    # JavaScript rounds halves up.
    lower, upper = (ordered[(len(ordered) * quarters + 2) // 4] for quarters in (1, 3))
    limit = max(upper + (upper - lower) * spread, DEGREE_LIMIT)
    return [glyph for glyph, degree in degrees.items() if degree > limit]
