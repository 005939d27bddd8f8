"""Log directories on other machines: one in memory, by TensorBoard's own layer, for all."""

import pytest
import torch
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from torch import nn
from torch.utils.tensorboard import SummaryWriter

import tbscope

fsspec = pytest.importorskip("fsspec")

MODEL, X = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(1, 2)


@pytest.fixture
def room():
    yield "memory://room"
    files = fsspec.filesystem("memory")
    if files.exists("/room"):
        files.rm("/room", recursive=True)


def listed(room):
    """Give what TensorBoard finds for its page: by run, the tags of graphs and their figures."""
    found = EventMultiplexer().AddRunsFromDirectory(room)
    found.Reload()
    return {run: {tag.rstrip() for tag in facts["tensors"]} for run, facts in found.Runs().items()}


def test_a_graph_is_written_there_with_its_tags_its_numbers_and_its_runs(room):
    with tbscope.SummaryWriter(f"{room}/own") as writer:
        graph = writer.add_graph(MODEL, X, profile=True)
        writer.add_graph(graph, tag="modules", level="module")
        writer.add_overlay("flops", graph)
        writer.add_graph(MODEL, X, run_name="eval")
        writer.add_scalar("loss", 1.0, 0)
    of_run = "__run_graph__"
    assert listed(room) == {
        "own": {of_run, "profile", "modules", "flops", "loss"},
        "own/eval": {of_run},
    }
    found = [(logged.run, logged.tag) for logged in tbscope.read_log(room)]
    assert found == [("own", None), ("own", "modules"), ("own", "flops"), ("own/eval", None)]


def test_torchs_writer_there_draws_ours(room):
    with tbscope.installed(), SummaryWriter(f"{room}/theirs") as writer:
        writer.add_graph(MODEL, X)
    graph = tbscope.load(f"{room}/theirs")
    assert [node.op for node in graph.nodes if node.kind == "op"] == ["linear", "relu"]


def test_a_later_graph_of_a_tag_is_of_a_later_step(room):
    with tbscope.SummaryWriter(room) as writer:
        for model in (nn.ReLU(), nn.Tanh()):
            writer.add_graph(model, X, tag="net")
    found = [(logged.graph.name, logged.step) for logged in tbscope.read_log(room)]
    assert found == [("ReLU", 0), ("Tanh", 1)]


@pytest.mark.parametrize("scheme", ["memory", "nowhere"])
def test_a_scheme_that_nobody_knows_is_refused_with_what_to_install(room, scheme):
    if scheme == "memory":
        tbscope.SummaryWriter(f"{scheme}://room").close()
        return
    with pytest.raises(tbscope.WriterError) as refused:
        tbscope.SummaryWriter(f"{scheme}://room")
    assert "Protocol not known: nowhere" in refused.value.why
    assert "pip install fsspec" in refused.value.fix


def test_nothing_is_made_on_this_machine(room, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with tbscope.SummaryWriter(f"{room}/own") as writer:
        writer.add_graph(MODEL, X, run_name="eval")
    assert list(tmp_path.iterdir()) == []
