"""Crowds: which glyphs have so many more lines than the others that they are put aside."""

import pytest

from tbscope.page.series import find_crowded

# Of sixteen glyphs, the lower quartile has one line and the upper one has three.
SPREAD = [1] * 8 + [3] * 7


def crowded(degrees, side, *, data=True):
    """Find the crowded among glyphs of these degrees on one side, all on ends of their own."""
    lines, glyphs = {}, [f"g{at}" for at in range(len(degrees))]
    for glyph, degree in zip(glyphs, degrees, strict=True):
        for at in range(degree):
            # A glyph for each end would join the crowd: the others take turns.
            other = glyphs[(glyphs.index(glyph) + at + 1) % len(glyphs)]
            lines[(other, glyph) if side == "many inputs" else (glyph, other)] = data
    return find_crowded(glyphs, lines)


@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize(("side", "limit"), [("many inputs", 5), ("many readers", 11)])
def test_an_outlier_is_beyond_one_spread_of_inputs_or_four_of_readers(side, limit, data):
    assert crowded([*SPREAD, limit], side, data=data) == set()
    assert crowded([*SPREAD, limit + 1], side, data=data) == {"g15"}


@pytest.mark.parametrize("side", ["many inputs", "many readers"])
def test_four_lines_are_never_many(side):
    assert crowded([0] * 15 + [4], side) == set()
    assert crowded([0] * 15 + [5], side) == {"g15"}


def test_in_a_small_crowd_nothing_stands_out():
    assert crowded([0] * 13 + [9], "many inputs") == set()
    assert crowded([0] * 14 + [9], "many inputs") == {"g14"}


def test_lines_of_control_count_where_there_is_no_data():
    glyphs = list(range(15))
    waits = {(at, 0): False for at in range(1, 10)}
    assert find_crowded(glyphs, waits) == {0}
    assert find_crowded(glyphs, {**waits, (10, 0): True}) == set()
