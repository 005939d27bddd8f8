"""Options on ranks: the ranks that a graph shows, and the longest wait for them."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from tbscope.errors import ArgumentError
from tbscope.messages import shown

Ranks: TypeAlias = Literal["mine", "all", "unfolded"] | Sequence[int]
"""Ranks that a graph shows: this one, all, all in boxes of their own, or a list of ranks."""

MOST_UNFOLDED = 64
"""Largest number of ranks with a box each: the page is slow at levels with more boxes."""

_WORDS = ("mine", "all", "unfolded")
# A week; no user waits longer for a rank.
_LONGEST_S = 7 * 86_400


def check_ranks(ranks: Any) -> None:
    """Raise ArgumentError unless `ranks` is valid."""
    if type(ranks) is str and ranks in _WORDS:
        return
    listed = type(ranks) in (list, tuple, range) and len(ranks) > 0
    numbers = listed and all(type(rank) is int and rank >= 0 for rank in ranks)
    if numbers and len(set(ranks)) == len(ranks):
        return
    raise ArgumentError(
        f"a graph cannot show the ranks {shown(ranks)}",
        why="ranks is 'mine', 'all', 'unfolded', or a list of numbers from 0 on, each once",
        fix="ranks='all', or ranks=[0, 8]",
    )


def check_ranks_timeout(seconds: Any) -> None:
    """Raise ArgumentError unless `seconds` is a valid timeout."""
    if type(seconds) in (int, float) and 0 < seconds <= _LONGEST_S:
        return
    raise ArgumentError(
        f"ranks cannot be waited for {shown(seconds)} seconds",
        why="ranks_timeout is a number of seconds, above 0 and at most a week",
        fix="ranks_timeout=300",
    )


def check_unfolded(count: int) -> None:
    """Raise ArgumentError if `count` ranks are too many for a box each."""
    if count <= MOST_UNFOLDED:
        return
    raise ArgumentError(
        f"{count:,} ranks cannot be drawn unfolded",
        why=f"each has a box of its own, and the page shows at most {MOST_UNFOLDED} well",
        fix="ranks='all' draws those that ran the same once; or a list of some",
    )
