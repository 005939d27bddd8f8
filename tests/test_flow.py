"""Flow: the longest chain of a scene, and exits that lost their way."""

from itertools import pairwise

import pytest
from scenes import longest_chain, lost_exits, read_scene

from tbscope.page.hierarchy import Hierarchy, Link
from tbscope.page.level_graph import read_levels


def length(names, *lines):
    """Give the longest chain of these nodes along lines such as `ab`."""
    items = Hierarchy([(name, "Op", []) for name in names]).items
    return longest_chain(
        list(items.values()), {(items[start], items[end]): Link(1, 0) for start, end in lines}
    )


@pytest.mark.parametrize(
    ("names", "lines", "expected"),
    [
        ("", [], 0),
        ("ab", [], 1),
        ("abc", ["ab", "bc"], 3),
        ("abc", ["bc", "ab"], 3),
        ("abcd", ["ab", "ac", "cd", "bd"], 3),
        ("abcd", ["ad", "ab", "bc", "cd"], 4),
        ("abc", ["ac", "bc"], 2),
        ("ab", ["ab", "ba"], 2),
        ("abcd", ["ab", "bc", "cb", "cd"], 4),
        # What goes in a circle comes last, after what was counted already.
        ("abcde", ["ab", "cd", "de", "ec"], 3),
    ],
)
def test_the_longest_chain_counts_its_shapes(names, lines, expected):
    assert length(names, *lines) == expected


def doors_of(*nodes):
    doors = Hierarchy(nodes).doors
    return {shape.name for shape in doors.left}, {shape.name for shape in doors.entered}


def test_what_is_drawn_beside_others_is_at_no_door():
    # Data that comes through two of them is not drawn as an edge.
    w = ("w", "Const", [])
    assert doors_of(w, ("a/v", "Const", ["w"]), ("a/y", "Y", ["a/v"])) == (set(), set())
    plain = ("w", "W", [])
    assert doors_of(plain, ("a/v", "Const", ["w"]), ("a/y", "Y", ["a/v"])) == (set(), {"a/y"})


def crowded(readers, *, above="", more=()):
    """Give a chain of twenty nodes, of which the tenth is read by so many others, too."""
    names = [f"{above}n{at}_" for at in range(20)]
    nodes = [
        (name, f"Op{at}", names[at - 1 : at] if at else ["x"]) for at, name in enumerate(names)
    ]
    for at in range(12, 11 + readers):
        nodes[at][2].append(names[10])
    return Hierarchy([("x", "Input", []), *nodes, ("out", "Output", names[-1:]), *more])


def exits(hierarchy, box=""):
    scene = read_scene(hierarchy, hierarchy.boxes[box] if box else hierarchy.root)
    return [glyph.name for glyph in lost_exits(hierarchy, scene)]


def test_an_exit_is_lost_with_what_leads_to_it():
    assert exits(crowded(4)) == []
    assert exits(crowded(7)) == ["out"]


def test_what_is_read_outside_is_an_exit_of_its_box():
    assert exits(crowded(7, above="a/"), "a") == ["a/n19_"]
    read = ("seen", "Seen", ["a/n15_"])
    assert exits(crowded(7, above="a/", more=[read]), "a") == ["a/n15_", "a/n19_"]


def test_what_only_waits_for_what_is_put_aside_lost_nothing():
    assert exits(crowded(7, more=[("waits", "Waits", ["^n10_"])])) == ["out"]


def test_what_is_put_aside_is_an_exit_if_it_has_a_way_in_and_out():
    for read in ([], ["x"]):
        hierarchy = crowded(7, above="a/", more=[("seen", "Seen", ["a/n10_"])])
        hierarchy.items["a/n10_"].sources += [hierarchy.items[name] for name in read]
        assert exits(hierarchy, "a") == ["a/n10_", "a/n19_"]


def test_what_reads_nothing_is_no_exit():
    hierarchy = crowded(1, above="a/", more=[("a/hub", "Hub", []), ("seen", "Seen", ["a/hub"])])
    for at in range(12, 19):
        hierarchy.items[f"a/n{at}_"].sources.append(hierarchy.items["a/hub"])
    scene = read_scene(hierarchy, hierarchy.boxes["a"])
    assert [glyph.name for glyph in scene.aside] == ["a/hub"]
    assert exits(hierarchy, "a") == []


def test_what_reads_from_outside_is_no_lost_exit():
    hierarchy = crowded(7, above="a/")
    items = hierarchy.items
    items["a/n14_"].sources.append(items["x"])
    assert exits(hierarchy, "a") == []


def begun(first):
    """Give a cycle of a stack and what it reads, and a chain from it past a crowd.

    The third of the stack reads what stands in the cycle, and so does the first of it if so asked.
    """
    stack = [("n0", "N", first)]
    stack += [(f"n{at}", "N", [f"n{at - 1}"] + ["back"] * (at == 2)) for at in range(1, 5)]
    names = [f"m{at}_" for at in range(20)]
    nodes = [
        (name, f"Op{at}", names[at - 1 : at] if at else ["n4"]) for at, name in enumerate(names)
    ]
    for at in range(12, 19):
        nodes[at][2].append(names[10])
    return Hierarchy([*stack, ("back", "Back", ["n4"]), *nodes])


def test_a_stack_begins_the_flow_where_one_of_its_members_reads_nothing():
    assert exits(begun([])) == ["m19_"]
    # What goes in a circle begins nowhere, and so loses nothing.
    assert exits(begun(["back"])) == []


def around_a_hub(*, read_outside):
    """Give a box whose hub eight of its sixteen nodes read, and what the page loses in it."""
    nodes = [("x", "Input", []), ("m/hub", "Hub", ["x"]), ("m/a0", "A0", ["x"])]
    nodes += [(f"m/a{at}", f"A{at}", [f"m/a{at - 1}"]) for at in range(1, 15)]
    nodes = [
        (name, op, [*inputs, "m/hub"] if name[3:].isdigit() and int(name[3:]) % 2 else inputs)
        for name, op, inputs in nodes
    ]
    ends = ["m/a14", *["m/hub"] * read_outside]
    nodes += [(f"out{at}", "Output", [end]) for at, end in enumerate(ends)]
    hierarchy = Hierarchy(nodes)
    box = hierarchy.boxes["m"]
    scene = read_scene(hierarchy, box)
    assert {glyph.label for glyph in scene.aside} == {"hub"}
    lost = [glyph.label for glyph in lost_exits(hierarchy, scene)]
    assert read_levels(hierarchy)[box].keeps_flow() is (lost == [])
    return lost


def test_a_hub_that_is_read_outside_too_is_not_missed_where_other_ends_are():
    assert around_a_hub(read_outside=True) == []
    assert around_a_hub(read_outside=False) == []


def test_a_node_that_the_page_puts_aside_for_its_circle_is_missed():
    names = [f"m/a{at}x" for at in range(3)]
    nodes = [
        ("x", "Input", []),
        *((name, name, [before]) for before, name in pairwise(["x", *names])),
        ("m/weight", "Const", []),
        ("m/scale", "Scale", ["x", "m/weight"]),
    ]
    nodes += [(f"o{at}", "Output", [end]) for at, end in enumerate(["m/scale", names[-1]])]
    assert exits(Hierarchy(nodes), "m") == ["m/scale"]


def test_a_last_node_that_is_put_aside_is_missed():
    names = [f"m/a{at}x" for at in range(15)]
    nodes = [
        ("x", "Input", []),
        *((name, name, [before]) for before, name in pairwise(["x", *names])),
    ]
    nodes.append(("m/cat", "cat", names[:6]))
    nodes += [(f"o{at}", "Output", [end]) for at, end in enumerate(["m/cat", *names])]
    hierarchy = Hierarchy(nodes)
    box = hierarchy.boxes["m"]
    lost = lost_exits(hierarchy, read_scene(hierarchy, box))
    assert [glyph.label for glyph in lost] == ["cat"]
    assert not read_levels(hierarchy)[box].keeps_flow()
