"""Ranks: the processes of a distributed run, in words, and what one graph shows of them."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

__all__ = ["Part", "device_on", "ranks_text", "split_device"]

# Fewer are no longer row than a list of them.
_LEAST_ROW = 3
_ON_RANK = re.compile(r"(ranks? [0-9][-0-9,a-z ]*) ([^ ]+)")


class Part(NamedTuple):
    """Ranks of a distributed run that one part of a merged graph shows.

    Attributes:
        ranks: Their numbers, in order.
        scope: The path of the box that holds what they ran; empty where that is all the graph.
            What they ran of a backward pass and of an optimizer stands in boxes of this name in
            `gradients` and `optimizer`.
        stage: Which stage of a pipeline they run; None where there is no pipeline.
        figures: What one of them holds and does, by the names of the summary's columns.
    """

    ranks: tuple[int, ...]
    scope: str = ""
    stage: int | None = None
    figures: Mapping[str, int] = {}

    def __str__(self) -> str:
        """Print as `rank 3`, `ranks 0-7` or `stage 1 ranks 8-15`."""
        text = ranks_text(self.ranks)
        return text if self.stage is None else f"stage {self.stage} {text}"


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ranks in words, rows of them by their ends.

    >>> ranks_text([3]), ranks_text([0, 1, 2, 3, 8]), ranks_text([0, 2, 4, 6])
    ('rank 3', 'ranks 0-3,8', 'ranks 0-6 step 2')
    """
    ordered = sorted(set(ranks))
    if not ordered:
        return "no rank"
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {','.join(_rows(ordered))}"


def _rows(ordered: Sequence[int]) -> Iterator[str]:
    place = 0
    while place < len(ordered):
        first, end = ordered[place], place + 1
        step = ordered[end] - first if end < len(ordered) else 1
        while end < len(ordered) and ordered[end] - ordered[end - 1] == step:
            end += 1
        if end - place < _LEAST_ROW and step > 1:
            end = place + 1
        last = ordered[end - 1]
        if last == first:
            yield str(first)
        else:
            yield f"{first}-{last}" if step == 1 else f"{first}-{last} step {step}"
        place = end


def device_on(ranks: str, device: str) -> str:
    """Return a device of ranks as one text: `rank 3 cpu`, `ranks 0-7 cuda:0`.

    Args:
        ranks: The ranks in words.
        device: The device as each of them names it.
    """
    return f"{ranks} {device}"


def split_device(device: str) -> tuple[str, str]:
    """Return the ranks of a device in words, and the device as each of them names it.

    >>> split_device("ranks 0-7 cuda:0"), split_device("cpu")
    (('ranks 0-7', 'cuda:0'), ('', 'cpu'))
    """
    found = _ON_RANK.fullmatch(device)
    return (found[1], found[2]) if found else ("", device)
