"""Levels: the answers from which a viewer draws a picture, held against the picture itself."""

import json
from collections import Counter

import pytest
import torch
from nasty_models import NASTY
from saved import drawn, nested, net
from torch import nn

import tbscope
from tbscope.page.glyphs import Box
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
    lines, entries, exits = Counter(), Counter(), Counter()
    for item in picture.items:
        if item.embedded:
            continue
        edges = {(read.source, read.output) for read in picture.flow(item) if not read.waits}
        for source, output in edges:
            left, entered = way_out(source), way_out(item)
            (common, start), (_, end) = next(
                (one, other) for one in left for other in entered if one[0] is other[0]
            )
            lines[common, start, end, source, output] = 1
            for box, child in left[: left.index((common, start))]:
                exits[box, child, item, source, output] = 1
            for box, child in entered[: entered.index((common, end))]:
                entries[box, source, child, source, output] = 1
    for kind, expected in (("lines", lines), ("entries", entries), ("exits", exits)):
        counts = Counter({key[:3]: 0 for key in expected})
        for box, start, end, *_ in expected:
            counts[box, start, end] += 1
        found = {
            (levels.glyphs[number], levels.glyphs[row[0]], levels.glyphs[row[1]]): len(row[3])
            for number, (level, _) in answers(levels).items()
            for row in level[kind]
            if row[3]
        }
        assert found == dict(counts)


def way_out(glyph):
    """Return each box around a glyph, the innermost first, with its child on the way."""
    way, box = [], glyph.box
    while box is not None:
        way.append((box, glyph))
        glyph, box = box, box.parent
    return way


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


class Flat(nn.Module):
    """Equal layers in a list, between others."""

    def __init__(self, times=30, *, names="{}"):
        super().__init__()
        self.first = nn.Linear(4, 4)
        for at in range(times):
            self.add_module(names.format(at), nn.Sequential(nn.Linear(4, 4), nn.ReLU()))

    def forward(self, x):
        for layer in self.children():
            x = layer(x)
        return x


def folds(model):
    picture = picture_of(net(model, torch.ones(1, 4)))
    Levels(picture)
    boxes = [box for box in picture.boxes if picture.repeats(box)]
    return [(box.name, picture.second_line(box), len(box.children)) for box in boxes]


def test_a_run_of_equal_blocks_on_a_long_level_is_one_box():
    assert folds(Flat()) == [("Flat/0-29", "Sequential × 30", 30)]
    assert folds(Flat(names="layer{}")) == [("layer0-layer29", "Sequential × 30", 30)]


def test_a_short_level_has_its_blocks_side_by_side():
    assert folds(Flat(12)) == []


def test_a_period_of_several_layers_is_one_block():
    flat = nn.Sequential(*[one for _ in range(15) for one in (nn.Linear(4, 4), nn.ReLU())])
    assert folds(flat) == [("0-29", "Linear, ReLU × 15", 30)]


def test_blocks_that_their_author_has_named_are_not_one_box():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            for name in "abcdefghijklmnopqrstuvwxyz":
                self.add_module(name, nn.Linear(4, 4))

        def forward(self, x):
            for layer in self.children():
                x = layer(x)
            return x

    assert folds(Named()) == []


def test_a_box_of_equal_blocks_has_the_numbers_of_all():
    picture = picture_of(net(Flat(), torch.ones(1, 4)))
    Levels(picture)
    (box,) = (box for box in picture.boxes if picture.repeats(box))
    assert picture[box].figures["parameter_count"] == 30 * 20
    assert picture[picture.root].figures["parameter_count"] == 31 * 20


def test_figures_have_a_title_and_the_largest_at_the_top():
    head = Levels(picture_of(nested())).head(Words())
    assert head["figures"] == {
        "parameter_count": {"title": "parameters", "most": 40},
        "bytes": {"title": "parameter memory", "most": 96},
    }
    assert tbscope.saving.levels.FIGURES.keys() >= head["figures"].keys()
