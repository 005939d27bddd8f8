"""Unique names: each is given once, and those that others have are told apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbscope.drawing.naming import ORDINAL, UniqueNames, with_ordinal


@pytest.mark.parametrize(
    ("number", "text"),
    [
        *((1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (13, "13th")),
        *((21, "21st"), (22, "22nd"), (101, "101st"), (111, "111th"), (1000, "1000th")),
    ],
)
def test_ordinals(number, text):
    assert with_ordinal("relu", number) == f"relu.{text}"


def test_a_name_that_is_free_is_kept_and_one_that_is_not_gets_an_ordinal():
    unique = UniqueNames(["relu.2nd"])
    assert [unique.claim("relu") for _ in range(3)] == ["relu", "relu.3rd", "relu.4th"]


def test_the_names_of_the_boxes_around_a_name_may_be_given_to_nobody():
    unique = UniqueNames(["a"])
    unique.reserve_above(["a/b/c", "a/b/d", "e"])
    wishes = ["a", "a/b", "a/b/c", "e"]
    assert [unique.claim(wish) for wish in wishes] == ["a.2nd", "a/b.2nd", "a/b/c", "e"]


def test_another_way_to_number_names_may_be_asked_for():
    unique = UniqueNames(numbered=lambda name, number: f"{name}_{number}")
    assert [unique.claim("Block") for _ in range(3)] == ["Block", "Block_2", "Block_3"]


@given(st.lists(st.sampled_from(["a", "a.2nd", "a.2nd.2nd", "a.3rd", "b"])))
def test_no_name_is_given_twice_and_the_first_wish_for_each_is_granted(wishes):
    unique = UniqueNames()
    given_out = [unique.claim(wish) for wish in wishes]
    assert len(set(given_out)) == len(wishes)
    # A name that is given already has another number.
    starts = [ORDINAL.sub("", wish) for wish in wishes]
    assert all(name.startswith(start) for name, start in zip(given_out, starts, strict=True))
    assert all(name in unique for name in given_out)
