"""The two models of a level, by glyphs and by places, foretell the same of the page."""

from random import Random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from scenes import lost_exits, read_scene
from sweeps import counted

from tbscope.page.glyphs import Series
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.level_graph import read_levels

PLAIN, CARDS = ("Add", "Mul"), ("Add", "Add", "NoOp")
CIRCLES = ("Add", "Add", "Mul", "SomeConst", "OneSummary", "NoOp")


def nodes_of(seed, count, ops):
    """Give nodes, many of them alike, in boxes or not, that read some of those before them.

    A card has no edges, and only a card is a `NoOp`.
    """
    random = Random(seed)
    stems = random.choice([("n",), ("n", "a/m"), ("n", "n", "n", "a/", "a/b/n", "c/")])
    # With an `x` behind it, a number folds nothing.
    end, most = random.choice(["", "x"]), random.choice([1, 2, 5])
    hubs, nodes = random.randrange(4), []
    for number in range(count):
        op = random.choice(ops)
        name = f"{random.choice(stems)}{number + random.choice([0] * 9 + [100])}{end}"
        before = [other for other, kind, _ in nodes if kind != "NoOp"]
        inputs = []
        if before and op != "NoOp":
            near = before[:hubs] * 3 + before[-6:]
            inputs = [
                random.choice(["", "", "", "^"]) + random.choice(near)
                for _ in range(random.choice([0, most, most, 9 * (random.random() < 0.2)]))
            ]
        nodes.append((name, op, inputs))
    return nodes


SEEDS, COUNTS = st.integers(0, 10**9), st.integers(1, 40)


def told_by_glyphs(hierarchy, box):
    """Give stacks, lines, doors and what is put aside, as `scenes.py` and `edges.py` have them."""
    scene, doors = read_scene(hierarchy, box), hierarchy.doors
    children = box.children.values()
    return {
        "stacks": {parts(glyph) for glyph in scene.glyphs if isinstance(glyph, Series)},
        "lines": {
            (start.name, end.name): link.data > 0
            for (start, end), link in hierarchy.links(box).items()
        },
        "entered": {child.name for child in children if child in doors.entered},
        "left": {child.name for child in children if child in doors.left},
        "aside": {parts(glyph) for glyph, why in scene.aside.items() if why.startswith("many")},
    }


def told_by_places(box, siblings):
    """Give the same as `siblings.py` has it."""
    names = [child.name for child in box.children.values()]
    stacks = siblings.series()
    folded = {place for stack in stacks for place in stack}
    drawn = [frozenset(names[place] for place in stack) for stack in stacks]
    drawn += [frozenset([name]) for place, name in enumerate(names) if place not in folded]
    return {
        "stacks": set(drawn[: len(stacks)]),
        "lines": {(names[a], names[b]): data for (a, b), data in siblings.links.items()},
        "entered": {names[place] for place in siblings.fed},
        "left": {names[place] for place in siblings.giving},
        "aside": {drawn[place] for place in siblings.grouped(stacks).put_aside()},
    }


def parts(glyph):
    return frozenset(one.name for one in (glyph.members if isinstance(glyph, Series) else [glyph]))


@settings(max_examples=counted(300, 80), deadline=None)
@given(SEEDS, COUNTS, st.sampled_from([PLAIN, CARDS, CIRCLES]))
def test_both_models_tell_the_same_of_any_level(seed, count, ops):
    hierarchy = Hierarchy(nodes_of(seed, count, ops))
    for box, siblings in read_levels(hierarchy, 1).items():
        by_glyphs, by_places = told_by_glyphs(hierarchy, box), told_by_places(box, siblings)
        if box is hierarchy.root:
            # The one sees the sides of boxes, the other the ends of the whole graph, too.
            assert by_places.pop("entered") >= by_glyphs.pop("entered")
            assert by_places.pop("left") >= by_glyphs.pop("left")
        assert by_places == by_glyphs
        for what, found in by_places.items():
            event(f"{what}: {'some' if found else 'none'}")


@settings(max_examples=counted(300, 80), deadline=None)
@given(SEEDS, COUNTS, st.sampled_from([PLAIN, CARDS]))
def test_where_the_flow_is_kept_no_end_of_it_is_lost(seed, count, ops):
    # What hangs on circles alone is cut off, too: `circles.py` draws those as nodes.
    hierarchy = Hierarchy(nodes_of(seed, count, ops))
    for box, siblings in read_levels(hierarchy, 1).items():
        keeps = siblings.grouped(siblings.series()).keeps_flow()
        event(f"kept: {keeps}")
        if keeps:
            scene = read_scene(hierarchy, box)
            joined = {glyph for ends, link in scene.links.items() if link.data for glyph in ends}
            # Numbers do not tell of lines of control that are cut: see `LevelGraph.keeps_flow`.
            assert joined.isdisjoint(lost_exits(hierarchy, scene))


@pytest.mark.parametrize(
    ("circle", "edge", "data"),
    [
        # Of a circle its own edges count, whatever the edge is by which it is read.
        (("a/w", "Const", ["x"]), "a/w", True),
        (("a/w", "Const", ["x"]), "^a/w", True),
        (("a/w", "Const", ["^x"]), "a/w", False),
        (("a/w", "Const", ["^x"]), "^a/w", False),
        # Of a summary icon it is the edge by which it is read.
        (("a/w", "OneSummary", ["x"]), "a/w", True),
        (("a/w", "OneSummary", ["x"]), "^a/w", False),
        (("a/w", "OneSummary", ["^x"]), "a/w", True),
        (("a/w", "OneSummary", ["^x"]), "^a/w", False),
    ],
)
def test_what_is_read_through_a_circle_or_an_icon_is_data_or_not(circle, edge, data):
    hierarchy = Hierarchy([("x", "Op", []), circle, ("a/y", "Op", [edge])])
    x, a = hierarchy.root.children.values()
    (y,) = a.children.values()
    assert hierarchy.links(hierarchy.root)[x, a] == (int(data), int(not data))
    doors = hierarchy.doors
    assert (doors.entered, doors.left) == (({y}, set()) if data else (set(), set()))
    found = read_levels(hierarchy, 1)
    assert found[hierarchy.root].links == {(0, 1): data}
    assert found[a].fed == ({0} if data else set())


def test_what_was_never_reached_is_not_lost_beside_a_card():
    nodes = [("a/x", "Op", ["b/y"]), ("b/y", "Op", ["a/x"]), ("out", "Out", ["a/x"])]
    card = ("net", "NoOp", [])
    for several in (nodes, [card, *nodes]):
        hierarchy = Hierarchy(several)
        assert lost_exits(hierarchy, read_scene(hierarchy, hierarchy.root)) == []
