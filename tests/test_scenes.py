"""Scenes: what is drawn in a box when it is opened, and what is put aside, and why."""

import pytest
from scenes import read_scene, read_scenes

from tbscope.page.constants import CONTROL_LIMIT, CROWD_SIZE, LIBRARY
from tbscope.page.hierarchy import Hierarchy


def scene_of(nodes, box=""):
    hierarchy = Hierarchy(nodes)
    return read_scene(hierarchy, hierarchy.boxes[box] if box else hierarchy.root)


def aside(nodes, box=""):
    return {glyph.name: reason for glyph, reason in scene_of(nodes, box).aside.items()}


def lines(scene):
    return {(start.name, end.name): tuple(link) for (start, end), link in scene.lines.items()}


def chain(count, *, reading=lambda at: []):
    """Give nodes of different op types that read one another, and some others."""
    return [(f"n{at}_", f"Op{at}", [f"n{at - 1}_"] * (at > 0) + reading(at)) for at in range(count)]


def test_stacks_come_after_all_others_and_have_the_lines_of_their_members():
    members = [(f"r{at}", "Relu", [f"r{at - 1}" if at else "x"]) for at in range(5)]
    readers = [("a/y", "Y", ["r4", "^r2"]), ("b/y", "Y", ["r4", "r3", "^r2", "^r1"])]
    scene = scene_of([("x", "In", []), *members, *readers])
    assert [glyph.name for glyph in scene.glyphs] == ["x", "a", "b", "r[0-4]"]
    assert lines(scene) == {
        ("x", "r[0-4]"): (1, 0),
        ("r[0-4]", "a"): (1, 1),
        ("r[0-4]", "b"): (2, 2),
    }
    assert lines(scene_of([("x", "In", []), *members[:4]]))["r0", "r1"] == (1, 0)


def test_a_no_op_is_put_aside_and_its_lines_are_cut():
    scene = scene_of([("x", "In", []), ("card", "NoOp", ["x"]), ("y", "Y", ["x"])])
    assert {glyph.name: reason for glyph, reason in scene.aside.items()} == {"card": "NoOp"}
    assert (len(scene.links), lines(scene)) == (2, {("x", "y"): (1, 0)})


@pytest.mark.parametrize(("op", "expected"), [("NoOp", {"net": "NoOp"}), ("NoOps", {})])
def test_a_box_is_put_aside_for_the_no_op_that_is_named_like_it(op, expected):
    assert aside([("net", op, []), ("net/x", "X", [])]) == expected
    assert aside([("net/in", op, []), ("net/x", "X", [])]) == {}


def test_what_many_read_or_what_reads_many_is_put_aside_from_fifteen_glyphs_on():
    def hub(at):
        return ["n0_"] * (at > 2)

    def last(count):
        return lambda at: [f"n{one}_" for one in range(count - 2)] if at == count - 1 else []

    assert aside(chain(CROWD_SIZE, reading=hub))["n0_"] == "many lines"
    assert aside(chain(CROWD_SIZE - 1, reading=hub)) == {}
    found = aside(chain(CROWD_SIZE, reading=last(CROWD_SIZE)))
    assert found[f"n{CROWD_SIZE - 1}_"] == "many lines"
    assert aside(chain(CROWD_SIZE - 1, reading=last(CROWD_SIZE - 1))) == {}


def test_a_no_op_does_not_count_in_a_crowd():
    crowd = chain(CROWD_SIZE - 1, reading=lambda at: ["n0_"] * (at > 2))
    assert aside([*crowd, ("other", "Other", ["n0_"])])["n0_"] == "many lines"
    assert aside([*crowd, ("card", "NoOp", ["n0_"])]) == {"card": "NoOp"}


def test_more_than_four_lines_of_control_at_one_glyph_are_cut():
    def waiting(count):
        others = [(f"w{at}_", f"W{at}", ["x"]) for at in range(count)]
        return [("x", "X", []), *others, ("y", "Y", ["x", *(f"^w{at}_" for at in range(count))])]

    kept, cut = scene_of(waiting(CONTROL_LIMIT)), scene_of(waiting(CONTROL_LIMIT + 1))
    assert lines(kept) == {ends: tuple(link) for ends, link in named(kept.links)}
    assert {ends for ends, (data, _) in lines(cut).items() if not data} == set()
    assert len(cut.links) - len(cut.lines) == CONTROL_LIMIT + 1


def named(links):
    return [((start.name, end.name), link) for (start, end), link in links.items()]


@pytest.mark.parametrize(
    ("inputs", "more", "expected"),
    [
        # Circles on one side alone, and an icon on the other.
        (["w"], [], {"a/x": "isolated"}),
        ([], [], {}),
        (["w"], [("log", "OneSummary", ["a/x"])], {}),
        ([], [("log", "OneSummary", ["a/x"])], {"a/x": "isolated"}),
        (["w"], [("a/y", "Y", ["a/x"])], {}),
    ],
)
def test_what_hangs_on_circles_or_icons_of_one_side_is_isolated(inputs, more, expected):
    assert aside([("w", "Const", []), ("a/x", "X", inputs), *more], "a") == expected


def test_what_only_lost_its_lines_is_isolated():
    nodes = [("card", "NoOp", []), ("x", "X", ["card"]), ("y", "Y", [])]
    assert aside(nodes) == {"card": "NoOp", "x": "isolated"}
    assert aside([*nodes, ("z", "Z", ["x"])]) == {"card": "NoOp"}
    read = [("card", "NoOp", ["x"]), ("x", "X", []), ("y", "Y", [])]
    assert aside(read) == {"card": "NoOp", "x": "isolated"}


def test_every_box_has_a_scene_but_those_in_the_panel_of_functions():
    nodes = [("a/b/x", "X", []), (f"{LIBRARY}F/in/y", "Y", [])]
    assert [scene.box.name for scene in read_scenes(Hierarchy(nodes))] == ["", "a", "a/b"]
