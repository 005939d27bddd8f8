"""Split of hubs: boxes around a few operations in a row that relieve a glyph of too many lines.

The page puts a glyph aside that has far more lines than the others. A box around some of its
readers has a single line from it, so boxes for a few operations that belong together (those of
one statement, for example) are enough to keep the glyph in the flow. The runs of operations that
share a box are chosen for few neighbours.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import chain, takewhile

from tbscope.page.level_graph import LevelGraph

# The most boxes of this kind on one level, and the number of runs that are tried for each.
_MOST_RUNS = 4
_MOST_TRIED = 60


def in_short_runs(
    level: LevelGraph, rows: list[list[int]], *, fewest: int, most: int
) -> Iterator[list[list[int]]]:
    """Yield candidate groupings of a few operations of a level.

    A run that reduces the number of glyphs put aside most is kept, and the search continues
    with a further box.

    Args:
        level: The level.
        rows: The indices of the operations that may share a box, in order.
        fewest: The fewest operations in a box.
        most: The most operations in a box.
    Yields:
        The indices of the operations in each box.
    """
    chosen: list[list[int]] = []
    crowded = len(level.put_aside())
    while len(chosen) < _MOST_RUNS:
        best: list[list[int]] = []
        taken = set(chain.from_iterable(chosen))
        for run in _runs(level, rows, taken, range(fewest, most + 1)):
            groups = [*chosen, run]
            yield groups
            still_aside = len(level.grouped(groups).put_aside())
            if still_aside < crowded:
                best, crowded = groups, still_aside
        if not best:
            return
        chosen = best


def _runs(
    level: LevelGraph, rows: list[list[int]], taken: set[int], sizes: range
) -> list[list[int]]:
    """Return runs of operations that begin at a neighbour of a hub, fewest neighbours first.

    Args:
        level: The level.
        rows: The indices of the operations that may share a box, in order.
        taken: The operations that have a box already.
        sizes: The allowed lengths of a run.
    """
    hubs = level.put_aside()
    marked = {end for ends in level.links if not hubs.isdisjoint(ends) for end in ends}
    ranked: list[tuple[int, int, list[int]]] = []
    for row in rows:
        for first, index in enumerate(row):
            if index in marked:
                longest = list(
                    takewhile(lambda at: at not in taken, row[first : first + sizes[-1]])
                )
                counts = _count_leaving(level, longest)
                for size in sizes[: max(len(longest) + 1 - sizes[0], 0)]:
                    ranked.append((counts[size - 1], size, longest[:size]))
    return [run for _, _, run in sorted(ranked)[:_MOST_TRIED]]


def _count_leaving(level: LevelGraph, row: list[int]) -> list[int]:
    """Return the number of children outside that have a line to each prefix of a row."""
    linked: dict[int, set[int]] = {index: set() for index in row}
    for start, end in level.links:
        for index, neighbour in ((start, end), (end, start)):
            if index in linked:
                linked[index].add(neighbour)
    inside: set[int] = set()
    neighbours: Counter[int] = Counter()
    counts = []
    for index in row:
        inside.add(index)
        neighbours.pop(index, None)
        neighbours.update(linked[index] - inside)
        counts.append(len(neighbours))
    return counts
