"""A graph and a scalar may have one tag: both show, whoever comes first, and whoever reads."""

import itertools

import pytest
import tensorboardX
import torch
import torch.utils.tensorboard
from browser import TensorBoard
from served import ask, figures_of, info, names, scalars_of
from torch import nn

import tbscope

X = torch.ones(1, 2)
MODEL = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
MAKERS = {
    "ours": tbscope.SummaryWriter,
    "torch": torch.utils.tensorboard.SummaryWriter,
    "tensorboardX": tensorboardX.SummaryWriter,
}


def add_graphs(writer, graph):
    tbscope.add_graph(writer, graph)
    tbscope.add_graph(writer, nn.Tanh(), X, tag="loss")
    for tag in ("time", "activation_bytes", "flops"):
        tbscope.add_overlay(writer, tag, graph)
    tbscope.add_overlay(writer, "norm", graph, {"0": 3})


def add_scalars(writer, _graph):
    for step, tag in itertools.product(range(3), TAGS):
        writer.add_scalar(tag, step / 2, step)
    writer.add_histogram("weights", torch.arange(9.0), 0)


TAGS = ("loss", "time", "activation_bytes", "flops", "norm", "profile")
ORDERS = {
    "graphs first": (add_graphs, add_scalars),
    "scalars first": (add_scalars, add_graphs),
    "between": (add_scalars, add_graphs, add_scalars),
}


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    """Give a log directory with a run for each writer and each order."""
    found = tmp_path_factory.mktemp("logs")
    graph = tbscope.trace(MODEL, X, profile=1)
    for (name, make), (order, turns) in itertools.product(MAKERS.items(), ORDERS.items()):
        writer = make(str(found / f"{name}, {order}"))
        for turn in turns:
            turn(writer, graph)
        writer.close()
    return found


@pytest.fixture(
    scope="module",
    params=[(), ("--load_fast=false",)],
    ids=["the rust loader", "the python loader"],
)
def server(request, logdir):
    with TensorBoard(logdir, *request.param) as server:
        yield server


RUNS = [f"{name}, {order}" for name in MAKERS for order in ORDERS]


@pytest.mark.parametrize("run", RUNS)
def test_every_scalar_has_its_chart(server, run):
    expected = [0, 0.5, 1] * (2 if run.endswith("between") else 1)
    for tag in TAGS:
        found = scalars_of(server, run, tag)
        # Of two points at one step one of the loaders keeps the second alone.
        assert found in (expected, [0, 0.5, 1]), tag
    assert b"weights" in ask(server, "tags", plugin="histograms")


@pytest.mark.parametrize("run", RUNS)
def test_every_graph_has_its_entry(server, run):
    listed = info(server)[run]
    assert listed["run_graph"]
    assert set(listed["tags"]) == set(TAGS)
    assert "Tanh" in names(server, run, "loss")
    for tag in ("time", "activation_bytes", "flops", "norm", "profile"):
        (device,) = figures_of(server, run, tag).step_stats.dev_stats
        assert {stats.node_name for stats in device.node_stats} >= {"0"}


def test_the_page_lists_the_tags_as_they_were_given(browser, logdir):
    with TensorBoard(logdir) as server:
        page = browser.open(server.url)
        assert set(page.listed["ours, between"]) == {"Default", *TAGS}
        page.show("ours, between", "loss")
        assert page.chosen_tag == "loss"
        assert "Tanh" in page.nodes
        page.show("ours, between", "norm", profile=True)
        assert page.errors == []
