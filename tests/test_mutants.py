"""The mutation tester: which slips it makes, and that the table of guards is whole."""

import ast
from pathlib import Path

import pytest
from cosmic_ray.mutating import mutate_code

from tests.mutants.__main__ import main
from tests.mutants.guards import GUARDS, guards_of
from tests.mutants.slips import RemoveStatement, find_slips, sample_slips, with_slip

ROOT = Path(__file__).parents[1]

SOURCE = '''"""A file."""
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os


def first(values: list[int] | None, least: int = 0) -> int | None:
    """Return the first value above the least."""
    held = []
    held.append(least)
    for value in values or ():
        if value > least and value not in held:
            return value
    return None
'''


def slips_of(tmp_path, source):
    (tmp_path / "file.py").write_text(source)
    return find_slips(tmp_path, "file.py")


def test_every_slip_changes_the_file_and_leaves_it_python(tmp_path):
    slips = [slip for each in slips_of(tmp_path, SOURCE).values() for slip in each]
    texts = [with_slip(tmp_path, slip) for slip in slips]
    assert all(ast.dump(ast.parse(text)) != ast.dump(ast.parse(SOURCE)) for text in texts)
    assert len(slips) > 12


def test_annotations_and_blocks_for_type_checkers_are_left_alone(tmp_path):
    lines = {start[0] for start, _ in slips_of(tmp_path, SOURCE)}
    # In line 8 the default of an argument alone; the condition in line 4 not at all.
    assert lines == {8, 11, 12, 13}
    places = [place for place in slips_of(tmp_path, SOURCE) if place[0][0] == 8]
    assert [start[1] for start, _ in places] == [SOURCE.splitlines()[7].index("0)")]


@pytest.mark.parametrize("example", RemoveStatement.examples())
def test_a_statement_is_left_out_where_it_does_something(example):
    changed = mutate_code(example.pre_mutation_code, RemoveStatement(), 0)
    assert (changed or example.pre_mutation_code) == example.post_mutation_code


def test_a_sample_is_the_same_for_the_same_seed_and_another_for_another(tmp_path):
    (tmp_path / "file.py").write_text(SOURCE)
    one, same, other = (
        sample_slips(tmp_path, ["file.py"], count=5, seed=seed) for seed in (1, 1, 2)
    )
    assert one == same != other
    assert len({slip.line for slip in one}) > 1


def test_each_guarded_file_and_each_guard_exists():
    paths = {path for guarded in GUARDS for path in (guarded, *guards_of(guarded))}
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_what_the_tests_notice_and_what_they_do_not_is_told_apart(monkeypatch, capsys, tmp_path):
    path = "tbscope/ir/invariants.py"
    slips = [slip for each in find_slips(ROOT, path).values() for slip in each]
    noticed = next(
        slip for slip in slips if slip.operator == "core/ReplaceComparisonOperator_NotEq_Eq"
    )
    monkeypatch.chdir(tmp_path)
    words = ["mutants", "--only", path, "--slip", noticed.name, "--jobs", "1"]
    monkeypatch.setattr("sys.argv", words)
    assert main() == 0
    assert "| all | 1 | 1 (100.0%) |" in capsys.readouterr().out
