"""Alignment: which parts of one sequence stand for which of another one, in the same order.

What is equal by name and by structure at both ends is matched first. What is left in between is
matched by the best sum of scores where it is short. Where it is long, the longest common runs
divide it: of parts that are equal in both, then in structure, then in name.
"""

from collections.abc import Callable, Hashable, Sequence
from difflib import SequenceMatcher
from typing import TypeAlias

__all__ = ["Pairs", "align"]

Pairs: TypeAlias = list[tuple[int, int]]
"""The places of what is matched, in both sequences growing."""

_Both: TypeAlias = tuple[Sequence[Hashable], Sequence[Hashable]]

# Of so many pairs each is looked at.
_MOST_PAIRS = 1_000_000


Score: TypeAlias = Callable[[int, int], float]
"""How well two parts match, by their places: from 0 for not at all to 1 for equal ones."""


def align(names: _Both, structures: _Both, score: Score) -> Pairs:
    """Return which parts of two sequences match.

    Args:
        names: The names of the parts of both sequences, in each no name twice.
        structures: What is equal for parts of the same structure.
        score: How well two parts match that are not equal in both.
    """
    one, other = (list(zip(*keys, strict=True)) for keys in zip(names, structures, strict=True))
    start, end, stop = 0, len(one), len(other)
    while start < min(end, stop) and one[start] == other[start]:
        start += 1
    while min(end, stop) > start and one[end - 1] == other[stop - 1]:
        end, stop = end - 1, stop - 1

    def between(left: range, right: range, ways: Sequence[_Both]) -> Pairs:
        if len(left) * len(right) <= _MOST_PAIRS:
            return _best(names, structures, score, (left, right))
        if not ways:
            return []
        pairs: Pairs = []
        last = left.start - 1, right.start - 1
        for anchor in [*_equal_runs(ways[0], left, right), (left.stop, right.stop)]:
            gap = range(last[0] + 1, anchor[0]), range(last[1] + 1, anchor[1])
            pairs += [*between(*gap, ways[1:]), anchor]
            last = anchor
        return pairs[:-1]

    return [
        *((at, at) for at in range(start)),
        *between(range(start, end), range(start, stop), [(one, other), structures, names]),
        *zip(range(end, len(one)), range(stop, len(other)), strict=True),
    ]


def _equal_runs(keys: _Both, left: range, right: range) -> Pairs:
    """Return the parts with the same keys in the longest common runs."""
    one, other = keys[0][left.start : left.stop], keys[1][right.start : right.stop]
    return [
        (left[run.a + at], right[run.b + at])
        for run in SequenceMatcher(None, one, other).get_matching_blocks()
        for at in range(run.size)
    ]


def _best(names: _Both, structures: _Both, score: Score, ranges: tuple[range, range]) -> Pairs:
    """Return the pairs with the largest sum of scores."""
    left, right = ranges
    if not left or not right:
        return []
    # All names together decide only between ways that are equal by structure.
    bonus = 0.2 / max(len(left), len(right))
    best = [[0.0] * (len(right) + 1)]
    for at in left:
        above, line = best[-1], [0.0]
        for column, place in enumerate(right):
            worth = 1.0 if structures[0][at] == structures[1][place] else score(at, place)
            if worth and names[0][at] == names[1][place]:
                worth += bonus
            line.append(max(above[column + 1], line[column], above[column] + worth))
        best.append(line)
    pairs: Pairs = []
    row, column = len(left), len(right)
    while row and column:
        if best[row][column] == best[row - 1][column]:
            row -= 1
        elif best[row][column] == best[row][column - 1]:
            column -= 1
        else:
            row, column = row - 1, column - 1
            pairs.append((left[row], right[column]))
    return pairs[::-1]
