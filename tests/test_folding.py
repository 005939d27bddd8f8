"""Series of the page: which siblings it folds into one stack, and what it calls that."""

import pytest

from tbscope.page.hierarchy import Hierarchy
from tbscope.page.series import find_series, fold


def folded(*labels, op="Relu"):
    """Give the labels of the members of each stack by its own."""
    stacks = fold(labels, [op] * len(labels))
    return {name: [labels[place] for place in places] for name, places in stacks.items()}


def test_a_stack_is_called_by_its_first_and_last_number():
    names = [f"relu_{at}" for at in (3, 1, 2, 5, 4)]
    assert folded(*names) == {"relu_[1-5]": sorted(names)}
    assert folded(*names[1:]) == {}


def test_numbers_may_begin_with_zeros_or_stand_alone():
    assert list(folded(*(f"n{at:03d}" for at in range(8, 13)))) == ["n[8-12]"]
    assert list(folded(*(str(at) for at in range(5)))) == ["[0-4]"]


def test_what_has_no_number_at_its_end_counts_as_zero():
    numbered = [f"relu_{at}" for at in range(1, 5)]
    assert list(folded("relu_", *numbered)) == ["relu_[0-4]"]
    assert folded("relu", *numbered) == {}
    assert folded(*(f"relu[{at}]" for at in range(6))) == {}


def test_a_digit_before_the_number_keeps_names_apart():
    assert list(folded(*(f"l_relu_{at}" for at in range(5)))) == ["l_relu_[0-4]"]
    assert folded(*(f"l1_relu_{at}" for at in range(5))) == {}


def test_siblings_of_two_op_types_are_two_stacks_and_one_name_is_known_once():
    labels = [*(f"n{at}" for at in range(5)), *(f"n{at:02d}" for at in range(5))]
    assert fold(labels, ["A"] * 5 + ["B"] * 5) == {"n[0-4]": [5, 6, 7, 8, 9]}
    labels[5:] = [f"m{at}" for at in range(5)]
    assert list(fold(labels, ["A"] * 5 + ["B"] * 5)) == ["n[0-4]", "m[0-4]"]


@pytest.mark.parametrize(("above", "name"), [("", "n[0-4]"), ("net/", "net/n[0-4]")])
def test_the_name_of_a_stack_begins_as_those_of_its_members(above, name):
    hierarchy = Hierarchy([(f"{above}n{at}", "Op", []) for at in range(5)])
    (stack,) = find_series(hierarchy.boxes["net"] if above else hierarchy.root)
    assert (stack.name, len(stack.members)) == (name, 5)


def test_boxes_and_nodes_without_an_op_type_are_not_folded():
    assert find_series(Hierarchy([(f"n{at}/x", "Op", []) for at in range(5)]).root) == []
    assert folded(*(f"n{at}" for at in range(5)), op="") == {}
