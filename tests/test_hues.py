"""Hues: boxes of a backward pass have those of the boxes that they mirror."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_gradients import trained
from test_templates import hues_of, tree
from training_steps import Net, recorded, squares

from tbscope.drawing.classes import mirrored_boxes
from tbscope.drawing.layout import lay_out
from tbscope.drawing.templates import seeds
from tbscope.page.constants import COLOURED_LIMIT, LIBRARY
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.structures import Structures


def colours(found, nodes):
    """Give the hue of each box, by this test's own reading of the page's code.

    Boxes are met in order. Of those that look alike at first glance each kind has a number,
    if they are several, or one is a function.
    """
    hierarchy = Hierarchy([*found, *nodes])
    structures = Structures(hierarchy)
    groups = {}
    for name, box in hierarchy.boxes.items():
        ops = [item.op for item in structures.items_below(box)]
        counts = tuple((op, ops.count(op)) for op in dict.fromkeys(ops))
        depth = max(item.name.count("/") for item in structures.items_below(box)) - name.count("/")
        glance = depth, len(box.children), len(hierarchy.links(box)), counts
        groups.setdefault(glance, []).append(box)
    numbers = {}
    for group in groups.values():
        if len(group) > 1 or (group[0].name.startswith(LIBRARY) and "/" not in group[0].name):
            for box in group:
                numbers.setdefault(structures.of[box], len(numbers))
    found = {name: numbers.get(structures.of[box]) for name, box in hierarchy.boxes.items()}
    return {name: None if number is None else number % 10 for name, number in found.items()}


def step(*kinds, also=()):
    """Give the nodes of two boxes of each kind, and of what mirrors them; and what mirrors what."""
    names = [f"{kind}{copy}" for kind in kinds for copy in "st"]
    nodes = [(f"net/{name}/run", name[:-1], ()) for name in names]
    nodes += [(f"back/net/{name}/fc/run", f"{name[:-1]}_back", ()) for name in names]
    return [*nodes, *also], {f"back/net/{name}": f"net/{name}" for name in names}


def seeded(nodes, mirrored):
    # Seeds are never more than the nodes.
    nodes = [*nodes, *((f"pad/{at}", "pad", ()) for at in range(60))]
    hierarchy = Hierarchy(nodes)
    classes = dict.fromkeys((name for name in hierarchy.boxes if name[-1] in "st"), "Block")
    return colours(seeds(hierarchy, classes, mirrored), nodes)


@pytest.mark.parametrize("kinds", ["a", "ab", "abcdefg", "abcdefghijkl"])
def test_what_mirrors_a_box_has_its_hue_and_others_have_others(kinds):
    nodes, mirrored = step(*kinds)
    hues = seeded(nodes, mirrored)
    for name, other in mirrored.items():
        assert hues[name] == hues[other] is not None
    assert len({hues[f"net/{kind}s"] for kind in kinds[:5]}) == len(kinds[:5])


def test_without_being_told_what_it_mirrors_a_box_has_a_hue_of_its_own():
    nodes, _ = step(*"ab")
    hues = seeded(nodes, {})
    assert hues["back/net/as"] != hues["net/as"] != hues["net/bs"]


def test_what_occurs_once_stays_without_a_hue():
    nodes, mirrored = step("a", also=[("net/one/run", "c", ()), ("back/net/one/run", "d", ())])
    hues = seeded(nodes, {**mirrored, "back/net/one": "net/one"})
    assert hues["net/one"] is hues["back/net/one"] is None
    assert hues["back/net/as"] == hues["net/as"] is not None


def test_what_mirrors_equal_boxes_has_their_hue_though_it_occurs_once():
    nodes, mirrored = step("a")
    # The first layer's input needs no gradient.
    nodes.append(("back/net/at/fc/more", "sum", ()))
    hues = seeded(nodes, mirrored)
    assert hues["back/net/as"] == hues["back/net/at"] == hues["net/as"] is not None


# Two boxes of two nodes each: of equal kinds, or of one kind each.
APART = ("p/x u", "p/y u", "q/x v", "q/y v")
ALIKE = ("p/x u", "p/y v", "q/x u", "q/y v")


def twice(place, lines, change=""):
    """Give two boxes with these nodes in them."""
    read = [line.split() for line in lines]
    return [(f"{place}{copy}/{name}", op + change, ()) for copy in "st" for name, op in read]


def test_structures_that_look_alike_at_first_glance_are_numbered_in_a_row():
    also = [*twice("net/apart", APART), *twice("net/alike", ALIKE)]
    nodes, mirrored = step(*"abc", also=also)
    hues = seeded(nodes, mirrored)
    assert hues["net/aparts"] != hues["net/alikes"]
    for name, other in mirrored.items():
        assert hues[name] == hues[other] is not None


@pytest.mark.parametrize("most", ["k", "l"])
def test_of_those_in_such_a_row_the_most_frequent_one_has_its_hue(most):
    places = {"net/k": APART, "net/l": ALIKE}
    places[f"net/more/{most}"] = places[f"net/{most}"]
    also, told = [], {}
    for place, lines in places.items():
        also += twice(place, [f"x {place[-1]}"]) + twice(f"back/{place}", lines)
        told |= {f"back/{place}{copy}": f"{place}{copy}" for copy in "st"}
    # The hues of the model's have that of another between them.
    nodes, mirrored = step("a", also=also)
    names = sorted(told | mirrored, key=lambda name: "kal".index(name[-2]))
    hues = seeded(nodes, {name: (told | mirrored)[name] for name in names})
    for copy in "st":
        assert hues[f"back/net/{most}{copy}"] == hues[f"net/{most}{copy}"] is not None


def test_where_all_functions_share_a_box_it_has_a_hue_too():
    lines = ["mask Input "]
    for at in range(6):
        lines += [f"b{at}/m/q Linear mask", f"b{at}/m/r relu b{at}/m/q"]
        lines += [f"back/b{at}/m/fc/run back "]
    lines += [f"y{at}. relu b{at}/m/r" for at in range(5)]
    words = [line.split(" ") for line in lines]
    nodes = [(name, op, (source,) if source else ()) for name, op, source in words]
    mirrored = {f"back/b{at}/m": f"b{at}/m" for at in range(6)}
    found = seeds(Hierarchy(nodes), {}, mirrored)
    assert {seed.name.split("/")[0] for seed in found} == {f"{LIBRARY}Classes_template"}
    hues = colours(found, nodes)
    assert hues["back/b0/m"] == hues["b0/m"] is not None


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=12))
def test_the_hues_of_random_blocks_are_those_of_what_they_mirror(kinds):
    # One after the other, so that some occur once.
    nodes = [(f"net/{at}/run", kind, ()) for at, kind in enumerate(kinds)]
    nodes += [(f"back/net/{at}/fc/run", f"{kind}_back", ()) for at, kind in enumerate(kinds)]
    hues = seeded(nodes, {f"back/net/{at}": f"net/{at}" for at in range(len(kinds))})
    for at, kind in enumerate(kinds):
        assert (hues[f"net/{at}"] is None) == (kinds.count(kind) == 1)
        if kinds.count(kind) > 1:
            assert hues[f"back/net/{at}"] == hues[f"net/{at}"]


def test_a_graph_with_colours_keeps_them_though_no_room_is_left_for_hues():
    nodes, mirrored = step("a")
    left = COLOURED_LIMIT - len(nodes)
    for spare, alike in ((left - 40, True), (left - 10, False)):
        whole = [*nodes, *((f"x{at}", "x", ()) for at in range(spare))]
        found = seeds(Hierarchy(whole), {}, mirrored)
        assert len(whole) + len(found) <= COLOURED_LIMIT
        assert any(seed.op.startswith("Hue") for seed in found) is alike


def test_boxes_of_the_model_mirror_nothing():
    names = lay_out(recorded(Net(), squares)).boxes
    assert mirrored_boxes(names)["gradients/Net/blocks/1"] == "Net/blocks/1"
    assert set(mirrored_boxes(names)) <= {name for name in names.values() if "gradients/" in name}
    plain = {scope: name for scope, name in names.items() if scope.phase == "forward"}
    assert mirrored_boxes(plain) == {}


def test_boxes_of_an_optimizer_mirror_nothing():
    names = lay_out(recorded(Net(), partial(trained, foreach=False))).boxes
    assert any(name.startswith("optimizer/") for name in names.values())
    assert not any(name.startswith("optimizer/") for name in mirrored_boxes(names))


def test_hues_of_a_graph_without_gradients_are_as_ever():
    nodes = [f"h/{at}/k{kind}/x op{kind}" for at in range(2) for kind in range(12)]
    assert seeds(tree(*nodes), {}) == seeds(tree(*nodes), {}, {})
    assert len(hues_of(seeds(tree(*nodes), {}))) == 12
