"""Tags, steps and names of runs: the last that can be, and the first that cannot."""

import enum

import pytest

from tbscope.errors import ArgumentError
from tbscope.options import LAST_STEP, check_run_name, check_step, check_tag


class Phase(enum.StrEnum):
    """A name of a run that is no plain text."""

    EVAL = "eval"


# Of "é" a file system counts two bytes, of which 255 make a name.
@pytest.mark.parametrize(
    ("check", "last", "wrong"),
    [
        (check_tag, "x" * 1000, "x" * 1001),
        (check_tag, "x", ""),
        (check_step, LAST_STEP, LAST_STEP + 1),
        (check_step, 0, -1),
        (check_run_name, "x" * 255, "x" * 256),
        (check_run_name, "é" * 127, "é" * 128),
        (check_run_name, "x/" + "y" * 255, "x/" + "y" * 256),
        (check_run_name, Phase.EVAL.value, Phase.EVAL),
    ],
)
def test_the_last_that_can_be_is_taken_and_the_next_one_refused(check, last, wrong):
    check(last)
    with pytest.raises(ArgumentError):
        check(wrong)
