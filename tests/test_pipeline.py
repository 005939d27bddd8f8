"""The pipeline: what is checked, what is copied, what comes out."""

import pytest
import torch
from build import GraphBuilder, chain
from torch import nn

import tbscope
from tbscope.errors import ArgumentError, GraphError
from tbscope.formats.json import graph_to_json
from tbscope.ir.graph import Graph
from tbscope.overlays.overlay import make_overlay
from tbscope.pipeline import draw, to_graph_def


class Blocks(nn.Module):
    """Equal blocks, a tied weight, and an operation on a parameter that nothing reads."""

    def __init__(self):
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()) for _ in range(4)]
        self.blocks, self.head, self.tied = nn.Sequential(*blocks), *map(nn.Linear, (4, 4), (4, 4))
        self.tied.weight = self.head.weight

    def forward(self, x):
        torch.cos(self.head.bias)
        return self.tied(self.head(self.blocks(x).abs()))


def test_leaf_modules_are_nodes_unless_boxes_are_asked_for():
    assert {node.op for node in to_graph_def(chain(1)).node} == {
        "Input",
        "ParameterConst",
        "Linear",
        "Output",
        "NoOp",
    }
    assert {node.op for node in to_graph_def(chain(1), leaves="box").node} == {
        "Input",
        "Parameter",
        "linear",
        "Output",
        "NoOp",
    }


def test_the_graph_stays_as_it_was():
    graph = chain(3)
    before = str(graph)
    to_graph_def(graph)
    assert str(graph) == before
    assert {node.kind for node in graph.nodes} == {"input", "parameter", "op"}


@pytest.fixture(scope="module")
def blocks():
    """Give the graph of `Blocks`, with its kernels."""
    return tbscope.trace(Blocks(), torch.rand(2, 4), kernels=True, training=True)


@pytest.mark.parametrize(
    "drawing",
    [
        *({}, {"leaves": "box"}, {"dead": "drop"}, {"hide": ["BatchNorm1d", "abs"]}),
        *({"level": level} for level in ("overview", "module", "aten")),
        *({"color_by": "class"}, {"color_by": lambda node: node.name}),
    ],
)
def test_a_drawing_leaves_what_the_model_holds_as_it_was(blocks, drawing):
    before = graph_to_json(blocks)
    draw(blocks, **drawing)
    assert graph_to_json(blocks) == before
    blocks.verify()


@pytest.mark.parametrize("overlay", ["parameter_bytes", "flops"])
def test_a_drawing_of_figures_leaves_what_the_model_holds_as_it_was(blocks, overlay):
    before = graph_to_json(blocks)
    draw(blocks, make_overlay(blocks, overlay))
    assert graph_to_json(blocks) == before


def test_a_style_names_the_nodes():
    names = [node.name for node in to_graph_def(chain(1), style="torch").node]
    assert names[-3:] == ["Chain/Linear[0]", "out", "Chain/Chain"]


def test_an_empty_graph_gives_an_empty_graph_def():
    assert not to_graph_def(Graph("nothing")).node


def test_a_graph_that_breaks_an_invariant_is_refused():
    graph = chain(1)
    graph.nodes.reverse()
    with pytest.raises(GraphError):
        to_graph_def(graph)


def test_a_broken_graph_is_not_written(tmp_path):
    graph = chain(1)
    graph.nodes.reverse()
    with tbscope.SummaryWriter(tmp_path) as writer:
        for write in (
            lambda: writer.add_graph(graph),
            lambda: writer.add_overlay("flops", graph),
            lambda: graph.save(tmp_path / "graph.html"),
        ):
            with pytest.raises(GraphError):
                write()
    assert not (tmp_path / "graph.html").exists()
    with pytest.raises(ArgumentError, match="no graph"):
        tbscope.load(tmp_path)


def test_a_style_is_checked_before_anything_runs():
    with pytest.raises(ArgumentError, match="no naming style is 'keras'"):
        to_graph_def(GraphBuilder().graph, style="keras")


def test_a_way_to_draw_leaves_that_is_none_is_named():
    with pytest.raises(ArgumentError) as caught:
        to_graph_def(chain(1), leaves="circle")
    assert str(caught.value) == (
        "leaves cannot be 'circle'\n"
        "  why: leaves is 'node' or 'box'\n"
        "  fix: leaves='node', or leave leaves out"
    )


@pytest.mark.parametrize(
    ("option", "fix"),
    [
        ("colour_by", "did you mean 'color_by'?"),
        ("trainng", "did you mean 'training'?"),
        ("training", "give training= to trace or add_graph"),
        ("tag", "give tag= to add_graph"),
        ("xyzzy", "leave xyzzy out"),
    ],
)
def test_an_option_that_is_none_is_named(option, fix):
    with pytest.raises(ArgumentError) as caught:
        to_graph_def(chain(1), **{option: "class"})
    assert str(caught.value) == (
        f"a graph cannot be drawn with {option}=\n"
        "  why: the options of a drawing are style, labels, root, level, leaves, keep, hide, dead, "
        "color_by, templates, cards, helpers\n"
        f"  fix: {fix}"
    )


def varied():
    """Give a graph with a view, an operation that may be hidden, and a dead one."""
    build = GraphBuilder("Net")
    scope = build.call("Net")
    x = build.input("x", (2, 3))
    build.op("exp", x, scope=scope)
    y = build.op("view", x, 6, scope=scope, shape=(6,), role="view")
    build.output("out", build.op("relu", build.op("dropout", y, scope=scope), scope=scope))
    return build.graph


@pytest.mark.parametrize(
    ("drawing", "drawn"),
    [
        ({}, {"exp", "dropout", "relu"}),
        ({"dead": "drop"}, {"dropout", "relu"}),
        ({"keep": ["view"]}, {"exp", "view", "dropout", "relu"}),
        ({"hide": ["dropout"]}, {"exp", "relu"}),
        ({"level": "aten"}, {"exp", "view", "dropout", "relu"}),
        ({"level": "aten", "hide": ["dropout"]}, {"exp", "view", "relu"}),
    ],
)
def test_every_option_of_what_is_drawn_reaches_its_pass(drawing, drawn):
    ops = {node.op for node in to_graph_def(varied(), **drawing).node}
    assert ops & {"exp", "view", "dropout", "relu"} == drawn
