"""Which cases of a test CI leaves out, because others go the same ways.

    TBSCOPE_SWEEP=1 python -m pytest -n auto --dist worksteal

runs all of them, and `FILES`, of which CI runs none.
"""

import os
from collections.abc import Iterable
from typing import TypeVar

Case = TypeVar("Case")

FILES = (
    *("test_chunks_page.py", "test_label_widths.py"),
    *("test_page_big.py", "test_templates_page.py", "test_training_page.py"),
    "test_benchmarks_alone.py",
)
"""Tests that open large or many graphs in the Graphs page, of which `test_page.py` and others open
some, and benchmarks in processes of their own, of which `test_benchmarks.py` has one."""


def is_sweep() -> bool:
    """Whether all cases are asked for."""
    return os.environ.get("TBSCOPE_SWEEP") == "1"


def sampled(every: Iterable[Case], few: Iterable[Case]) -> list[Case]:
    """Give the cases of a test: a few of them, or every one where all are asked for.

    Args:
        every: All cases.
        few: Those of them that go each of the ways once.
    """
    every, few = [*every], [*few]
    strange = [case for case in few if case not in every]
    assert not strange, f"no such cases: {strange}"
    return every if is_sweep() else few


def counted(every: int, few: int) -> int:
    """Give how many examples a law is tried with: few, or every one where all are asked for."""
    return every if is_sweep() else few
