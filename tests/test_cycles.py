"""Cycles: which places lead back to themselves."""

from hypothesis import given
from hypothesis import strategies as st

from tbscope.utils.components import find_cycles

PLACES = st.integers(0, 8)


def reached_from(place, steps):
    """Give what can be reached from a place, in one step or in many."""
    found, pending = set(), [place]
    while pending:
        here = pending.pop()
        ahead = {end for start, end in steps if start == here} - found
        found |= ahead
        pending += ahead
    return found


@given(st.lists(st.tuples(PLACES, PLACES), max_size=25))
def test_places_of_one_cycle_are_those_that_reach_each_other(steps):
    ways = {place: reached_from(place, steps) for place in range(9)}
    expected = {
        frozenset({one, *(other for other in ways[one] if one in ways[other])}) for one in ways
    }
    found = [frozenset(cycle) for cycle in find_cycles(steps)]
    assert len(found) == len(set(found))
    assert set(found) == {group for group in expected if len(group) > 1}


def test_a_step_back_to_the_same_place_is_no_cycle():
    assert find_cycles([("a", "a"), ("a", "b")]) == []
    assert [sorted(cycle) for cycle in find_cycles([("a", "b"), ("b", "a")])] == [["a", "b"]]


def test_a_long_way_round_is_found_without_recursion():
    steps = [(at, at + 1) for at in range(20_000)]
    assert find_cycles(steps) == []
    (cycle,) = find_cycles([*steps, (20_000, 0)])
    assert len(cycle) == 20_001
