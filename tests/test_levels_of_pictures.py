"""Levels: the answers from which a viewer draws a picture, held against the picture itself."""

import json
from collections import Counter
from itertools import pairwise

import pytest
import torch
from nasty_models import NASTY
from saved import drawn, nested, net
from test_rank_figures import pipeline, with_modules
from torch import nn

import tbscope
from tbscope.page.glyphs import Box
from tbscope.saving.box_tree import picture_of
from tbscope.saving.levels import Levels, Words, figure_by_names


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
    picture = picture_of(net(model(), *given))
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
            told = picture.outputs(glyph)
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
    assert dict(zip(facts[::2], facts[1::2], strict=True)) == picture.facts(levels.glyphs[number])
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
    assert folds(Flat(names="layer{}")) == [("layer0-29", "Sequential × 30", 30)]


def test_a_short_level_has_its_blocks_side_by_side():
    assert folds(Flat(12)) == []


def test_a_period_of_several_layers_is_one_block():
    flat = nn.Sequential(*[one for _ in range(15) for one in (nn.Linear(4, 4), nn.ReLU())])
    assert folds(flat) == [("0-29", "Linear, ReLU × 15", 30)]


def test_a_block_of_two_names_is_labelled_by_the_first_and_the_last():
    flat = nn.Sequential()
    for at in range(15):
        flat.add_module(f"{at}", nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
        flat.add_module(f"out_{at}", nn.Sequential(nn.Linear(4, 4)))
    ((label, _, count),) = folds(flat)
    assert (label.rpartition("/")[2], count) == ("0-out_14", 30)


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
    assert picture.figure(box, "parameter_count") == 30 * 20
    assert picture.figure(picture.root, "parameter_count") == 31 * 20


def test_figures_have_a_title_and_the_largest_at_the_top():
    head = Levels(picture_of(nested())).head(Words())
    assert head["figures"] == {
        "parameter_count": {"title": "parameters", "most": 40},
        "bytes": {"title": "parameter memory", "most": 96},
    }
    assert tbscope.saving.levels.FIGURES.keys() >= head["figures"].keys()


# -- words and numbers ------------------------------------------------------------------------


def texts(graph, mode):
    """Return the texts of a graph in a mode, by the names of nodes and boxes."""
    picture = picture_of(graph)
    levels = Levels(picture)
    found = {}
    for level, words in answers(levels).values():
        column = level["texts"].get(mode, [])
        for name, text in zip(level["name"], column, strict=False):
            if words[text]:
                found[words[name]] = words[text]
    return found


def legend_of(graph, mode):
    """Return the legend of a graph in a mode."""
    words = Words()
    numbers = Levels(picture_of(graph)).head(words)["modes"].get(mode, [])
    known = list(words.number)
    return [known[one] for one in numbers[::2]]


def layers(*sizes):
    return nn.Sequential(*[nn.Linear(*pair) for pair in pairwise(sizes)])


def test_both_networks_of_a_gan_are_forward_and_what_reads_them_is_loss():
    maker, judge = layers(2, 3), layers(3, 1)
    optimizer = torch.optim.SGD(maker.parameters(), lr=0.1)
    with tbscope.record(maker, judge) as recording:
        fake = maker(torch.ones(5, 2))
        nn.functional.softplus(judge(fake.detach())).mean().backward()
        nn.functional.softplus(-judge(fake)).mean().backward()
        optimizer.step()
    found = texts(recording.graph, "stage")
    tops = {name: text for name, text in found.items() if "/" not in name}
    assert {tops.pop(name) for name in ("Sequential", "Sequential.2nd")} == {"forward"}
    assert tops == {
        **dict.fromkeys(("softplus", "mean", "softplus.2nd", "mean.2nd", "neg"), "loss"),
        **dict.fromkeys(("gradients", "gradients.2nd"), "backward"),
        **dict.fromkeys(("ones", "Sequential.3rd"), "forward"),
        "optimizer": "optimizer",
    }
    assert legend_of(recording.graph, "stage") == ["forward", "loss", "backward", "optimizer"]


def test_weights_that_a_step_inside_of_a_step_makes_are_forward():
    model = layers(3, 2)
    with tbscope.record(model) as recording:
        loss = model(torch.ones(5, 3)).mean()
        named = dict(model.named_parameters())
        gradients = torch.autograd.grad(loss, list(named.values()), create_graph=True)
        fast = {
            name: weight - 0.1 * gradient
            for (name, weight), gradient in zip(named.items(), gradients, strict=True)
        }
        torch.func.functional_call(model, fast, (torch.ones(5, 3),)).mean().backward()
    found = texts(recording.graph, "stage")
    assert {text for name, text in found.items() if "sub" in name} == {"forward"}
    assert {text for name, text in found.items() if name.startswith("mean")} == {"loss"}


def test_a_box_of_several_stages_has_no_text():
    model = layers(3, 1)
    with tbscope.record(model) as recording:
        for _ in range(2):
            with tbscope.scope("step"):
                model(torch.ones(2, 3)).mean().backward()
    found = texts(recording.graph, "stage")
    assert "step" not in found
    assert (found["step/mean"], found["step/gradients"]) == ("loss", "backward")


def test_a_box_has_the_structures_of_all_boxes_in_it():
    part = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Tanh())
    levels = Levels(picture_of(net(nn.Sequential(part, nn.Tanh()), torch.ones(1, 2)), root=True))
    found = {}
    for level, words in answers(levels).values():
        for at, name in enumerate(level["name"]):
            found[words[name]] = level["structure"][at], level["same"][at]
    outer, middle, inner = (
        found[name] for name in ("Sequential", "Sequential/0", "Sequential/0/0")
    )
    assert outer[1] == sorted([middle[0], inner[0]])
    assert middle[1] == [inner[0]]
    assert inner[1] == []


class Slope(nn.Module):
    """Gives the slope of a network."""

    def __init__(self):
        super().__init__()
        self.net = layers(3, 1)

    def forward(self, x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(self.net(x).sum(), x, create_graph=True)[0]


def test_what_a_part_of_a_model_differentiates_is_forward():
    model = nn.Sequential(Slope(), nn.Linear(3, 1))
    with tbscope.record(model) as recording:
        model(torch.ones(2, 3)).mean().backward()
    found = texts(recording.graph, "stage")
    assert found["Sequential/0/gradients"] == found["Sequential/0/gradients/net"] == "forward"
    assert found["gradients"] == "backward"


def test_parts_of_a_model_that_are_called_like_stages_are_none():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.optimizer, self.gradients = layers(3, 3, 3), layers(3, 3, 3)

        def forward(self, x):
            return self.gradients(self.optimizer(x)).sum()

    assert texts(net(Own(), torch.ones(2, 3)), "stage") == {}


def test_ranks_are_words_of_nodes_and_of_boxes_that_only_they_run():
    graph = tbscope.merge_ranks([with_modules(graph) for graph in pipeline()])
    found = texts(graph, "rank")
    assert found["stage_0"] == found["stage_0/Net/0"] == "rank 0"
    assert found["stage_2"] == "rank 2"
    assert legend_of(graph, "rank") == ["rank 0", "rank 1", "rank 2"]
    assert texts(graph, "device")["stage_1/Net/1"] == "rank 1 cpu"
    assert texts(nested(), "rank") == {}


def test_what_is_learnt_is_told_of_modules_and_parameters():
    model = nn.Sequential(layers(2, 3, 2), nn.Linear(2, 1), nn.ReLU())
    model[0][0].requires_grad_(False)
    found = texts(net(model, torch.ones(1, 2)), "trainable")
    found = {name.removeprefix("Sequential/"): text for name, text in found.items()}
    assert found["0"] == "partly trainable"
    assert found["0/0"] == found["0/0/weight"] == "frozen"
    assert found["0/1"] == found["1"] == found["1/bias"] == "trainable"
    assert "2" not in found
    assert "trainable" not in Levels(drawn("a:Op b:Op<-a")).head(Words())["modes"]


def test_the_bytes_of_results_are_counted_when_they_are_asked_for():
    levels = Levels(picture_of(nested()))
    (figure,) = levels.asked("activation_bytes")
    by_name = {
        levels.glyphs[at].name: number
        for at, number in zip(figure["at"], figure["numbers"], strict=True)
    }
    # Three results of 2 × 4 floats in each block.
    assert by_name["blocks/0/fc"] == 32
    assert by_name["blocks/0"] == 96
    assert by_name[""] == by_name["blocks"] == figure["most"] == 192
    assert "x" not in by_name


def test_numbers_of_another_drawing_are_found_with_a_box_around_all_or_without():
    with_box, without = drawn("Net/a:Op Net/b:Op x:Input"), drawn("a:Op b:Op x:Input")
    for picture, numbers in (
        (with_box, {"a": 1, "b": 2}),
        (without, {"Net/a": 1, "Net/b": 2}),
        (without, {"a": 1, "b": 2, "other": 3}),
    ):
        figure = figure_by_names(picture, "key", "title", numbers)
        assert {glyph.label: number for glyph, number in figure.numbers.items()} == {
            "a": 1,
            "b": 2,
        }
    assert figure_by_names(without, "key", "title", {"c": 1}) is None


def test_classes_of_the_first_look_have_the_first_colours():
    words = Words()
    numbers = Levels(picture_of(nested())).head(words)["modes"]["class"]
    texts = [[*words.number][number] for number in numbers[::2]]
    assert {*texts[:3]} == {"Input", "Sequential", "Output"}
    assert "Linear" in texts[3:]
