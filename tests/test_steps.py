"""Steps: the graphs of one tag come in order, and a tag holds one kind."""

import pytest

from tbscope.errors import ArgumentError
from tbscope.writing.tags import DataKind, Written, forget_removed, holds, next_step, remember_step


@pytest.fixture
def directory(tmp_path):
    """Give a log directory of which nothing is remembered."""
    return str(tmp_path)


def test_steps_begin_at_0_and_go_on_after_the_latest(directory):
    assert next_step(directory, "a", None) == 0
    remember_step(directory, "a", Written(7))
    assert next_step(directory, "a", None) == 8


def test_a_step_that_is_asked_for_must_be_later(directory):
    remember_step(directory, "a", Written(7))
    assert next_step(directory, "a", 8) == 8
    for late in (7, 0):
        with pytest.raises(ArgumentError, match="comes too late"):
            next_step(directory, "a", late)


@pytest.mark.parametrize("other", ["b", None])
def test_tags_and_directories_have_steps_of_their_own(directory, other):
    remember_step(directory, "a", Written(7))
    assert next_step(directory, other, 0) == 0
    assert next_step(f"{directory}/b", "a", 0) == 0


def test_a_tag_holds_one_kind(directory):
    remember_step(directory, "a", Written(0, DataKind.GRAPH_WITH_FIGURES))
    assert next_step(directory, "a", None, DataKind.GRAPH_WITH_FIGURES) == 1
    with pytest.raises(ArgumentError, match="it has a graph with figures already"):
        next_step(directory, "a", None, DataKind.GRAPH)


def test_what_a_tag_holds_is_known_only_where_it_was_written(directory):
    remember_step(directory, "profile", Written(0, DataKind.FIGURES))
    assert holds(directory, "profile", DataKind.FIGURES)
    assert not holds(directory, "profile", DataKind.GRAPH)
    assert not holds(directory, "other", DataKind.FIGURES)


def test_of_a_directory_that_is_not_known_nothing_is_remembered():
    remember_step("", "a", Written(7))
    assert next_step("", "a", 0) == 0
    assert not holds("", "a", DataKind.GRAPH)


def test_all_graphs_of_a_file_that_was_removed_are_forgotten_and_no_others(directory, tmp_path):
    (tmp_path / "kept").touch()
    files = {"a": "gone", "b": "gone", "c": "kept", "d": ""}
    for tag, file in files.items():
        remember_step(directory, tag, Written(7, file=file))
    remember_step(f"{directory}/other", "e", Written(7, file="gone"))
    steps = {"a": 0, "b": 0, "c": 8, "d": 8}
    forget_removed(directory)
    assert {tag: next_step(directory, tag, None) for tag in files} == steps
    assert next_step(f"{directory}/other", "e", None) == 8
