"""Edges: the level on which each is drawn, and the sides of boxes that its data crosses."""

import pytest

from tbscope.page.hierarchy import Hierarchy, read_through


def links_of(*nodes):
    """Give the lines of every level by the names at their ends, with their two counts."""
    hierarchy = Hierarchy(nodes)
    return {
        (start.name, end.name): tuple(link)
        for box in (hierarchy.root, *hierarchy.boxes.values())
        for (start, end), link in hierarchy.links(box).items()
    }


def test_an_edge_is_drawn_in_the_innermost_box_around_both_ends():
    x, y = ("a/b/x", "X", []), ("a/c/y", "Y", ["a/b/x"])
    assert links_of(x, y) == {("a/b", "a/c"): (1, 0)}
    assert links_of(x, ("a/y", "Y", ["a/b/x"])) == {("a/b", "a/y"): (1, 0)}
    assert links_of(x, ("y", "Y", ["a/b/x"])) == {("a", "y"): (1, 0)}
    assert links_of(x, ("a/b/y", "Y", ["a/b/x"])) == {("a/b/x", "a/b/y"): (1, 0)}


def test_a_line_counts_its_edges_of_data_and_of_control():
    nodes = [("a/x", "X", []), ("a/y", "Y", []), ("b/z", "Z", ["a/x", "a/y", "^a/x"])]
    assert links_of(*nodes, ("b/w", "W", ["^a/y"])) == {("a", "b"): (2, 2)}
    assert links_of(*nodes[:2], ("w", "W", ["^a/y"])) == {("a", "w"): (0, 1)}


def test_one_graph_does_not_count_the_edges_of_another():
    pair = [("a/x", "X", []), ("b/y", "Y", ["a/x"])]
    both = [*pair, ("b/z", "Z", ["a/x"])]
    assert links_of(*both) == {("a", "b"): (2, 0)}
    assert links_of(*pair) == {("a", "b"): (1, 0)}


@pytest.mark.parametrize(
    ("op", "control", "waits"),
    [
        # Of a circle its own edges count, of a summary icon the one by which it is read.
        ("Const", False, [False, True]),
        ("Const", True, [False, True]),
        ("OneSummary", False, [False, False]),
        ("OneSummary", True, [True, True]),
    ],
)
def test_an_embedded_node_hands_on_its_edges(op, control, waits):
    embedded = Hierarchy([("x", "X", []), ("y", "Y", []), ("w", op, ["x", "^y"])]).items["w"]
    handed = [(item.name, kind) for item, kind in read_through(embedded, control)]
    assert handed == [("x", waits[0]), ("y", waits[1])]


def doors_of(*nodes):
    doors = Hierarchy(nodes).doors
    return {shape.name for shape in doors.left}, {shape.name for shape in doors.entered}


def test_data_leaves_and_enters_every_box_on_its_way():
    left, entered = doors_of(("a/b/x", "X", []), ("c/y", "Y", ["a/b/x"]))
    assert (left, entered) == ({"a/b/x", "a/b"}, {"c/y"})
    left, entered = doors_of(("x", "X", []), ("c/d/y", "Y", ["x"]))
    assert (left, entered) == (set(), {"c/d", "c/d/y"})


def test_data_of_one_box_crosses_no_side_of_it():
    assert doors_of(("a/x", "X", []), ("a/y", "Y", ["a/x"])) == (set(), set())
    left, entered = doors_of(("a/b/x", "X", []), ("a/y", "Y", ["a/b/x"]))
    assert (left, entered) == ({"a/b/x"}, set())


def test_what_only_waits_goes_through_no_door():
    assert doors_of(("a/x", "X", []), ("y", "Y", ["^a/x"])) == (set(), set())


def test_data_goes_through_embedded_nodes():
    left, entered = doors_of(
        ("a/x", "X", []), ("b/w", "Const", ["a/x"]), ("b/y", "Y", ["b/w"]), ("v", "Const", [])
    )
    assert (left, entered) == ({"a/x"}, {"b/y"})


@pytest.mark.parametrize(
    ("nodes", "entered", "left"),
    [
        ([("x", "Op", []), ("a/y", "Op", ["x"])], {"a/y"}, set()),
        ([("a/y", "Op", []), ("x", "Op", ["a/y"])], set(), {"a/y"}),
        ([("a/y", "Op", []), ("b/x", "Op", ["a/y"])], {"b/x"}, {"a/y"}),
        ([("a/b/y", "Op", []), ("a/x", "Op", ["a/b/y"])], set(), {"a/b/y"}),
        ([("a/b/y", "Op", []), ("c/x", "Op", ["a/b/y"])], {"c/x"}, {"a/b/y", "a/b"}),
        ([("a/y", "Op", []), ("a/x", "Op", ["a/y"])], set(), set()),
        ([("x", "Op", []), ("a/y", "Op", ["^x"])], set(), set()),
    ],
)
def test_data_crosses_the_sides_of_the_boxes_that_are_not_around_both(nodes, entered, left):
    doors = Hierarchy(nodes).doors
    assert {glyph.name for glyph in doors.entered} == entered
    assert {glyph.name for glyph in doors.left} == left
