"""Which cases of a test CI leaves out, because others go the same ways.

    TBSCOPE_SWEEP=1 python -m pytest -n auto --dist worksteal

runs all of them.
"""

import os
from collections.abc import Iterable
from typing import TypeVar

Case = TypeVar("Case")


def sampled(every: Iterable[Case], few: Iterable[Case]) -> list[Case]:
    """Give the cases of a test: a few of them, or every one where all are asked for.

    Args:
        every: All cases.
        few: Those of them that go each of the ways once.
    """
    every, few = [*every], [*few]
    strange = [case for case in few if case not in every]
    assert not strange, f"no such cases: {strange}"
    return every if os.environ.get("TBSCOPE_SWEEP") == "1" else few
