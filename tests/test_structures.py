"""Structures: which boxes the page holds for equal, beside those that differ by one thing."""

import pytest

from tbscope.page.hierarchy import Hierarchy
from tbscope.page.templates import Structures

BLOCK = (("fc", "Linear", ""), ("act", "Relu", "fc"), ("out", "Linear", "act"))


def boxes(*blocks):
    """Give the nodes of boxes `0`, `1`, ...; what a node reads stands in its own box."""
    return Hierarchy(
        [
            (f"{number}/{name}", op, [f"{number}/{one}" for one in reads.split()])
            for number, block in enumerate(blocks)
            for name, op, reads in block
        ]
    )


def are_equal(first, second):
    hierarchy = boxes(first, second)
    of = Structures(hierarchy).of
    return of[hierarchy.boxes["0"]] is of[hierarchy.boxes["1"]]


def test_names_do_not_count():
    renamed = (("a", "Linear", ""), ("b", "Relu", "a"), ("c", "Linear", "b"))
    assert are_equal(BLOCK, renamed)


@pytest.mark.parametrize(
    "other",
    [
        (("fc", "Linear", ""), ("act", "Gelu", "fc"), ("out", "Linear", "act")),
        (("fc", "Linear", ""), ("act", "Relu", "fc"), ("out", "Linear", "fc")),
        (("fc", "Linear", ""), ("act", "Relu", "fc"), ("out", "Linear", "act fc")),
        (("fc", "Linear", ""), ("act", "Relu", "fc")),
        (("act", "Relu", ""), ("fc", "Linear", "act"), ("out", "Linear", "fc")),
        (("fc/in", "Linear", ""), ("act", "Relu", "fc/in"), ("out", "Linear", "act")),
    ],
)
def test_what_differs_by_a_type_or_a_line_is_another_structure(other):
    assert not are_equal(BLOCK, other)


def test_the_direction_of_lines_counts():
    # As many of each type, in the same order: who reads whom is all that differs.
    first = (("a", "A", ""), ("b", "B", "a"), ("c", "A", ""), ("d", "B", ""))
    turned = (("a", "A", "b"), ("b", "B", ""), ("c", "A", ""), ("d", "B", ""))
    assert not are_equal(first, turned)


def test_neighbours_of_neighbours_count():
    # A path of four, and two pairs that are joined otherwise.
    ring = tuple((f"{at}", "A", f"{(at + 1) % 4}") for at in range(4))
    pairs = (("0", "A", "1"), ("1", "A", "0"), ("2", "A", "3"), ("3", "A", "2"))
    path = tuple((f"{at}", "A", f"{at - 1}" if at else "") for at in range(6))
    branched = tuple(
        (f"{at}", "A", reads) for at, reads in enumerate(["", "0", "1", "2", "2", "0"])
    )
    assert not are_equal(path, branched)
    # Around each alike, the page does not tell them apart either.
    assert are_equal(ring, pairs)


def alike(*reads):
    """Give nodes of one type, each with the places of those that it reads."""
    return tuple(
        (f"{at}_", "A", " ".join(f"{one}_" for one in each)) for at, each in enumerate(reads)
    )


def test_what_is_read_together_counts_and_what_is_read_twice():
    pairs = alike([], [], [0], [1])
    assert are_equal(pairs, alike([], [0], [], [2]))
    # One reads two, one is read by two, and one stands alone.
    assert not are_equal(pairs, alike([], [], [0, 1], []))
    assert not are_equal(pairs, alike([], [], [0], [0]))


def test_chains_are_told_apart_by_where_they_end():
    def chains(*lengths):
        return alike(
            *[
                [sum(lengths[:at]) + step - 1] if step else []
                for at in range(len(lengths))
                for step in range(lengths[at])
            ]
        )

    assert are_equal(chains(5, 7), chains(7, 5))
    assert not are_equal(chains(3, 5), chains(4, 4))
    assert not are_equal(chains(5, 7), chains(6, 6))


def test_the_order_of_lines_does_not_count():
    first = (("a", "A", ""), ("b", "B", ""), ("c", "C", "a b"))
    second = (("a", "A", ""), ("b", "B", ""), ("c", "C", "b a"))
    assert are_equal(first, second)


def test_the_order_of_types_counts():
    first = (("a", "A", ""), ("b", "B", ""))
    assert not are_equal(first, first[::-1])
    # Only where each first appears.
    assert are_equal((*first, ("c", "A", "")), (first[0], ("c", "A", ""), first[1]))


def test_folded_nodes_count_by_their_stacks():
    chained = [(f"n{at}", "A", f"n{at - 1}" if at else "") for at in range(5)]
    apart = [(f"{'abcde'[at]}", "A", "abcde"[at - 1] if at else "") for at in range(5)]
    assert not are_equal(chained, apart)
    assert are_equal(chained[:4], apart[:4])


def test_a_structure_knows_its_size_depth_and_children():
    inner = [
        (f"{at}/{name}", op, f"{at}/{reads}" if reads else "")
        for at in (0, 1)
        for name, op, reads in BLOCK
    ]
    hierarchy = boxes([*inner, ("end", "Add", "0/out 1/out")], BLOCK)
    found = Structures(hierarchy)
    whole, part = (found.of[hierarchy.boxes[name]] for name in ("0", "0/0"))
    assert (whole.depth, whole.size, whole.count) == (2, 7, 1)
    assert (part.depth, part.size, part.count) == (1, 3, 3)
    assert list(whole.children) == [part]
    assert found.all == [whole, part]
    assert part.number < whole.number
    assert part.box is hierarchy.boxes["0/0"]


def test_the_nodes_below_a_box_come_in_the_order_of_the_graph():
    nodes = [("a/c/x", "X", []), ("b", "B", []), ("a/y", "Y", []), ("a/c/z", "Z", [])]
    hierarchy = Hierarchy(nodes)
    below = Structures(hierarchy).items_below(hierarchy.boxes["a"])
    assert [item.name for item in below] == ["a/c/x", "a/y", "a/c/z"]
