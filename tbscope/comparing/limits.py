"""Limits: numbers with units, as people write them (`25M`, `1.5GiB`)."""

import re
from decimal import Decimal
from typing import TypeAlias

from tbscope.errors import ArgumentError
from tbscope.words import shown

__all__ = ["Limit", "parse_limit"]

Limit: TypeAlias = int | str
"""A count, or a text that tells one with a unit: `25_000_000`, `"25M"`, `"1.5GiB"`."""

_NUMBER = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]+)?(?:[eE]\+?[0-9]{1,2})?) ?([A-Za-z]*)")
_MOST_DIGITS = 40
_UNITS = {
    "": 1,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
}


def parse_limit(limit: Limit, name: str) -> int:
    """Return the count that a limit tells; the part of one that is left over is dropped.

    >>> parse_limit("25M", "max_parameters"), parse_limit("1.5GiB", "max_activation_bytes")
    (25000000, 1610612736)

    Args:
        limit: A whole number, or a text. `k`, `M`, `G`, `T` and `P` are powers of 1000; `Ki`,
            `Mi`, `Gi`, `Ti` and `Pi` of 1024. Of bytes, `B` may stand behind; of anything
            else, `B` is 10**9, as in a model of 7B parameters.
        name: What it limits, for the message: one that ends in `bytes` is of bytes.
    Raises:
        ArgumentError: It is none.
    """
    of_bytes = name.endswith("bytes")
    if type(limit) is int and limit >= 0:
        return limit
    if isinstance(limit, str) and len(limit) <= _MOST_DIGITS:
        found = _NUMBER.fullmatch(str.__str__(limit).strip())
        if found:
            number, unit = found.groups()
            factor = _UNITS.get(unit.removesuffix("B") if of_bytes else unit)
            if unit == "B" and not of_bytes:
                factor = 10**9
            if factor is not None:
                return int(Decimal(re.sub("[_,]", "", number)) * factor)
    example = "1.5GiB" if of_bytes else "25M"
    units = "k, M, G, T, P, Ki, Mi, Gi, Ti, Pi" + (
        ", each with B or without" if of_bytes else ", B"
    )
    raise ArgumentError(
        f"{name} cannot be {shown(limit)}",
        why=f"it is a number from 0 up with or without a unit, one of {units}",
        fix=f'{name}="{example}"',
    )
