"""Levels: the answers from which a viewer draws a picture, held against the picture itself."""

import json

import pytest
import torch
from nasty_models import NASTY
from saved import drawn, nested, net
from torch import nn

import tbscope
from tbscope.page.glyphs import Box
from tbscope.saving.cut import Cut
from tbscope.saving.levels import Levels, Words
from tbscope.saving.picture import picture_of


def answers(levels):
    """Return the levels of all boxes by number, with their words."""
    found = {}
    for number, glyph in enumerate(levels.glyphs):
        if isinstance(glyph, Box):
            words = Words()
            level = json.loads(json.dumps(levels.level(number, words)))
            found[number] = level, list(words.number)
    return found


@pytest.mark.parametrize("name", NASTY)
def test_each_child_of_a_picture_is_in_the_level_of_its_box(name):
    model, given = NASTY[name]
    picture = picture_of(net(model(), *given), kinds=True)
    levels = Levels(picture)
    drawn_once = []
    for number, (level, words) in answers(levels).items():
        box = levels.glyphs[number]
        glyphs = [levels.glyphs[at] for at in level["at"]]
        assert glyphs[: level["children"]] == picture.children(box)
        drawn_once += level["at"][: level["children"]]
        for row, glyph in enumerate(glyphs):
            assert words[level["name"][row]] == glyph.name
            assert words[level["label"][row]] == glyph.label
            assert words[level["class"][row]] == picture.class_of(glyph)
            types = [[n, words[s], words[d]] for n, s, d in level["outputs"][row]]
            told = picture[glyph].outputs
            assert types == [[one.elements, one.size_text, one.dtype] for one in told]
    others = [at for at, glyph in enumerate(levels.glyphs) if at and not is_circle(glyph)]
    assert sorted(drawn_once) == others


def is_circle(glyph):
    return not isinstance(glyph, Box) and glyph.embedded


@pytest.mark.parametrize("name", NASTY)
def test_the_lines_of_all_levels_are_those_of_the_whole_picture(name):
    model, given = NASTY[name]
    picture = picture_of(net(model(), *given))
    levels = Levels(picture)
    whole = {(line.start, line.end): line for line in Cut(picture).lines}
    crossing = set()
    for level, _ in answers(levels).values():
        for kind in ("lines", "entries", "exits"):
            for start, end, waits, types in level[kind]:
                assert types or waits
                crossing.add((levels.glyphs[start], levels.glyphs[end]))
    # With all boxes open, a line has a part in the level of each box that it crosses.
    assert set(whole) <= crossing | {
        (start, end) for start, end in whole if start.box is not end.box
    }
    for (start, end), line in whole.items():
        for glyph, column, ends in ((start, "exits", 1), (end, "entries", 0)):
            if start.box is end.box:
                continue
            box = glyph.box
            if box in around(start) & around(end):
                continue
            number = levels.glyphs.index(box)
            level, words = answers(levels)[number]
            other = levels.glyphs.index(end if ends else start)
            own = levels.glyphs.index(glyph)
            found = [row for row in level[column] if row[ends] == other and row[1 - ends] == own]
            assert len(found) == 1
            assert len(found[0][3]) == len(line.tensors)


def around(glyph):
    """Return the boxes around a glyph."""
    found, box = set(), glyph.box
    while box is not None:
        found.add(box)
        box = box.parent
    return found


def test_a_card_has_the_facts_and_the_neighbours_of_a_node():
    picture = picture_of(nested())
    levels = Levels(picture)
    number = next(at for at, glyph in enumerate(levels.glyphs) if glyph.name == "blocks/1/add")
    words = Words()
    card = levels.card(number, words)
    texts = list(words.number)
    facts = [texts[at] for at in card["facts"]]
    assert dict(zip(facts[::2], facts[1::2], strict=True)) == picture[levels.glyphs[number]].facts
    links = {
        texts[title]: [(texts[name], texts[text]) for _, name, text in zip(*[iter(of)] * 3)]  # noqa: B905
        for title, of in card["links"]
    }
    assert links == {
        "Inputs": [("blocks/0/add", "2×4"), ("blocks/1/relu", "2×4")],
        "Read by": [("out", "2×4")],
    }


def test_the_index_leads_to_where_everything_is_drawn():
    picture = picture_of(nested())
    levels = Levels(picture)
    words = Words()
    index = levels.index(words)
    texts = list(words.number)
    around_of = {
        texts[name]: levels.glyphs[at].name
        for name, at in zip(index["name"], index["around"], strict=True)
        if at >= 0
    }
    assert around_of["blocks/0/fc"] == around_of["blocks/0/fc/weight"] == "blocks/0"
    assert around_of["blocks/0"] == "blocks"
    assert around_of["x"] == ""


def test_circles_that_only_circles_read_end():
    levels = Levels(drawn("a:Op c:Const<-d d:Const<-c"))
    assert len(levels.index(Words())["around"]) == 4


def test_what_a_legend_counts_is_below_the_boxes_that_contain_it():
    picture = picture_of(
        net(nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU())), torch.ones(2))
    )
    levels = Levels(picture)
    words = Words()
    head = levels.head(words)
    texts = list(words.number)
    counted = {texts[one] for one in head["modes"]["class"][::2]}
    below = set()
    for level, own in answers(levels).values():
        below |= {own[one] for one in level["texts"]["class"]}
    assert counted <= below


def test_a_foreign_graph_that_names_what_it_has_not_is_drawn():
    picture = drawn("a:Op<-missing,b@7,b@out@0 b:Op")
    assert [read.source.name for read in picture.reads(picture.items[0])] == ["b", "b"]
    assert Levels(picture).head(Words())["nodes"] == 2


def test_the_head_opens_a_box_that_is_alone():
    head = Levels(drawn("a/b/x:Op a/y:Op")).head(Words())
    assert [level["box"] for level in head["levels"]] == [0, 1]


def test_figures_have_a_title_and_the_largest_at_the_top():
    head = Levels(picture_of(nested())).head(Words())
    assert head["figures"] == {
        "parameter_count": {"title": "parameters", "most": 40},
        "bytes": {"title": "parameter memory", "most": 96},
    }
    assert tbscope.saving.levels.FIGURES.keys() >= head["figures"].keys()
