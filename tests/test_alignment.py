"""Alignment of two sequences: the most that can be matched, by name and by structure."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tbscope.utils import alignment
from tbscope.utils.alignment import align

LETTERS = st.text("abc", max_size=7)


def nothing(_, __):
    return 0.0


def numbered(structures):
    """Give parts that are called by their places, as modules in a list are."""
    return [str(at) for at in range(len(structures))]


def matched(left, right, score=nothing, names=None):
    """Align two sequences, each part called by its place where no names are given."""
    names = names or (numbered(left), numbered(right))
    pairs = align(names, (left, right), score)
    assert [sorted(places) for places in zip(*pairs, strict=True)] == [
        sorted(set(places)) for places in zip(*pairs, strict=True)
    ]
    assert pairs == sorted(pairs, key=lambda pair: pair[::-1])
    return pairs


def most(left, right):
    """Give how many parts can be matched at most with an equal one, by trying all."""
    if not left or not right:
        return 0
    if left[0] == right[0]:
        return 1 + most(left[1:], right[1:])
    return max(most(left[1:], right), most(left, right[1:]))


@given(LETTERS, LETTERS)
@example("abcab", "bcabc")
def test_as_many_equal_parts_as_can_be_are_matched_and_no_others(left, right):
    pairs = matched(left, right)
    assert len(pairs) == most(left, right)
    assert all(left[at] == right[place] for at, place in pairs)


@pytest.mark.parametrize("place", [1, 2, 3])
def test_of_equal_parts_the_one_of_the_same_name_is_matched(place):
    names = ["first", *("other", "one", "more"), "last"]
    names[place] = "same"
    assert matched("xaz", "yaaaw", names=(["begin", "same", "end"], names)) == [(1, place)]


def test_a_part_is_matched_with_an_equal_one_before_one_of_its_name():
    assert matched("a", "ba", lambda *_: 0.1) == [(0, 1)]
    assert matched("a", "bc", lambda *_: 0.1) == [(0, 0)]


@pytest.mark.parametrize("worth", [0.1, 1.0])
def test_parts_that_are_not_equal_are_matched_by_their_score(worth):
    scores = {(0, 1): worth}
    assert matched("a", "bc", lambda *pair: scores.get(pair, 0.0)) == [(0, 1)]
    assert matched("a", "bc", nothing) == []
    # An equal one is worth more than any that is not.
    assert matched("a", "ac", lambda *pair: scores.get(pair, 0.0)) == [(0, 0)]


def test_two_scores_are_taken_before_a_larger_one_that_is_less_than_both():
    scores, names = {(0, 0): 0.5, (1, 1): 0.4, (1, 0): 0.8}, ("pq", "rs")

    def score(at, place):
        return scores.get((at, place), 0.0)

    assert matched("ab", "cd", score, names) == [(0, 0), (1, 1)]
    scores[1, 0] = 1.0
    assert matched("ab", "cd", score, names) == [(1, 0)]


LONG = [f"layer {at}" for at in range(400)]


@pytest.mark.parametrize("place", [0, 1, 200, 399])
def test_what_is_inserted_into_a_long_list_moves_the_others_along(place):
    right = [*LONG[:place], "odd", *LONG[place:]]
    expected = [(at, at + (at >= place)) for at in range(400)]
    assert matched(LONG, right) == expected
    assert matched(right, LONG) == [pair[::-1] for pair in expected]


def test_names_are_trusted_where_every_part_of_a_long_list_changed(monkeypatch):
    monkeypatch.setattr(alignment, "_MOST_PAIRS", 60_000)
    changed = [f"{part}, narrower" for part in LONG]
    assert matched(LONG, changed) == [(at, at) for at in range(400)]
    assert matched(LONG, changed, names=(LONG, changed)) == []


@given(LETTERS, LETTERS)
def test_a_long_sequence_is_matched_where_it_is_equal_or_called_alike(left, right):
    for least in (0, 4):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(alignment, "_MOST_PAIRS", least)
            pairs = matched(left, right)
        assert all(left[at] == right[place] or at == place for at, place in pairs)


def test_equal_parts_under_other_names_divide_a_long_list(monkeypatch):
    monkeypatch.setattr(alignment, "_MOST_PAIRS", 60_000)
    right = [*LONG[:100], "odd", *LONG[101:300], *LONG[310:]]
    names = LONG, [f"other {part}" for part in right]
    moved = [(at, at) for at in range(300) if at != 100]
    assert matched(LONG, right, names=names) == moved + [(at, at - 10) for at in range(310, 400)]
