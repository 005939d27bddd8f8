"""Mending GraphDefs: what a rule finds is gone, or told to be left; what keeps all rules stays."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto.graph_pb2 import GraphDef
from test_lint_edges import PAIRS as EDGES
from test_linter import PAIRS, message
from torch import nn
from torch.utils.tensorboard._pytorch_graph import graph as torch_graph

import tbscope
from tbscope.rules.linter import lint
from tbscope.rules.repair import repair

LEFT = {
    *("empty-graph", "unread-constant", "function-call", "wide-level", "long-chain", "box-cycle"),
    *("false-series", "lost-output", "lone-node", "missing-shape"),
}
"""What only another drawing mends, and shapes that no node around tells."""
BROKEN = [(rule, broken) for rule, (broken, _) in PAIRS.items()]
BROKEN += [(rule, broken) for rule, broken, _ in EDGES]
MENDED = [(rule, broken) for rule, broken in BROKEN if rule not in LEFT]


@pytest.mark.parametrize(
    ("rule", "broken"), MENDED, ids=[f"{at}-{rule}" for at, (rule, _) in enumerate(MENDED)]
)
def test_what_breaks_a_rule_keeps_it_when_it_is_mended(rule, broken):
    before = broken.SerializeToString(deterministic=True)
    mended = repair(broken)
    assert rule in {finding.rule for finding in mended.before}
    assert rule not in {finding.rule for finding in mended.left}
    assert mended.left == lint(mended.graph_def)
    assert broken.SerializeToString(deterministic=True) == before


def test_what_only_another_drawing_mends_is_told_and_left_as_it_is():
    for rule, broken in BROKEN:
        if rule in LEFT - {"unread-constant"}:
            mended = repair(broken)
            assert rule in {finding.rule for finding in mended.left}, rule


def test_what_keeps_every_rule_stays_byte_for_byte():
    for _, kept in PAIRS.values():
        if not lint(kept):
            mended = repair(kept)
            assert mended.graph_def == kept
            assert (mended.before, mended.left, mended.renamed) == ([], [], {})


def test_readers_read_what_was_renamed_under_its_new_name():
    broken = message("a$b In", "x:0 Op a$b", "a_b Op ^x:0 a$b:1")
    mended = repair(broken)
    told = [(node.name, list(node.input)) for node in mended.graph_def.node]
    assert told == [("a_b_2", []), ("x.0", ["a_b_2"]), ("a_b", ["^x.0", "a_b_2:1"])]
    assert mended.renamed == {"a$b": "a_b_2", "x:0": "x.0"}


def test_a_list_of_constants_is_one_of_torchs_constants_and_tells_them():
    broken = message("x In", "a Const", "b prim::Constant", "l prim::ListConstruct a b", "y Op x l")
    broken.node[2].attr["attr"].s = b"{ value : 3}"
    mended = repair(broken).graph_def
    assert [node.name for node in mended.node] == ["x", "l", "y"]
    assert mended.node[1].attr["attr"].s == b"{ value : [a, 3]}"
    # One that another one reads stays, and so does a list of what is computed.
    broken.node.add(name="z", op="Op", input=["a"])
    assert {"a", "l"} < {node.name for node in repair(broken).graph_def.node}
    other = message("x In", "a Const", "l ListConstruct x a", "y Op l")
    assert [node.op for node in repair(other).graph_def.node] == [
        *("In", "Const", "Listconstruct", "Op")
    ]


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 5)
        self.end = nn.LayerNorm((2, 5))
        self.words = nn.Embedding(7, 5)

    def forward(self, x, ids):
        y = self.norm(self.conv(x)).mean((2, 3))
        return {"out": self.end(torch.stack([self.fc(y), self.words(ids)], 1)) * x.size(0)}


def of_torchs():
    inputs = torch.ones(2, 3, 8, 8), torch.arange(2)
    graph_def, _ = torch_graph(Layers().eval(), inputs, use_strict_trace=False)
    return graph_def


def test_a_graph_of_torchs_own_gets_the_shapes_that_its_layers_tell():
    graph_def = of_torchs()
    mended = repair(graph_def)
    assert {finding.severity for finding in mended.left} <= {"warning"}
    told = {}
    for node in mended.graph_def.node:
        listed = node.attr["_output_shapes"].list.shape if "_output_shapes" in node.attr else ()
        told[node.name] = [dim.size for dim in listed[0].dim] if listed else None
    numbers = [node.name for node in mended.graph_def.node if node.op == "aten::size"]
    assert [told[name] for name in numbers] == [[]]
    shapes = {
        name.split("/")[1] + "." + name.split("/")[2]: shape
        for name, shape in told.items()
        if "/weight/" in name or "/bias/" in name
    }
    assert shapes == {
        "Conv2d[conv].weight": [4, -1, -1, -1],
        "Conv2d[conv].bias": [4],
        "BatchNorm2d[norm].weight": [4],
        "BatchNorm2d[norm].bias": [4],
        "Linear[fc].weight": [5, 4],
        "Linear[fc].bias": [5],
        "LayerNorm[end].weight": [2, 5],
        "LayerNorm[end].bias": [2, 5],
        "Embedding[words].weight": [-1, 5],
    }


def test_a_mended_graph_of_torchs_own_is_read_with_the_same_operations():
    graph_def = of_torchs()
    before = tbscope.from_graph_def(graph_def)
    after = tbscope.from_graph_def(repair(graph_def).graph_def)
    lines = [
        [line.split(" = ")[-1] for line in str(graph).splitlines()] for graph in (before, after)
    ]
    assert lines[0] == lines[1]


NAMES = st.text("ab/:^$ é\n\0", max_size=6)
OPS = st.sampled_from(
    ["Op", "Const", "ListConstruct", "XSummary", "NoOp", "Assign", "valueOf", "é"]
)
NODES = st.lists(st.tuples(NAMES, OPS, st.lists(NAMES, max_size=3)), max_size=8)


@given(NODES)
def test_any_graph_def_is_mended_and_mending_it_again_changes_nothing(nodes):
    broken = GraphDef()
    for name, op, inputs in nodes:
        broken.node.add(name=name, op=op, input=inputs)
    mended = repair(broken)
    assert {finding.rule for finding in mended.left} <= LEFT
    assert repair(mended.graph_def).graph_def == mended.graph_def
