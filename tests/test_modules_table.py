"""The answers behind the panels: the table of modules, and the lists of a graph's record."""

import json
import math

import pytest
import torch
from build import GraphBuilder
from log_files import graph_def
from nasty_models import NASTY
from saved import drawn, nested, net
from torch import nn

import tbscope
from tbscope.graphdef.attr_bytes import key_by_worth
from tbscope.ir.graph import Note
from tbscope.plugin.graphs import picture_of_bytes
from tbscope.saving.box_tree import picture_of
from tbscope.saving.html import module_table, record_lists
from tbscope.saving.levels import Levels, Words


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.fc(x)) + x, x.sum()


class Shared(nn.Module):
    """One module under two names, one that is called twice, and frozen parameters."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(8, 2)
        self.same = self.head
        self.layers[0].fc.weight.requires_grad_(False)
        for parameter in self.layers[1].parameters():
            parameter.requires_grad_(False)

    def forward(self, x):
        for layer in self.layers:
            x, _ = layer(x)
        again, _ = self.layers[0](x)
        return {"logits": self.head(x), "again": self.same(again)}


class Tied(nn.Module):
    """Two modules with one parameter."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.inner(self.embed(ids)))


def flat(times):
    return nn.Sequential(*[one for _ in range(times) for one in (nn.Linear(4, 4), nn.ReLU())])


X = torch.ones(2, 8)
MODELS = {
    "shared": (Shared, (X,)),
    "tied": (Tied, (torch.ones(1, 3, dtype=torch.long),)),
    "flat": (lambda: flat(15), (torch.ones(1, 4),)),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2)
        ),
        (torch.ones(2, 3, 4, 4),),
    ),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16), (torch.ones(3, 1, 8),)),
    "leaf": (lambda: nn.Linear(8, 2), (X,)),
}


def rows_of(levels):
    """Return the rows of the table, each as a mapping."""
    words = Words()
    table = json.loads(json.dumps(module_table(levels, words)))
    texts = list(words.number)
    return table["of"], [
        {
            "at": at,
            "depth": table["depth"][row],
            **{key: texts[table[key][row]] for key in ("name", "class", "output")},
            **{key: column[row] for key, column in table["numbers"].items()},
        }
        for row, at in enumerate(table["at"])
    ]


@pytest.mark.parametrize("name", MODELS)
def test_the_table_agrees_with_the_summary(name):
    model, given = MODELS[name]
    graph = tbscope.trace(model(), given)
    levels = Levels(picture_of(graph))
    _, rows = rows_of(levels)
    calls = {}
    for row in rows:
        facts = levels.picture.facts(levels.glyphs[row["at"]])
        calls.setdefault(facts.get("module", ""), []).append(row)
    told = {row["name"]: row for row in graph.summary().rows if row["kind"] == "module"}
    assert calls.keys() == told.keys()
    for module, row in told.items():
        assert len(calls[module]) == row["calls"]
        for call in calls[module]:
            assert call["class"] == row["class"]
            assert (call.get("parameter_count") or 0) == row["parameters"]
            assert (call.get("trainable_parameter_count") or 0) == row["trainable_parameters"]
        assert sum(call.get("flops") or 0 for call in calls[module]) == (row["flops"] or 0)


def test_rows_are_a_tree_in_the_order_of_the_calls():
    _, rows = rows_of(Levels(picture_of(net(Shared(), X))))
    assert [(row["depth"], row["name"]) for row in rows] == [
        (0, ""),
        (1, "layers/0"),
        (2, "layers/0/fc"),
        (2, "layers/0/act"),
        (1, "layers/1"),
        (2, "layers/1/fc"),
        (2, "layers/1/act"),
        (1, "layers/2"),
        (2, "layers/2/fc"),
        (2, "layers/2/act"),
        (1, "layers/0.2nd"),
        (2, "layers/0.2nd/fc"),
        (2, "layers/0.2nd/act"),
        (1, "head"),
        (1, "head.2nd"),
    ]


def test_outputs_are_sizes():
    _, rows = rows_of(Levels(picture_of(net(Shared(), X))))
    outputs = {row["name"]: row["output"] for row in rows}
    assert outputs[""] == "{logits: 2×2, again: 2×2}"
    assert outputs["layers/0"] == "(2×8, scalar)"
    assert outputs["head"] == "2×2"


def test_the_modules_in_a_box_of_equal_blocks_have_rows_and_the_box_has_none():
    levels = Levels(picture_of(net(flat(15), torch.ones(1, 4))))
    assert any(levels.picture.repeats(box) for box in levels.picture.boxes)
    _, rows = rows_of(levels)
    assert [row["name"] for row in rows] == ["", *map(str, range(30))]
    assert {row["depth"] for row in rows[1:]} == {1}


@pytest.mark.parametrize("name", NASTY)
def test_each_call_of_a_module_that_is_drawn_has_one_row(name):
    model, given = NASTY[name]
    levels = Levels(picture_of(net(model(), *given)))
    _, rows = rows_of(levels)
    facts = [levels.picture.facts(glyph) for glyph in levels.glyphs]
    assert sorted(row["at"] for row in rows) == [
        at for at, known in enumerate(facts) if "class" in known
    ]


def test_a_log_without_classes_has_its_boxes_in_the_table():
    of, rows = rows_of(Levels(drawn("a/b/x:Op a/y:Op z:Op<-a/y")))
    assert of == "boxes"
    assert [(row["depth"], row["name"], row["inside"]) for row in rows] == [
        (0, "a", 2),
        (1, "a/b", 1),
    ]
    assert rows_of(Levels(drawn("x:Op"))) == ("boxes", [])


@pytest.mark.parametrize(("text", "number"), [("9" * 900, None), ("many", None), ("7", 7)])
def test_a_number_that_is_none_is_left_out(text, number):
    message = tbscope.to_graph_def(net(nn.Linear(8, 2), X))
    node = next(node for node in message.node if node.op == "Linear")
    node.attr[key_by_worth("trainable_parameter_count")].s = text.encode()
    _, rows = rows_of(Levels(picture_of_bytes("", message.SerializeToString())))
    assert rows[-1]["parameter_count"] == 18
    assert rows[-1]["trainable_parameter_count"] == number


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_does_not_have_is_none(number):
    message = graph_def("a/x: Op()", "a/y: Op()")
    message.node[0].attr["flops"].f = number
    message.node[1].attr["flops"].f = 2.0
    _, rows = rows_of(Levels(picture_of_bytes("", message.SerializeToString())))
    assert [row["flops"] for row in rows] == [2.0]


# -- the record -------------------------------------------------------------------------------


def lists_of(graph, levels=None):
    """Return the notes, and the head, the body and the uses of each function."""
    words = Words()
    levels = levels or Levels(picture_of(graph))
    told = json.loads(json.dumps(record_lists(levels, graph, words)))
    texts = list(words.number)
    functions = [
        (
            texts[head],
            texts[body],
            [(at, texts[name]) for at, name in zip(uses[::2], uses[1::2], strict=True)],
        )
        for head, body, uses in zip(told["heads"], told["bodies"], told["uses"], strict=True)
    ]
    return [texts[note] for note in told["notes"]], functions, levels


def test_functions_are_printed_as_the_library_prints_them():
    graph = net(Shared(), X)
    _, functions, _ = lists_of(graph)
    for definition, (head, body, uses) in zip(graph.functions(), functions, strict=True):
        count = f"{len(uses)} {'use' if len(uses) == 1 else 'uses'}"
        assert str(definition) == f"{head}:  # {count}\n{body}"


def test_the_uses_of_a_function_are_boxes_and_nodes_of_the_picture():
    graph = net(Shared(), X)
    _, functions, levels = lists_of(graph)
    uses = {head.partition("(")[0]: uses for head, _, uses in functions}
    assert [name for _, name in uses["Block"]] == [
        "layers/0",
        "layers/1",
        "layers/2",
        "layers/0.2nd",
    ]
    assert [name for _, name in uses["Shared"]] == ["Shared"]
    for found in uses.values():
        for at, name in found:
            assert levels.glyphs[at].name == name or (at, name) == (0, "Shared")


def test_a_use_that_the_picture_does_not_show_has_its_scope_for_a_name():
    graph = net(Shared(), X)
    whole = Levels(picture_of(graph, cards=False, leaves="box"))
    _, functions, _ = lists_of(graph, whole)
    blocks = next(uses for head, _, uses in functions if head.startswith("Block"))
    assert blocks[0] == (-1, "Shared/ModuleList[layers]/Block[0]")
    assert len(blocks) == 4


def test_notes_are_listed_once():
    graph = nested()
    graph.notes += [Note("the same"), Note("the same"), Note("another")]
    assert lists_of(graph)[0] == ["the same", "another"]


def test_a_graph_without_modules_has_no_functions():
    build = GraphBuilder("Net")
    build.output("out", build.op("abs", build.input("x", (1,))))
    assert lists_of(build.graph)[:2] == ([], [])
