"""Many graphs in one run: each its own tag, the latest step of each on the page."""

import pytest
import tensorboardX
import torch
import torch.utils.tensorboard
from browser import TensorBoard
from served import names
from torch import nn

import tbscope

X = torch.ones(1, 2)


@pytest.mark.parametrize(
    "make",
    [tbscope.SummaryWriter, torch.utils.tensorboard.SummaryWriter, tensorboardX.SummaryWriter],
)
def test_one_run_holds_the_graph_of_the_run_and_one_for_each_tag(tmp_path, make):
    writer = make(str(tmp_path))
    for tag, model in ((None, nn.Linear(2, 2)), ("relu", nn.ReLU()), ("tanh", nn.Tanh())):
        tbscope.add_graph(writer, model, X, tag=tag)
    writer.close()
    with TensorBoard(tmp_path) as server:
        assert "Linear" in names(server)
        assert {"ReLU", "Tanh"}.isdisjoint(names(server))
        assert "ReLU" in names(server, tag="relu")
        assert "Tanh" in names(server, tag="tanh")


def test_a_later_graph_of_a_tag_replaces_the_one_before(tmp_path):
    with tbscope.SummaryWriter(tmp_path) as writer:
        writer.add_graph(nn.ReLU(), X, tag="model")
        writer.add_graph(nn.Tanh(), X, tag="model")
        writer.add_graph(nn.ReLU(), X)
        writer.add_graph(nn.Sigmoid(), X)
    with TensorBoard(tmp_path) as server:
        assert "Tanh" in names(server, tag="model")
        assert "Sigmoid" in names(server)


def test_one_trace_is_written_at_several_levels(tmp_path):
    net = nn.Sequential(nn.Linear(2, 2), nn.GRU(2, 2))
    with tbscope.SummaryWriter(tmp_path) as writer:
        graph = tbscope.trace(net, X, kernels=True)
        for level in ("module", "op", "aten"):
            writer.add_graph(graph, tag=level, level=level)
    with TensorBoard(tmp_path) as server:
        found = {level: names(server, tag=level) for level in ("module", "op", "aten")}
    assert "Sequential/0/linear/addmm" in found["aten"]
    assert {name.removeprefix("Sequential/") for name in found["module"]} >= {"0", "1"}
    assert len(found["module"]) < len(found["op"]) < len(found["aten"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"tag": "model", "step": 3},
            "a graph of tag 'model' at step 3 comes too late\n"
            "  why: one was written at step 3 already, and TensorBoard shows the highest\n"
            "  fix: step=4, or another tag",
        ),
        (
            {"tag": ""},
            "a graph cannot have the tag ''\n"
            "  why: a tag is a text that is not blank, of at most 1000 characters, and "
            'without ", \\, control characters and lone surrogates\n'
            "  fix: tag='generator', or None for the graph of the run",
        ),
        (
            {"step": -1},
            "a graph cannot be of step -1\n"
            "  why: a step is a whole number, an int from 0 to 2**63 - 2\n"
            "  fix: step=None for one after the latest",
        ),
    ],
)
def test_a_step_back_and_what_is_no_tag_or_step_are_errors(tmp_path, options, text):
    with tbscope.SummaryWriter(tmp_path) as writer:
        writer.add_graph(nn.ReLU(), X, tag="model", step=3)
        with pytest.raises(tbscope.ArgumentError) as error:
            writer.add_graph(nn.ReLU(), X, **options)
    assert str(error.value) == text


@pytest.mark.parametrize(
    "name", ["a\0b", "a\nb", "\x1b[31m", 'a"b', "a\\b", " ", "\u2003", "a\ud800"]
)
@pytest.mark.parametrize("option", ["tag", "run_name"])
def test_what_the_page_cannot_ask_for_is_refused_before_the_model_runs(tmp_path, option, name):
    ran = []
    with tbscope.SummaryWriter(tmp_path) as writer, pytest.raises(tbscope.ArgumentError) as error:
        writer.add_graph(lambda x: ran.append(1) or x, X, **{option: name})
    assert 'without ", \\' in error.value.why
    assert ran == []
    assert list(tbscope.read_log(tmp_path)) == []


def test_any_other_name_of_a_tag_and_of_a_run_shows(tmp_path):
    known = ["a b", "\u202ex", "%00", "<b>", "ü", "a'b", "\x7f", "\x9b"]
    tags = [*known, " a", "..", "/a", "a//b", "a:b", "x" * 1000]
    with tbscope.SummaryWriter(tmp_path) as writer:
        for tag in tags:
            writer.add_graph(nn.ReLU(), X, tag=tag)
        for run in known:
            writer.add_graph(nn.ReLU(), X, run_name=run)
    with TensorBoard(tmp_path) as server:
        assert {tag: "ReLU" in names(server, tag=tag) for tag in tags} == dict.fromkeys(tags, True)
        assert {run: "ReLU" in names(server, run) for run in known} == dict.fromkeys(known, True)


@pytest.mark.parametrize("step", [True, False, 1.0, "1", float("nan"), -1])
def test_what_is_no_step_is_refused_before_the_model_runs(tmp_path, step):
    ran = []
    with tbscope.SummaryWriter(tmp_path) as writer:
        with pytest.raises(tbscope.ArgumentError, match="a graph cannot be of step"):
            writer.add_graph(ran.append, X, step=step)
        with pytest.raises(tbscope.ArgumentError, match="a graph cannot be of step"):
            writer.add_overlay("calls", tbscope.trace(nn.ReLU(), X), step=step)
    assert ran == []


@pytest.mark.parametrize(("step", "following"), [(None, 1), (0, 1), (1, 2), (2**62, 2**62 + 1)])
def test_the_next_step_is_one_after_the_latest(tmp_path, step, following):
    with tbscope.SummaryWriter(tmp_path) as writer:
        writer.add_graph(nn.ReLU(), X, step=step)
        for late in range(max(0, following - 2), following):
            with pytest.raises(tbscope.ArgumentError, match=f"\n  fix: step={following}, "):
                writer.add_graph(nn.ReLU(), X, step=late)
        writer.add_graph(nn.Tanh(), X)
        with pytest.raises(tbscope.ArgumentError, match=f"at step {following} comes too late"):
            writer.add_graph(nn.Tanh(), X, step=following)
        writer.add_graph(nn.Tanh(), X, step=following + 1)


def test_a_graph_that_was_not_written_takes_no_step(tmp_path):
    with tbscope.SummaryWriter(tmp_path) as writer:
        sink = writer._get_file_writer()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sink, "add_event", lambda event: 1 / 0)
            with pytest.raises(tbscope.WriterError, match="ZeroDivisionError"):
                writer.add_graph(nn.ReLU(), X, tag="model", step=0)
        writer.add_graph(nn.ReLU(), X, tag="model", step=0)
