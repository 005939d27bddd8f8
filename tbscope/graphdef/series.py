"""Series: siblings that TensorBoard would fold into one stack of ellipses.

Five or more siblings of one op type whose names end in consecutive numbers, such as
`fc1` to `fc5`, are drawn as one node `fc[1-5]`, and what lies between them as loops
around it. A user who numbered five layers wants to see five layers.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

__all__ = ["FOLDED_FROM", "UNFOLDED_UP_TO", "members_to_set_apart"]

FOLDED_FROM = 5
"""How many members TensorBoard folds."""

UNFOLDED_UP_TO = 64
"""How many members are drawn apart; a longer series is better to look at folded, and a
chain of thousands stops the page."""

_NUMBERED = re.compile(r"(\D*)([0-9]+)")


def members_to_set_apart(nodes: Iterable[tuple[str, str]]) -> set[str]:
    """Give the nodes that need another op type, so that their series falls apart.

    Args:
        nodes: The name and the op type of each node.
    Returns:
        The names of every fifth member of each series that is neither short nor long.

    Source: tensorboard/plugins/graph/tf_graph_common/hierarchy.ts
    (`detectSeriesUsingNumericSuffixes`).
    """
    candidates: dict[tuple[str, str, str], dict[int, str]] = {}
    for name, op in nodes:
        box, _, leaf = name.rpartition("/")
        found = _NUMBERED.fullmatch(leaf)
        prefix, number = (found[1], int(found[2])) if found else (leaf, 0)
        candidates.setdefault((box, prefix, op), {})[number] = name
    apart: set[str] = set()
    for members in candidates.values():
        if len(members) >= FOLDED_FROM:
            for run in _runs(sorted(members)):
                if FOLDED_FROM <= len(run) <= UNFOLDED_UP_TO:
                    apart.update(members[number] for number in run[FOLDED_FROM - 1 :: FOLDED_FROM])
    return apart


def _runs(numbers: list[int]) -> Iterator[list[int]]:
    """Give the stretches of consecutive numbers."""
    run = numbers[:1]
    for before, number in pairwise(numbers):
        if number == before + 1:
            run.append(number)
        else:
            yield run
            run = [number]
    yield run
