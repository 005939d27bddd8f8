"""The summary of a graph that no module tells of: its parameters are counted as nodes."""

import json

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


def test_what_is_frozen_is_told_as_far_as_the_nodes_tell(drawn):
    drawn.find("0.bias").attributes["requires_grad"] = False
    assert footer(drawn)["Parameters"] == "30 (120 B), 25 trainable"
    del drawn.find("0.bias").attributes["requires_grad"]
    assert footer(drawn)["Parameters"] == "30 (120 B)"
    assert drawn.summary().totals["trainable_parameters"] is None
    assert "Trainable" not in str(drawn.summary())


def test_an_element_type_that_is_not_told_leaves_the_bytes_open(drawn):
    drawn.find("0.bias").outputs[0].dtype = "unknown"
    assert footer(drawn)["Parameters"] == "30, all trainable"
    assert footer(drawn)["Buffers"] == "10"
    totals = drawn.summary().totals
    assert (totals["parameter_bytes"], totals["buffer_bytes"]) == (None, None)


@pytest.mark.parametrize("shape", [None, (None, 3)])
def test_a_size_that_is_not_told_is_no_0(drawn, shape):
    drawn.find("0.weight").outputs[0].shape = shape
    told = "15 (60 B), all trainable, and 1 tensor of unknown size"
    assert footer(drawn)["Parameters"] == told
    drawn.find("0.bias").outputs[0].shape = None
    rows = drawn.summary().rows
    assert [row["parameters"] for row in rows] == [10, None, 10, None]
    assert [row["share"] for row in rows] == [1, None, 1, None]


def test_a_log_of_torchs_tells_how_many_parameters_it_tells_no_size_of(torchs):
    summary = tbscope.load(torchs).summary()
    assert summary.footer == [("Parameters", "4 tensors of unknown size")]
    assert {row["parameters"] for row in summary.rows} == {None}
    names = "parameters", "trainable_parameters", "parameter_bytes", "buffers", "buffer_bytes"
    assert [summary.totals[name] for name in names] == [None] * 5
    assert summary.totals["unsized_parameters"] == 4


def test_the_counts_of_such_a_log_have_no_figure_that_is_not_told(torchs):
    told = command("stats", str(torchs)).stdout
    assert "Parameters  4 tensors of unknown size\n" in told
    assert "Op          Count\nbatch_norm      1\n" in told
    assert told.endswith("ReLU               1      1\nSequential         1      1\n")
    classes = json.loads(command("stats", str(torchs), "--json").stdout)["classes"]
    assert {one["own_parameters"] for one in classes} == {None}


def test_the_counts_of_a_drawing_have_the_flops_that_it_tells(drawn, tmp_path):
    tbscope.trace(model(), torch.rand(2, 3)).save(tmp_path / "net.pb")
    told = command("stats", str(tmp_path / "net.pb")).stdout
    assert "Op           Count  FLOPs\n" in told
    assert "Linear           1     60\n" in told
    assert "ReLU             1\n" in told


def test_calls_without_parameters_tell_of_none_and_a_function_has_none():
    relu = tbscope.trace(torch.nn.ReLU(), torch.rand(2))
    read = tbscope.from_graph_def(tbscope.to_graph_def(relu))
    assert "Parameters" not in footer(read)
    assert read.summary().totals["parameters"] is None
    assert footer(relu)["Parameters"] == "0 (0 B)"
    assert footer(tbscope.trace(torch.relu, torch.rand(2)))["Parameters"] == "0 (0 B)"
    assert footer(EMPTY)["Parameters"] == "0 (0 B)"


def test_operations_that_nobody_watched_tell_of_no_parameters():
    build = GraphBuilder("Net")
    build.op("relu", build.input("x", (1, 2)))
    assert str(build.graph.summary()) == "Module\n------\nNet"
    assert footer(build.graph) == {}
