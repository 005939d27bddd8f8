"""Alignment of two sequences: pairs of matching parts, in the order of both sequences.

Parts with equal names and structures at both ends are paired first. A short rest is paired by
the largest sum of scores (dynamic programming). A long rest is divided at its longest common runs:
first runs of parts that are equal in name and structure, then in structure, then in name.
"""

from collections.abc import Callable, Hashable, Sequence
from difflib import SequenceMatcher
from typing import TypeAlias

Pairs: TypeAlias = list[tuple[int, int]]
"""Indices of matched parts (first sequence, second sequence), both increasing."""

_Both: TypeAlias = tuple[Sequence[Hashable], Sequence[Hashable]]

# The score table of two ranges is built up to this number of pairs; it needs quadratic time.
_MOST_PAIRS = 1_000_000


Score: TypeAlias = Callable[[int, int], float]
"""Similarity of two parts, by their indices: 0 for no match, 1 for equal parts."""


def align(names: _Both, structures: _Both, score: Score) -> Pairs:
    """Return the pairs of matching parts of two sequences.

    Args:
        names: Names of the parts of both sequences; each name occurs once in its sequence.
        structures: Keys of the parts of both sequences, equal for parts of equal structure.
        score: Similarity of two parts whose names or structures differ.
    """
    left_keys, right_keys = (
        list(zip(*keys, strict=True)) for keys in zip(names, structures, strict=True)
    )
    start, end, stop = 0, len(left_keys), len(right_keys)
    while start < min(end, stop) and left_keys[start] == right_keys[start]:
        start += 1
    while min(end, stop) > start and left_keys[end - 1] == right_keys[stop - 1]:
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
        *between(
            range(start, end), range(start, stop), [(left_keys, right_keys), structures, names]
        ),
        *zip(range(end, len(left_keys)), range(stop, len(right_keys)), strict=True),
    ]


def _equal_runs(keys: _Both, left: range, right: range) -> Pairs:
    """Return the index pairs of the longest common runs of equal keys."""
    left_keys, right_keys = keys[0][left.start : left.stop], keys[1][right.start : right.stop]
    return [
        (left[run.a + at], right[run.b + at])
        for run in SequenceMatcher(None, left_keys, right_keys).get_matching_blocks()
        for at in range(run.size)
    ]


def _best(names: _Both, structures: _Both, score: Score, ranges: tuple[range, range]) -> Pairs:
    """Return the pairs with the largest sum of scores."""
    left, right = ranges
    if not left or not right:
        return []
    # All name bonuses add up to at most 0.2, so they decide only between alignments of equal
    # structure.
    bonus = 0.2 / max(len(left), len(right))
    best = [[0.0] * (len(right) + 1)]
    for row_index in left:
        previous, line = best[-1], [0.0]
        for column, column_index in enumerate(right):
            gain = (
                1.0
                if structures[0][row_index] == structures[1][column_index]
                else score(row_index, column_index)
            )
            if gain and names[0][row_index] == names[1][column_index]:
                gain += bonus
            line.append(max(previous[column + 1], line[column], previous[column] + gain))
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
