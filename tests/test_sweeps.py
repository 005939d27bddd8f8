"""What CI takes a sample of, one command runs whole."""

from pathlib import Path

import pytest
from sweeps import FILES, counted, sampled

PAGE = Path(__file__).parents[1] / "docs" / "contributing.md"


@pytest.mark.parametrize(("asked", "found"), [(None, [3, 1]), ("0", [3, 1]), ("1", [1, 2, 3])])
def test_all_cases_run_where_they_are_asked_for(monkeypatch, asked, found):
    monkeypatch.delenv("TBSCOPE_SWEEP", raising=False)
    if asked is not None:
        monkeypatch.setenv("TBSCOPE_SWEEP", asked)
    assert sampled(iter([1, 2, 3]), iter([3, 1])) == found
    assert counted(3, 2) == len(found)


def test_a_sample_holds_no_case_that_the_whole_does_not_have():
    with pytest.raises(AssertionError, match=r"no such cases: \[4\]"):
        sampled([1, 2, 3], [3, 4])


def test_each_file_of_the_sweep_alone_is_there():
    assert {*FILES} <= {path.name for path in Path(__file__).parent.glob("test_*.py")}


def test_the_page_for_contributors_names_the_command():
    assert "`TBSCOPE_SWEEP=1 python -m pytest -n auto --dist worksteal`" in PAGE.read_text()
