"""Alignment: which parts of one sequence stand for which of another one, in the same order.

What is equal by name and by structure at both ends is matched first. What is left in between is
matched by the best sum of scores where it is short. Where it is long, the longest common sequence
of structures divides it; what is still long between these parts is matched by names alone.
"""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

__all__ = ["Pairs", "align"]

Pairs: TypeAlias = list[tuple[int, int]]
"""The places of what is matched, in both sequences growing."""

_Both: TypeAlias = tuple[Sequence[Hashable], Sequence[Hashable]]

# Of so many pairs each is looked at.
_MOST_PAIRS = 1_000_000
# The longest common sequence is sought among so many pairs of equal structure.
_MOST_EQUAL = 500_000


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
    anchors: Pairs = []
    if (end - start) * (stop - start) > _MOST_PAIRS:
        anchors = _growing(_equal(structures, range(start, end), range(start, stop)))
    pairs = [(at, at) for at in range(start)]
    last = start - 1, start - 1
    for anchor in [*anchors, (end, stop)]:
        left, right = range(last[0] + 1, anchor[0]), range(last[1] + 1, anchor[1])
        if len(left) * len(right) > _MOST_PAIRS:
            pairs += _growing(_equal(names, left, right))
        else:
            pairs += _best(names, structures, score, (left, right))
        pairs.append(anchor)
        last = anchor
    pairs.pop()
    return [*pairs, *zip(range(end, len(one)), range(stop, len(other)), strict=True)]


def _equal(keys: _Both, left: range, right: range) -> Pairs:
    """Return all pairs of parts with the same key; none where they are too many."""
    places: dict[Hashable, list[int]] = {}
    # Of the places for one part, the growing sequence takes one at most: they go backwards.
    for place in reversed(right):
        places.setdefault(keys[1][place], []).append(place)
    if sum(len(places.get(keys[0][at], ())) for at in left) > _MOST_EQUAL:
        return []
    return [(at, place) for at in left for place in places.get(keys[0][at], ())]


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


def _growing(pairs: Pairs) -> Pairs:
    """Return the longest part of pairs, which grow on the left, that grows on both sides.

    Source: J. Hunt, T. Szymanski, A Fast Algorithm for Computing Longest Common Subsequences, 1977.
    """
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for at, (_, place) in enumerate(pairs):
        length = bisect_left(ends, place)
        before.append(last[length - 1] if length else -1)
        ends[length : length + 1], last[length : length + 1] = [place], [at]
    found: Pairs = []
    at = last[-1] if last else -1
    while at >= 0:
        found.append(pairs[at])
        at = before[at]
    return found[::-1]
