"""Folding: parts that are numbered on and equal in all that a line tells."""

import pytest

from tbscope.analysis.collapse_repeats import equal_parts, lines_of
from tbscope.analysis.costs import Costs
from tbscope.analysis.summary import part_row
from tbscope.ir.graph import Parameter
from tbscope.ir.module_tree import ModulePart, walk


def lines(root, depth=None, costs=None):
    """Give depth, title, times and number of parts of each line."""
    rows = {
        part: part_row(part, (costs or {}).get(part, Costs()), depth=0, all_parameters=0)
        for part in walk(root)
    }
    equal = equal_parts(root, rows, dict)
    return [
        (line.depth, line.title, line.times, len(line.parts))
        for line in lines_of(root, depth, equal)
    ]


def listed(*attributes, label="Linear"):
    root = ModulePart("Net", kind="module")
    for attribute in attributes:
        ModulePart(label, parent=root, kind="module", attribute=attribute)
    return root


def titles(root, costs=None):
    return [title for _, title, _, _ in lines(root, costs=costs)[1:]]


def test_numbers_that_follow_each_other_fold():
    assert lines(listed("0", "1", "2")) == [(0, "Net", 1, 1), (1, "0-2", 3, 3)]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (["0", "1", "3", "4"], ["0-1", "3-4"]),
        (["1", "0"], ["1", "0"]),
        (["1", "1"], ["1", "1"]),
        (["a", "b"], ["a", "b"]),
        (["0", "b"], ["0", "b"]),
        (["a", "1"], ["a", "1"]),
        (["0", None], ["0", "Linear"]),
        ([None, "1"], ["Linear", "1"]),
        (["9", "10", "11"], ["9-11"]),
        (["\u0661", "2"], ["\u0661", "2"]),
    ],
)
def test_other_names_do_not(attributes, expected):
    assert titles(listed(*attributes)) == expected


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("label", "Other"),
        ("class_name", "models.Other"),
        ("kind", "unused"),
        ("own_state", (Parameter("weight", "parameter", (2,), "float32", 8, True),)),
    ],
)
def test_parts_that_differ_in_one_thing_do_not_fold(field, told):
    root = listed("0", "1", "2")
    setattr(root.children[2], field, told)
    assert titles(root) == ["0-1", "2"]


def test_costs_fold_but_for_times_and_the_backward_pass():
    root = listed("0", "1", "2")
    costs = Costs(duration_us=3.0, backward_flops=3)
    assert titles(root, {root.children[1]: costs}) == ["0-2"]
    costs.flops = 3
    assert titles(root, {root.children[1]: costs}) == ["0", "1", "2"]


def test_equal_parameters_fold_though_they_are_others():
    root = listed("0", "1")
    for number, part in enumerate(root.children):
        part.own_state = (Parameter("w", "parameter", (2,), "float32", 8, True, number=number),)
    assert titles(root) == ["0-1"]
    root.children[0].holds.shared = root.children[1].holds.shared = 2
    assert titles(root) == ["0", "1"]


def test_what_is_inside_must_be_equal_and_is_one_line():
    root = listed("0", "1")
    for part in root.children:
        ModulePart("ReLU", parent=part, kind="module", attribute="act")
    assert lines(root)[1:] == [(1, "0-1", 2, 2), (2, "act", 1, 2)]
    root.children[1].children[0].attribute = "end"
    assert titles(root) == ["0", "act", "1", "end"]


def test_modules_that_no_module_registers_may_have_other_numbers_in_equal_parts():
    root = listed("0", "1")
    for number, part in enumerate(root.children):
        ModulePart("ReLU", parent=part, kind="module", attribute=f"?{number}")
    assert titles(root) == ["0-1", "?0"]
    root.children[1].children[0].name = "registered"
    assert titles(root) == ["0", "?0", "1", "?1"]


def test_lines_in_folded_parts_fold_in_their_turn():
    root = listed("0", "1")
    for part in root.children:
        for attribute in ("0", "1", "2"):
            ModulePart("ReLU", parent=part, kind="module", attribute=attribute)
    assert lines(root)[1:] == [(1, "0-1", 2, 2), (2, "0-2", 3, 6)]


def test_depth_is_how_many_parts_stand_around():
    root = listed("0", "1")
    ModulePart("ReLU", parent=root.children[1], attribute="act")
    for depth, count in ((0, 1), (1, 3), (2, 4), (None, 4)):
        assert len(list(lines_of(root, depth, {}))) == count
        assert len(lines(root, depth)) == count
    assert [line.depth for line in lines_of(root, None, {})] == [0, 1, 1, 2]
