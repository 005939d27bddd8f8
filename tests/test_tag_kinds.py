"""Graphs, graphs with figures, and figures alone: each tag holds one kind, as the server tells."""

import warnings

import pytest
import tensorboardX
import torch
import torch.utils.tensorboard
from browser import TensorBoard
from served import figures_of, graph_of, info, names
from torch import nn

import tbscope

X = torch.rand(4, 2)


@pytest.fixture(scope="module")
def graph():
    return tbscope.trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), X, profile=1)


def node_names(metadata):
    return {entry.node_name for dev in metadata.step_stats.dev_stats for entry in dev.node_stats}


@pytest.mark.parametrize(
    "make",
    [tbscope.SummaryWriter, torch.utils.tensorboard.SummaryWriter, tensorboardX.SummaryWriter],
)
def test_figures_of_the_run_are_a_tag_beside_its_graph(tmp_path, make):
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    with make(str(tmp_path)) as writer:
        measured = tbscope.add_graph(writer, model, X, profile=2)
    assert measured.profile.steps == 2
    with TensorBoard(tmp_path) as server:
        (run,) = info(server).values()
        assert run["run_graph"]
        assert run["tags"] == {
            "profile": {
                "tag": "profile",
                "conceptual_graph": False,
                "op_graph": False,
                "profile": True,
            }
        }
        found = figures_of(server, ".", "profile")
        assert {"0", "1"} <= node_names(found) <= set(names(server))
        assert len(found.function_graphs) == 0


def test_a_tag_with_figures_holds_its_graph_too(tmp_path, graph):
    with tbscope.SummaryWriter(tmp_path) as writer:
        writer.add_graph(graph, tag="net")
        writer.add_overlay("flops", graph)
    with TensorBoard(tmp_path) as server:
        (run,) = info(server).values()
        assert not run["run_graph"]
        for tag in ("net", "flops"):
            assert run["tags"][tag]["op_graph"]
            assert run["tags"][tag]["profile"]
            assert node_names(figures_of(server, ".", tag)) <= set(names(server, ".", tag))
        expected = tbscope.to_graph_def(graph)
        assert graph_of(server, ".", "net") == expected


def test_figures_of_a_later_step_replace_those_before(tmp_path, graph):
    with tbscope.SummaryWriter(tmp_path) as writer:
        for number in (1, 2):
            writer.add_overlay("mine", graph, {"0": number})
            writer.add_graph(graph, style="torch" if number == 2 else "tf")
    with TensorBoard(tmp_path) as server:
        (device,) = figures_of(server, ".", "mine").step_stats.dev_stats
        sizes = [memory.total_bytes for stat in device.node_stats for memory in stat.memory]
        assert sizes == [2]
        found = node_names(figures_of(server, ".", "profile"))
        assert {"Linear[0]", "ReLU[1]"} <= found
        assert found.isdisjoint({"0", "1"})


def test_figures_of_the_run_do_not_outlive_its_graph(tmp_path, graph):
    with tbscope.SummaryWriter(tmp_path) as writer:
        writer.add_graph(graph)
        writer.add_graph(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), X)
    with TensorBoard(tmp_path) as server:
        assert node_names(figures_of(server, ".", "profile")) == set()


def test_a_tag_after_the_figures_of_the_run_leaves_them_as_they_are(tmp_path, graph):
    with tbscope.SummaryWriter(tmp_path) as writer:
        writer.add_graph(graph)
        writer.add_graph(nn.Tanh(), X, tag="net")
        writer.add_graph(graph, tag="profile 2")
    with TensorBoard(tmp_path) as server:
        (run,) = info(server).values()
        assert {
            tag: (kinds["op_graph"], kinds["profile"]) for tag, kinds in run["tags"].items()
        } == {
            "profile": (False, True),
            "net": (True, False),
            "profile 2": (True, True),
        }
        assert node_names(figures_of(server, ".", "profile")) <= set(names(server))
        assert node_names(figures_of(server, ".", "profile"))
        assert "Tanh" in names(server, ".", "net")


def taken(tag, kind, known):
    return (
        f"the tag {tag!r} cannot have {kind}\n"
        f"  why: it has {known} already, and TensorBoard shows one kind of data under each tag\n"
        "  fix: another tag"
    )


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (
            lambda writer, graph: writer.add_graph(nn.ReLU(), X, tag="net"),
            lambda writer, graph: writer.add_graph(graph, tag="net"),
            taken("net", "a graph with figures", "a graph"),
        ),
        (
            lambda writer, graph: writer.add_overlay("flops", graph),
            lambda writer, graph: writer.add_graph(nn.ReLU(), X, tag="flops"),
            taken("flops", "a graph", "a graph with figures"),
        ),
        (
            lambda writer, graph: writer.add_graph(graph),
            lambda writer, graph: writer.add_overlay("profile", graph, "flops"),
            taken("profile", "a graph with figures", "figures of the graph of the run"),
        ),
        (
            lambda writer, graph: writer.add_graph(graph),
            lambda writer, graph: writer.add_graph(nn.ReLU(), X, tag="profile"),
            taken("profile", "a graph", "figures of the graph of the run"),
        ),
        (
            lambda writer, graph: writer.add_graph(nn.ReLU(), X, tag="profile"),
            lambda writer, graph: writer.add_graph(graph),
            taken("profile", "figures of the graph of the run", "a graph"),
        ),
        (
            lambda writer, graph: writer.add_overlay("flops", graph, step=4),
            lambda writer, graph: writer.add_overlay("flops", graph, step=4),
            "a graph of tag 'flops' at step 4 comes too late\n"
            "  why: one was written at step 4 already, and TensorBoard shows the highest\n"
            "  fix: step=5, or another tag",
        ),
    ],
)
def test_a_tag_that_holds_something_else_is_an_error(tmp_path, graph, first, second, text):
    with tbscope.SummaryWriter(tmp_path) as writer:
        first(writer, graph)
        with pytest.raises(tbscope.ArgumentError) as error:
            second(writer, graph)
    assert str(error.value) == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            (None, "graph"),
            "an overlay needs a tag, and was given None\n"
            "  why: it is an entry of its own in the page's list of tags\n"
            "  fix: writer.add_overlay('flops', graph)",
        ),
        (
            ("flops", nn.ReLU()),
            "no overlay can be drawn on ReLU()\n"
            "  why: an overlay is drawn on a recorded graph\n"
            "  fix: graph = tbscope.trace(model, input), or the graph that add_graph returned",
        ),
    ],
)
def test_an_overlay_needs_a_tag_and_a_graph(tmp_path, arguments, text):
    with tbscope.SummaryWriter(tmp_path) as writer, pytest.raises(tbscope.ArgumentError) as error:
        writer.add_overlay(*arguments)
    assert str(error.value) == text


def test_a_graph_that_was_not_measured_cannot_be_profiled(tmp_path):
    with tbscope.SummaryWriter(tmp_path) as writer, pytest.raises(tbscope.ArgumentError) as error:
        writer.add_graph(tbscope.trace(nn.ReLU(), X), profile=True)
    assert str(error.value) == (
        "profile=True is given with the graph of ReLU\n"
        "  why: a graph has run already, and takes no inputs and no options of a run\n"
        "  fix: leave it out, or pass the model in place of its graph"
    )


def test_an_overlay_that_cannot_be_drawn_is_warned_of_once(tmp_path, graph):
    with warnings.catch_warnings(record=True) as caught, tbscope.SummaryWriter(tmp_path) as writer:
        warnings.simplefilter("always")
        for _ in range(2):
            writer.add_overlay("norm", graph, {"0": float("nan")}, on_error="warn")
    (warning,) = caught
    what = str(warning.message).splitlines()[0]
    assert what == "tbscope drew no overlay: the overlay 'norm' has nan for '0'"
    assert warning.filename == __file__
