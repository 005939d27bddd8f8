"""Laws of hypothesis are held to no time: what a loaded machine needs is no fault of the code."""

import re
from pathlib import Path

from hypothesis import HealthCheck, given
from hypothesis import strategies as st

TESTS = Path(__file__).parent


def test_a_law_that_chooses_nothing_has_any_time():
    @given(st.integers())
    def law(number):
        pass

    own = law._hypothesis_internal_use_settings
    assert own.deadline is None
    assert HealthCheck.too_slow in own.suppress_health_check


def test_no_law_chooses_a_time():
    chosen = {
        path.name: re.findall(r"deadline=(?!None)\S+", path.read_text())
        for path in TESTS.glob("test_*.py")
    }
    assert {name: found for name, found in chosen.items() if found and name != "test_laws.py"} == {}
