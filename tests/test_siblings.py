"""Siblings: what the page folds, what it puts aside, and what keeps its way through a level."""

import pytest
from chunked import bears_seeds

from tbscope.page.constants import CROWD_SIZE, LIBRARY
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.level_graph import LevelGraph, read_levels


def level(count, edges=(), waits=()):
    """Give so many operations of different types, linked by data, and by waiting."""
    links = {**dict.fromkeys(waits, False), **dict.fromkeys(edges, True)}
    return LevelGraph([f"n{at}_" for at in range(count)], [f"Op{at}" for at in range(count)], links)


def chain(count):
    """Give operations that read one another, the first fed and the last read outside."""
    siblings = level(count, [(at, at + 1) for at in range(count - 1)])
    siblings.fed, siblings.giving = {0}, {count - 1}
    return siblings


def series(labels, op="Relu"):
    return LevelGraph(labels, [op] * len(labels)).series()


def test_five_in_a_row_are_folded_and_four_are_not():
    names = [f"relu_{at}" for at in range(1, 6)]
    assert series(names) == [[0, 1, 2, 3, 4]]
    assert series(names[:4]) == []
    assert series(names, op="") == []


def test_a_number_that_is_left_out_parts_a_series():
    assert series([f"relu{at}" for at in (1, 2, 3, 4, 6)]) == []
    numbers = [9, 8, 7, 6, 5, 3, 2, 1]
    assert series([f"relu{at}" for at in numbers]) == [[4, 3, 2, 1, 0]]


def test_what_has_no_number_is_the_first_of_its_series():
    labels = ["relu", *(f"relu{at}" for at in range(1, 5))]
    assert series(labels) == [[0, 1, 2, 3, 4]]
    assert series(["conv", *labels[1:]]) == []


def test_series_are_of_one_type():
    labels = [f"n{at}" for at in range(10)]
    ops = ["Relu", "Tanh"] * 5
    assert LevelGraph(labels, ops).series() == []
    assert LevelGraph(labels, ["Relu"] * 5 + ["Tanh"] * 5).series() == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9],
    ]


@pytest.mark.parametrize("count", [4, 5])
def test_a_level_is_folded_where_it_has_stacks(count):
    siblings = LevelGraph(["x", *(f"fc{at}" for at in range(count))], ["Add", *["Linear"] * count])
    siblings.links = {(0, 1): True}
    folded = siblings.folded()
    assert (folded is siblings) == (count == 4)
    assert folded.labels == (["", "x"] if count == 5 else siblings.labels)
    assert folded.links == {((1, 0) if count == 5 else (0, 1)): True}


def test_a_group_is_one_box_with_the_lines_of_its_members():
    siblings = level(5, [(0, 1), (1, 2), (3, 4)], waits=[(0, 3)])
    siblings.fed, siblings.giving = {1}, {4}
    drawn = siblings.grouped([[1, 2]])
    assert (drawn.labels, drawn.ops) == (["", "n0_", "n3_", "n4_"], ["", "Op0", "Op3", "Op4"])
    assert drawn.links == {(1, 0): True, (1, 2): False, (2, 3): True}
    assert (drawn.fed, drawn.giving) == ({0}, {3})


@pytest.mark.parametrize("order", [1, -1])
def test_one_line_of_data_makes_a_line_of_data(order):
    links = [((0, 1), True), ((0, 2), False)][::order]
    siblings = LevelGraph(["a", "b", "c"], ["A", "B", "C"], dict(links))
    assert siblings.grouped([[1, 2]]).links == {(1, 0): True}


def test_parts_know_what_enters_and_leaves_them():
    siblings = level(6, [(0, 1), (1, 2), (2, 3), (3, 4)], waits=[(0, 5), (4, 5)])
    siblings.fed, siblings.giving = {0}, {5}
    first, second = siblings.parts([[1, 2], [3, 4, 5]])
    assert (first.labels, first.ops, first.links) == (
        ["n1_", "n2_"],
        ["Op1", "Op2"],
        {(0, 1): True},
    )
    assert (first.fed, first.giving) == ({0}, {1})
    assert second.links == {(0, 1): True, (1, 2): False}
    # What only waits feeds nothing.
    assert (second.fed, second.giving) == ({0}, {2})


def star(count, readers):
    """Give a chain whose first child all of so many others read."""
    siblings = chain(count)
    siblings.links.update(dict.fromkeys([(0, at) for at in range(2, readers + 1)], True))
    return siblings


def test_what_many_read_is_put_aside_from_fifteen_children_on():
    assert star(CROWD_SIZE, 9).put_aside() == {0}
    assert star(CROWD_SIZE - 1, 9).put_aside() == set()


def test_four_readers_are_few_and_five_are_many():
    assert star(20, 4).put_aside() == set()
    assert star(20, 5).put_aside() == {0}


def test_cards_do_not_count_among_the_children():
    siblings = star(CROWD_SIZE, 9)
    siblings.ops[-1] = "NoOp"
    assert siblings.put_aside() == set()


def test_the_line_of_a_card_is_cut_before_others_are_counted():
    siblings = star(CROWD_SIZE + 1, 4)
    siblings.links[0, CROWD_SIZE] = True
    assert siblings.put_aside() == {0}
    siblings.ops[-1] = "NoOp"
    assert siblings.put_aside() == set()


def test_what_reads_many_is_put_aside():
    siblings = chain(20)
    siblings.links.update(dict.fromkeys([(at, 19) for at in range(5)], True))
    assert siblings.put_aside() == {19}


def test_what_is_waited_for_counts_where_no_data_goes():
    waits = [(0, at) for at in range(1, 8)]
    assert level(20, waits=waits).put_aside() == {0}
    # One edge of data hides the others.
    assert level(20, [(0, 8)], waits=waits).put_aside() == set()


def test_a_level_without_outliers_keeps_its_flow():
    assert chain(20).keeps_flow()


def test_the_flow_is_lost_with_what_it_leads_through():
    siblings = chain(20)
    siblings.links.update(dict.fromkeys([(10, at) for at in range(12, 18)], True))
    assert siblings.put_aside() == {10}
    assert not siblings.keeps_flow()


def test_a_mask_that_every_layer_reads_is_not_missed():
    siblings = level(21, [(at, at + 1) for at in range(19)])
    siblings.links.update(dict.fromkeys([(20, at) for at in range(6)], True))
    siblings.fed, siblings.giving = {0, 20}, {19}
    assert siblings.put_aside() == {20}
    assert siblings.keeps_flow()
    # Nor is what makes it, which leads nowhere else.
    siblings.labels.append("maker")
    siblings.ops.append("Maker")
    siblings.links[21, 20] = True
    assert siblings.keeps_flow()


@pytest.mark.parametrize("between", [True, False])
def test_what_stands_between_two_that_are_put_aside_stays(between):
    siblings = level(23, [(at, at + 1) for at in range(19)])
    many = [*((20, at) for at in range(6)), *((at, 21) for at in range(7)), (20, 22), (21, 18)]
    siblings.links.update(dict.fromkeys([*many, *([(22, 21)] if between else [])], True))
    siblings.fed, siblings.giving = {0, 22}, {19, 22}
    assert siblings.put_aside() == {20, 21}
    # What has lines of one kind alone is put aside with those that it leads from or to.
    assert siblings.keeps_flow() == between


def test_what_leads_outside_is_missed():
    siblings = star(20, 9)
    siblings.giving.add(0)
    assert siblings.put_aside() == {0}
    assert not siblings.keeps_flow()


@pytest.mark.parametrize("leads", [True, False])
def test_lines_lead_to_every_end_unless_what_joins_many_is_put_aside(leads):
    siblings = level(20, [(0, at) for at in range(1, 18)] + [(at, 18) for at in range(1, 18)])
    siblings.links[18, 19] = True
    siblings.fed, siblings.giving = {0}, {19}
    assert siblings.lost_ends()
    # With most of them in one box, there are too few shapes to put any aside.
    assert (not siblings.grouped([[*range(1, 15)]] if leads else [[1, 2]]).lost_ends()) is leads


def test_what_lies_on_a_circle_that_nothing_enters_is_no_end_that_is_lost():
    siblings = chain(20)
    siblings.labels += ["hub", "a", "b"]
    siblings.ops += ["Hub", "A", "B"]
    lines = [(20, at) for at in range(1, 8)] + [(21, 22), (22, 21)]
    siblings.links.update(dict.fromkeys(lines, True))
    siblings.giving.add(22)
    assert siblings.put_aside() == {20}
    assert siblings.lost_ends() == set()


def beside_a_hub(leads):
    """Give a chain, and a node beside it that many read and that leads to one of these."""
    siblings = chain(20)
    siblings.labels += ["hub", "given"]
    siblings.ops += ["Hub", "Given"]
    readers = [*range(1, 7), *([21] if leads else [])]
    siblings.links.update(dict.fromkeys([(20, at) for at in readers], True))
    siblings.links[21, 19] = True
    siblings.giving.add(21)
    return siblings


def test_what_is_given_outside_is_an_end_though_others_read_it():
    assert beside_a_hub(leads=False).put_aside() == beside_a_hub(leads=True).put_aside() == {20}
    assert beside_a_hub(leads=False).keeps_flow()
    assert not beside_a_hub(leads=True).keeps_flow()


def test_what_reads_nothing_is_no_end():
    siblings = beside_a_hub(leads=False)
    siblings.giving.add(20)
    assert siblings.keeps_flow()


@pytest.mark.parametrize("data", [True, False])
def test_data_alone_flows(data):
    siblings = chain(20)
    siblings.links.update(dict.fromkeys([(10, at) for at in range(12, 18)], True))
    siblings.links[9, 11] = data
    assert siblings.put_aside() == {10}
    assert siblings.keeps_flow() == data


def test_quarters_are_rounded_as_the_page_rounds_them():
    def read_by_four(count):
        busy = range(count - 4, count)
        return level(count, [(at, end) for end in busy for at in range(5)])

    assert read_by_four(18).put_aside() == set()
    assert read_by_four(19).put_aside() == {15, 16, 17, 18}


# -- levels of a graph ----------------------------------------------------------------------


def listed(count, above=""):
    """Give a chain of nodes."""
    names = [f"{above}n{at}_" for at in range(count)]
    return [(name, f"Op{at}", names[at - 1 : at] if at else []) for at, name in enumerate(names)]


def test_only_boxes_of_many_children_are_looked_at():
    few = Hierarchy([*listed(CROWD_SIZE - 1, "few/"), *listed(CROWD_SIZE, "many/")])
    assert [box.name for box in read_levels(few)] == ["many"]
    assert [box.name for box in read_levels(few, fewest=2)] == ["", "few", "many"]


def test_the_level_of_the_root_knows_its_inputs_and_outputs():
    nodes = [
        ("x", "Input", []),
        ("y", "Input[image]", []),
        *[(name, op, inputs or ["x", "y"]) for name, op, inputs in listed(14)],
        ("lone", "Lone", []),
        ("out", "Output", ["n13_"]),
    ]
    hierarchy = Hierarchy(nodes)
    (found,) = read_levels(hierarchy).values()
    assert found.ends == {0: "Input", 1: "Input", 17: "Output"}
    assert (found.fed, found.giving) == ({0, 1}, {17})
    assert (found.links[0, 2], found.links[15, 17]) == (True, True)


def test_without_inputs_what_reads_nothing_begins_the_flow():
    (found,) = read_levels(Hierarchy(listed(CROWD_SIZE))).values()
    assert (found.ends, found.fed, found.giving) == ({}, {0}, {CROWD_SIZE - 1})


def test_lines_between_boxes_stand_in_the_innermost_one_around_both():
    nodes = [("a/in/x", "X", []), ("a/out/y", "Y", ["a/in/x"]), ("b", "B", ["^a/out/y"])]
    levels = {box.name: found for box, found in read_levels(Hierarchy(nodes), 1).items()}
    assert levels["a"].links == {(0, 1): True}
    assert levels[""].links == {(0, 1): False}
    assert (levels["a/in"].giving, levels["a/out"].fed) == ({0}, {0})
    # Nothing waits inside for what only waits outside.
    assert (levels["a"].giving, levels["a/out"].giving) == (set(), set())


def test_what_an_embedded_node_reads_is_read_by_its_reader():
    nodes = [("a", "A", []), ("c", "Const", ["a"]), ("b", "B", ["c"]), ("d", "D", ["a", "^b"])]
    (found,) = read_levels(Hierarchy(nodes), 1).values()
    assert found.labels == ["a", "b", "d"]
    assert found.links == {(0, 1): True, (0, 2): True, (1, 2): False}


def test_what_only_waits_in_a_box_feeds_it_nothing():
    nodes = [("a", "A", []), ("b/x", "X", ["^a"]), ("c/y", "Y", ["a"])]
    levels = {box.name: found for box, found in read_levels(Hierarchy(nodes), 1).items()}
    assert (levels["b"].fed, levels["c"].fed) == (set(), {0})


def test_a_node_that_reads_itself_through_an_embedded_one_has_no_line():
    (found,) = read_levels(Hierarchy([("c", "Const", ["b"]), ("b", "B", ["c"])]), 1).values()
    assert found.links == {}


def test_what_is_folded_counts_as_one_beside_seeds():
    readers = [(f"relu_{at}", "Relu", ["n3_"]) for at in range(6)]
    nodes = [*listed(7), *readers, ("out", "Output", ["n6_"])]
    assert bears_seeds(Hierarchy(nodes), 20)
    apart = [(name, f"{op}{at}", inputs) for at, (name, op, inputs) in enumerate(readers)]
    assert not bears_seeds(Hierarchy([*listed(7), *apart, nodes[-1]]), 20)


def test_seeds_are_borne_where_they_put_nothing_aside_that_matters():
    chained = listed(7)
    readers = [(f"r{at}", f"R{at}", ["n3_"]) for at in range(5)]
    ends = [("out", "Output", ["n6_"])]
    plain, busy = Hierarchy([*chained, *ends]), Hierarchy([*chained, *readers, *ends])
    assert bears_seeds(plain, 50)
    # 13 children: with two more, one that six read stands out.
    assert bears_seeds(busy, 1)
    assert not bears_seeds(busy, 2)


def test_boxes_that_nobody_links_change_neither_stacks_nor_lines():
    nodes = [*listed(7), *[(f"r{at}", "R", ["n3_"]) for at in range(6)], ("b/x", "X", ["n3_"])]
    (level, *_) = read_levels(Hierarchy(nodes), 1).values()
    more = level.with_boxes(3)
    assert more.labels[-3:] == [f"{LIBRARY}{at}" for at in range(3)]
    assert len(more) == len(level) + 3 == len(more.ops)
    assert more.series() == level.series() == LevelGraph(more.labels, more.ops).series() != []
    assert (more.links, more.fed, more.giving) == (level.links, level.fed, level.giving)


@pytest.mark.parametrize("count", [20, 0])
def test_seeds_are_borne_alike_by_a_level_that_was_read_before(count):
    nodes = [*listed(7), *[(f"r{at}", f"R{at}", ["n3_"]) for at in range(6)]]
    hierarchy = Hierarchy([*nodes, ("out", "Output", ["n6_"])])
    known = read_levels(hierarchy, 1)[hierarchy.root].with_boxes(count)
    assert known.folded().keeps_flow() == bears_seeds(hierarchy, count)
    assert not bears_seeds(hierarchy, 20)
