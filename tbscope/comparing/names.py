"""Names of many parts as one text: `layers.0-11.self_attn.{q_proj,v_proj}`."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

__all__ = ["folded_names"]

_Parts = tuple[tuple[str, ...], ...]


def folded_names(names: Iterable[str], *, most: int = 4) -> str:
    """Return names as few patterns that tell all of them.

    >>> folded_names(["layers.0.fc", "layers.1.fc", "layers.2.fc", "head"])
    'layers.0-2.fc, head'
    >>> folded_names(["0.q", "0.v", "1.q", "1.v"])
    '0-1.{q,v}'

    Args:
        names: The names, dots between their parts.
        most: How many patterns are told; of more, only their number.
    """
    groups: list[_Parts] = [tuple((part,) for part in name.split(".")) for name in names]
    groups = list(dict.fromkeys(groups))
    for place in range(max(map(len, groups), default=0)):
        groups = _merged(groups, place)
    texts = [".".join(map(_part_text, group)) for group in groups]
    if len(texts) > most:
        texts = [*texts[: most - 1], f"and {len(texts) - most + 1} more"]
    return ", ".join(texts)


def _merged(groups: Sequence[_Parts], place: int) -> list[_Parts]:
    """Make one of all that differ in one part alone."""
    found: dict[tuple[int, _Parts], list[str]] = {}
    for group in groups:
        if place >= len(group):
            found.setdefault((-1, group), [])
            continue
        rest = group[:place] + group[place + 1 :]
        found.setdefault((len(group), rest), []).extend(group[place])
    return [
        rest if length < 0 else (*rest[:place], tuple(dict.fromkeys(parts)), *rest[place:])
        for (length, rest), parts in found.items()
    ]


def _part_text(parts: tuple[str, ...]) -> str:
    if len(parts) == 1:
        return parts[0]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        return f"{{{','.join(parts)}}}"
    runs: list[list[int]] = []
    numbers = sorted(map(int, parts))
    for before, number in pairwise([numbers[0] - 2, *numbers]):
        if number == before + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    text = ",".join(texts)
    return text if len(texts) == 1 else f"{{{text}}}"
