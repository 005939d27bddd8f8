"""What torch documents of `SummaryWriter.add_graph` holds with ours in its place."""

import time

import pytest
import torch
import torch.utils.tensorboard
from log_writers import read
from torch import nn

import tbscope


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 2)))

    def forward(self, x):
        return self.inner(self.fc(x))


class GivesDict(nn.Module):
    def forward(self, x):
        return {"twice": x * 2, "nested": {"more": x + 1}}


def graph_names(directory):
    return {node.name for node in read(directory).Graph().node}


@pytest.mark.parametrize("inputs", [torch.rand(2, 4), (torch.rand(2, 4),), [torch.rand(2, 4)]])
def test_a_graph_shows_the_modules_as_they_are_nested(tmp_path, inputs):
    with tbscope.SummaryWriter(tmp_path) as writer:
        writer.add_graph(Mlp(), inputs)
    assert graph_names(tmp_path) >= {"fc", "fc/weight", "inner/0", "inner/1/0", "inner/1/1"}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("verbose", [True, False])
def test_a_graph_takes_torchs_arguments_by_place_and_by_name(tmp_path, capsys, verbose, strict):
    x = torch.rand(2)
    with tbscope.SummaryWriter(tmp_path) as writer:
        writer.add_graph(GivesDict(), x, verbose, strict)
        first = capsys.readouterr().out
        writer.add_graph(GivesDict(), input_to_model=x, verbose=verbose, use_strict_trace=strict)
    assert capsys.readouterr().out == first
    assert ("mul" in first) == verbose
    assert {name.rpartition("/")[2] for name in graph_names(tmp_path)} >= {"mul", "add"}


def test_a_graph_needs_no_inputs_where_forward_takes_none(tmp_path):
    class Source(nn.Module):
        def forward(self):
            return torch.zeros(2).exp()

    with tbscope.SummaryWriter(tmp_path) as writer:
        writer.add_graph(Source())
    assert any(name.endswith("exp") for name in graph_names(tmp_path))


def test_inputs_of_a_wrong_size_are_a_runtime_error_and_the_model_is_as_it_was(tmp_path):
    model = Mlp().train()
    with tbscope.SummaryWriter(tmp_path) as writer:
        with pytest.raises(RuntimeError):
            writer.add_graph(model, torch.rand(1, 9))
        writer.add_graph(model, torch.rand(1, 4))
    assert model.training
    assert "fc" in graph_names(tmp_path)


def test_a_scripted_model_is_drawn(tmp_path):
    with tbscope.SummaryWriter(tmp_path) as writer:
        writer.add_graph(torch.jit.trace(Mlp(), torch.rand(2, 4)), torch.rand(2, 4))
    assert any("fc" in name for name in graph_names(tmp_path))


def test_graphs_stand_among_all_else_and_after_a_purge(tmp_path):
    with tbscope.SummaryWriter(tmp_path, purge_step=2) as writer:
        writer.add_graph(Mlp(), torch.rand(2, 4))
        writer.add_graph(Mlp(), torch.rand(2, 4), tag="mlp", step=5)
        writer.add_text("note", "x")
        writer.add_histogram("fc", torch.rand(9))
        writer.add_scalar("loss", 1, 2)
    reader = read(tmp_path)
    assert reader.Tags()["scalars"] == ["loss"]
    assert reader.Tags()["histograms"] == ["fc"]
    assert set(reader.Tags()["tensors"]) == {"note/text_summary", "mlp "}
    assert reader.Graph().node


def test_a_run_that_goes_on_after_a_purge_keeps_the_graph_of_its_run(tmp_path):
    with tbscope.SummaryWriter(tmp_path) as writer:
        writer.add_graph(Mlp(), torch.rand(2, 4))
        for step in range(5):
            writer.add_scalar("loss", step, step)
    # TensorBoard reads the files in the order of their names, which contain the second.
    begun = int(time.time())
    while int(time.time()) == begun:
        time.sleep(0.05)
    with tbscope.SummaryWriter(tmp_path, purge_step=3, filename_suffix=".2") as writer:
        writer.add_scalar("loss", 30, 3)
    assert "fc" in graph_names(tmp_path)
    assert [event.step for event in read(tmp_path).Scalars("loss")] == [0, 1, 2, 3]


def test_all_that_torchs_offers_ours_offers():
    def public(cls):
        return {name for name in dir(cls) if not name.startswith("_")}

    assert public(torch.utils.tensorboard.SummaryWriter) <= public(tbscope.SummaryWriter)
    assert issubclass(tbscope.SummaryWriter, torch.utils.tensorboard.SummaryWriter)
