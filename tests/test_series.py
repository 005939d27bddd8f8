"""Series: which siblings TensorBoard would fold, and where one is set apart."""

import re
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from tbscope.graphdef.series import FOLDED_FROM, UNFOLDED_UP_TO, members_to_set_apart


def linears(names):
    return [(name, "Linear") for name in names.split()]


def test_four_numbered_siblings_are_left_alone():
    assert members_to_set_apart(linears("Net/fc1 Net/fc2 Net/fc3 Net/fc4")) == set()


def test_the_fifth_numbered_sibling_is_set_apart():
    siblings = linears("Net/fc1 Net/fc2 Net/fc3 Net/fc4 Net/fc5")
    assert members_to_set_apart(siblings) == {"Net/fc5"}


def test_a_sibling_without_a_number_counts_as_number_zero():
    assert members_to_set_apart(linears("fc fc1 fc2 fc3 fc4")) == {"fc4"}


def test_the_order_of_siblings_does_not_matter():
    assert members_to_set_apart(linears("4 2 0 3 1")) == {"4"}


def test_siblings_with_a_gap_are_left_alone():
    assert members_to_set_apart(linears("fc1 fc2 fc4 fc5 fc6")) == set()


def test_siblings_of_two_op_types_are_left_alone():
    siblings = [*linears("fc1 fc2 fc3 fc4"), ("fc5", "Bilinear")]
    assert members_to_set_apart(siblings) == set()


def test_equal_names_in_two_boxes_are_left_alone():
    assert members_to_set_apart(linears("a/1 a/2 a/3 b/4 b/5")) == set()


def test_names_with_a_digit_before_the_last_number_are_left_alone():
    assert members_to_set_apart(linears("l1_0 l1_1 l1_2 l1_3 l1_4")) == set()


def test_a_long_series_stays_folded():
    names = [f"Net/cell.{index}" for index in range(UNFOLDED_UP_TO + 1)]
    assert members_to_set_apart([(name, "LSTMCell") for name in names]) == set()
    assert members_to_set_apart([(name, "LSTMCell") for name in names[1:]])


@given(st.lists(st.integers(0, 70), unique=True))
def test_what_is_left_of_a_series_is_never_folded(numbers):
    names = [f"fc{number}" for number in numbers]
    apart = members_to_set_apart([(name, "Linear") for name in names])
    groups = defaultdict(list)
    for name in names:
        groups[name in apart].append(int(re.sub(r"\D", "", name)))
    for group in groups.values():
        for start in group:
            run = 0
            while start + run in group:
                run += 1
            assert run < FOLDED_FROM or run > UNFOLDED_UP_TO - FOLDED_FROM
