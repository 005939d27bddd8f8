"""The summary of a graph that no module tells of: its parameters are counted as nodes."""

import pytest
import torch
import torch.utils.tensorboard
from build import GraphBuilder
from cli_runs import tbscope as command

import tbscope

EMPTY = GraphBuilder("Net").graph


def model():
    layers = torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.ReLU()
    return torch.nn.Sequential(*layers).requires_grad_(True)


@pytest.fixture
def drawn():
    """The drawing of a model as a GraphDef, read again."""
    graph = tbscope.trace(model(), torch.rand(2, 3))
    return tbscope.from_graph_def(tbscope.to_graph_def(graph))


@pytest.fixture
def torchs(tmp_path):
    """The directory of a log that torch wrote."""
    with torch.utils.tensorboard.SummaryWriter(tmp_path / "log") as writer:
        writer.add_graph(model().eval(), torch.rand(2, 3))
    return tmp_path / "log"


def footer(graph):
    return dict(graph.summary().footer)


def test_parameters_and_buffers_of_a_graph_def_are_counted_by_their_nodes(drawn):
    summary = drawn.summary()
    assert dict(summary.footer)["Parameters"] == "30 (120 B), all trainable"
    assert dict(summary.footer)["Buffers"] == "10 (40 B)"
    assert [row["parameters"] for row in summary.rows] == [30, 20, 10, 0]
    assert [row["own_parameters"] for row in summary.rows] == [0, 20, 10, 0]
    assert [row["share"] for row in summary.rows] == [1, 2 / 3, 1 / 3, 0]


def test_the_counts_of_a_drawing_have_the_flops_that_it_tells(drawn, tmp_path):
    tbscope.trace(model(), torch.rand(2, 3)).save(tmp_path / "net.pb")
    told = command("stats", str(tmp_path / "net.pb")).stdout
    assert "Op           Count  FLOPs\n" in told
    assert "Linear           1     60\n" in told
    assert "ReLU             1\n" in told


@pytest.mark.parametrize("shape", [None, (None, 3)])
def test_a_parameter_of_unknown_size_counts_nothing(drawn, shape):
    drawn.find("0.weight").outputs[0].shape = shape
    assert footer(drawn)["Parameters"] == "15 (60 B), all trainable"
    assert [row["parameters"] for row in drawn.summary().rows] == [15, 5, 10, 0]


def test_a_parameter_beside_the_only_scope_of_a_graph_is_counted():
    build = GraphBuilder("Net")
    weight = build.parameter("weight", (3,))
    y = build.op("mul", build.input("x", (3,)), weight, scope=build.scope("Net/Block[block]"))
    build.output("out", y)
    assert footer(build.graph)["Parameters"].startswith("3 (12 B)")


def test_a_log_without_sizes_says_nothing_of_parameters(torchs):
    summary = tbscope.load(torchs).summary()
    assert summary.footer == []
    assert {row["parameters"] for row in summary.rows} == {0}
    assert "Parameters" not in str(summary).splitlines()[0]
    told = command("stats", str(torchs)).stdout
    assert "\nParameters" not in told
    assert "Op          Count\nbatch_norm      1\n" in told


def test_a_graph_without_parameters_counts_none():
    relu = tbscope.trace(torch.nn.ReLU(), torch.rand(2))
    for graph in (relu, tbscope.from_graph_def(tbscope.to_graph_def(relu)), EMPTY):
        assert footer(graph)["Parameters"] == "0 (0 B)"


def test_a_parameter_that_is_not_said_to_be_trained_is_not(drawn):
    drawn.find("0.bias").attributes["requires_grad"] = False
    assert footer(drawn)["Parameters"] == "30 (120 B), 25 trainable"
    del drawn.find("0.bias").attributes["requires_grad"]
    assert footer(drawn)["Parameters"] == "30 (120 B), 25 trainable"
