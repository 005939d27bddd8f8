"""What is asked of ranks: which of them a graph shows, and how long they are waited for."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from tbscope.errors import ArgumentError
from tbscope.messages import shown

__all__ = ["MOST_UNFOLDED", "Ranks", "check_ranks", "check_ranks_timeout", "check_unfolded"]

Ranks: TypeAlias = Literal["mine", "all", "unfolded"] | Sequence[int]
"""Which ranks a graph shows: this one, all, all in boxes of their own, or some by their numbers."""

MOST_UNFOLDED = 64
"""How many ranks may have a box each: a level of more is slow in the page."""

_WORDS = ("mine", "all", "unfolded")
# A week: a rank that takes longer is no longer awaited by anybody.
_LONGEST_S = 7 * 86_400


def check_ranks(ranks: Any) -> None:
    """Raise ArgumentError unless these can be the ranks of a graph."""
    if type(ranks) is str and ranks in _WORDS:
        return
    listed = type(ranks) in (list, tuple, range) and len(ranks) > 0
    numbers = listed and all(type(one) is int and one >= 0 for one in ranks)
    if numbers and len(set(ranks)) == len(ranks):
        return
    raise ArgumentError(
        f"a graph cannot show the ranks {shown(ranks)}",
        why="ranks is 'mine', 'all', 'unfolded', or a list of numbers from 0 on, each once",
        fix="ranks='all', or ranks=[0, 8]",
    )


def check_ranks_timeout(seconds: Any) -> None:
    """Raise ArgumentError unless this is a time for which ranks can be waited for."""
    if type(seconds) in (int, float) and 0 < seconds <= _LONGEST_S:
        return
    raise ArgumentError(
        f"ranks cannot be waited for {shown(seconds)} seconds",
        why="ranks_timeout is a number of seconds, above 0 and at most a week",
        fix="ranks_timeout=300",
    )


def check_unfolded(count: int) -> None:
    """Raise ArgumentError unless so many ranks may have a box each."""
    if count <= MOST_UNFOLDED:
        return
    raise ArgumentError(
        f"{count:,} ranks cannot be drawn unfolded",
        why=f"each has a box of its own, and the page shows at most {MOST_UNFOLDED} well",
        fix="ranks='all' draws those that ran the same once; or a list of some",
    )
