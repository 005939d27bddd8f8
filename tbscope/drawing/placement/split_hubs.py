"""Short runs: a few operations in a row whose box takes lines from what has too many of them.

The page puts aside what has far more lines than the others. A box around some of its readers
has one line from it: so a few operations that belong together, as what one statement computes,
are enough to have it stay. Such a run has few neighbours.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import chain, takewhile

from tbscope.page.level_graph import Siblings

__all__ = ["in_short_runs"]

# How many of them there are on one level at most, and how many are tried for each.
_MOST_RUNS = 4
_MOST_TRIED = 60


def in_short_runs(
    level: Siblings, rows: list[list[int]], *, fewest: int, most: int
) -> Iterator[list[list[int]]]:
    """Yield ways to group a few operations of a level, the places in each of the boxes.

    Args:
        level: The level.
        rows: The places of the operations that may share a box, in order.
        fewest: How many operations a box has at least.
        most: How many it has at most.
    """
    chosen: list[list[int]] = []
    crowded = len(level.put_aside())
    while len(chosen) < _MOST_RUNS:
        best: list[list[int]] = []
        taken = set(chain.from_iterable(chosen))
        for run in _runs(level, rows, taken, range(fewest, most + 1)):
            way = [*chosen, run]
            yield way
            left = len(level.grouped(way).put_aside())
            if left < crowded:
                best, crowded = way, left
        if not best:
            return
        chosen = best


def _runs(level: Siblings, rows: list[list[int]], taken: set[int], sizes: range) -> list[list[int]]:
    """Return runs of operations, those first that have the fewest neighbours."""
    hubs = level.put_aside()
    marked = {end for ends in level.links if not hubs.isdisjoint(ends) for end in ends}
    found: list[tuple[int, int, list[int]]] = []
    for row in rows:
        for first, place in enumerate(row):
            if place in marked:
                longest = list(
                    takewhile(lambda at: at not in taken, row[first : first + sizes[-1]])
                )
                counts = _count_leaving(level, longest)
                for size in sizes[: max(len(longest) + 1 - sizes[0], 0)]:
                    found.append((counts[size - 1], size, longest[:size]))
    return [run for _, _, run in sorted(found)[:_MOST_TRIED]]


def _count_leaving(level: Siblings, row: list[int]) -> list[int]:
    """For each beginning of a row, how many children outside have a line to it."""
    sides: dict[int, set[int]] = {place: set() for place in row}
    for start, end in level.links:
        for place, other in ((start, end), (end, start)):
            if place in sides:
                sides[place].add(other)
    inside: set[int] = set()
    around: Counter[int] = Counter()
    counts = []
    for place in row:
        inside.add(place)
        around.pop(place, None)
        around.update(sides[place] - inside)
        counts.append(len(around))
    return counts
