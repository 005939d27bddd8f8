"""Alignment: which parts of one sequence stand for which of another one, in the same order.

What is equal by name and by structure at both ends is matched first. What is left in between is
matched by the best sum of scores where it is short. Where it is long, two ways are gone, one that
trusts names and one that trusts structure, and the one is taken that leaves less to tell.
"""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence

__all__ = ["Pairs", "align"]

Pairs = list[tuple[int, int]]
"""The places of what is matched, in both sequences growing."""

Score = Callable[[int, int], float]
"""How well two parts match, by their places: from 0 for not at all to 1 for equal ones."""

# Of so many pairs each is looked at.
_MOST_PAIRS = 60_000
# The longest common sequence is sought among so many pairs of equal structure.
_MOST_EQUAL = 500_000
# What one run of parts under other names costs beside one that is added.
_RENAMED = 0.5


def align(
    names: tuple[Sequence[Hashable], Sequence[Hashable]],
    structures: tuple[Sequence[Hashable], Sequence[Hashable]],
    score: Score,
) -> Pairs:
    """Return which parts of two sequences match.

    Args:
        names: The names of the parts of both sequences, in each no name twice.
        structures: What is equal for parts of the same structure.
        score: How well two parts match that are not equal in both.
    """
    return _Alignment(names, structures, score).align()


class _Alignment:
    def __init__(
        self,
        names: tuple[Sequence[Hashable], Sequence[Hashable]],
        structures: tuple[Sequence[Hashable], Sequence[Hashable]],
        score: Score,
    ) -> None:
        self._names = names
        self._structures = structures
        self._score = score
        self._both = (
            list(zip(names[0], structures[0], strict=True)),
            list(zip(names[1], structures[1], strict=True)),
        )

    def align(self) -> Pairs:
        left, right = self._both
        start = 0
        while start < min(len(left), len(right)) and left[start] == right[start]:
            start += 1
        ends = len(left), len(right)
        while min(ends) > start and left[ends[0] - 1] == right[ends[1] - 1]:
            ends = ends[0] - 1, ends[1] - 1
        pairs = [(at, at) for at in range(start)]
        pairs += self._between((start, ends[0]), (start, ends[1]))
        pairs += zip(range(ends[0], len(left)), range(ends[1], len(right)), strict=True)
        return pairs

    def _between(self, left: tuple[int, int], right: tuple[int, int]) -> Pairs:
        if _few(left, right):
            return self._best(left, right)
        ways = [self._filled(self._by_names(left, right), left, right)]
        edits = self._by_structure(left, right)
        if edits is not None:
            ways.append(self._filled(edits, left, right))
        return min(ways, key=self._cost)

    def _filled(self, anchors: Pairs, left: tuple[int, int], right: tuple[int, int]) -> Pairs:
        """Return pairs with the best ones between them, where not too many are possible."""
        pairs: Pairs = []
        last = left[0] - 1, right[0] - 1
        for anchor in [*anchors, (left[1], right[1])]:
            gap = (last[0] + 1, anchor[0]), (last[1] + 1, anchor[1])
            if _few(*gap):
                pairs += self._best(*gap)
            else:
                pairs += self._by_names(*gap, alone=True)
            pairs.append(anchor)
            last = anchor
        return pairs[:-1]

    def _cost(self, pairs: Pairs) -> float:
        """Return how much more there is to tell of an alignment than of one without pairs."""
        names, structures = self._names, self._structures
        cost = -2.0 * len(pairs)
        renamed = False
        for one, other in pairs:
            cost += structures[0][one] != structures[1][other]
            before, renamed = renamed, names[0][one] != names[1][other]
            cost += _RENAMED * (renamed and not before)
        return cost

    def _by_names(
        self, left: tuple[int, int], right: tuple[int, int], *, alone: bool = False
    ) -> Pairs:
        """Return the longest sequence of parts that are equal by name, and if asked by no more."""
        one, other = self._names if alone else self._both
        places = {other[at]: at for at in range(*right)}
        return _growing([(at, places[one[at]]) for at in range(*left) if one[at] in places])

    def _by_structure(self, left: tuple[int, int], right: tuple[int, int]) -> Pairs | None:
        """Return the longest common sequence of structures, or None if too many parts are equal."""
        one, other = self._structures
        places: dict[Hashable, list[int]] = {}
        for place in reversed(range(*right)):
            places.setdefault(other[place], []).append(place)
        if sum(len(places.get(one[at], ())) for at in range(*left)) > _MOST_EQUAL:
            return None
        # Of the places for one part, the growing sequence takes one at most: they go backwards.
        return _growing([(at, place) for at in range(*left) for place in places.get(one[at], ())])

    def _best(self, left: tuple[int, int], right: tuple[int, int]) -> Pairs:
        """Return the pairs with the largest sum of scores."""
        rows, columns = left[1] - left[0], right[1] - right[0]
        if not rows or not columns:
            return []
        names, structures, score = self._names, self._structures, self._score
        # All names together decide only between ways that are equal by structure.
        bonus = 0.2 / max(rows, columns)
        best = [[0.0] * (columns + 1)]
        for at in range(*left):
            above, line = best[-1], [0.0]
            for place in range(*right):
                same_name = names[0][at] == names[1][place]
                worth = 1.0 if structures[0][at] == structures[1][place] else score(at, place)
                if worth and same_name:
                    worth += bonus
                column = place - right[0]
                line.append(max(above[column + 1], line[column], above[column] + worth))
            best.append(line)
        return [(left[0] + at, right[0] + place) for at, place in _traced(best)]


def _few(left: tuple[int, int], right: tuple[int, int]) -> bool:
    return (left[1] - left[0]) * (right[1] - right[0]) <= _MOST_PAIRS


def _traced(best: list[list[float]]) -> Pairs:
    """Return the way back through a table of sums."""
    pairs: Pairs = []
    at, place = len(best) - 1, len(best[0]) - 1
    while at and place:
        if best[at][place] == best[at - 1][place]:
            at -= 1
        elif best[at][place] == best[at][place - 1]:
            place -= 1
        else:
            at, place = at - 1, place - 1
            pairs.append((at, place))
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
        if length == len(ends):
            ends.append(place)
            last.append(at)
        else:
            ends[length], last[length] = place, at
    found: Pairs = []
    at = last[-1] if last else -1
    while at >= 0:
        found.append(pairs[at])
        at = before[at]
    return found[::-1]
