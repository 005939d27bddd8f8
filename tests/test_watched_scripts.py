"""`install(watch=True)`: steps of trainings that never call `add_graph`, in this process."""

import subprocess
import sys

import pytest
import tensorboardX
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks
from torch.utils.tensorboard import SummaryWriter

import tbscope


class Encoder(nn.Linear):
    pass


class Decoder(nn.Linear):
    pass


@pytest.fixture(autouse=True)
def hooks():
    before = {**_global_optimizer_post_hooks}
    yield
    tbscope.uninstall()
    assert {**_global_optimizer_post_hooks} == before


def train(*models, steps=4):
    """Train models one after the other, by one optimizer."""
    parameters = [parameter for model in models for parameter in model.parameters()]
    optimizer = torch.optim.Adam(parameters)
    for _ in range(steps):
        optimizer.zero_grad()
        value = torch.ones(2, 3)
        for model in models:
            value = model(value)
        value.pow(2).mean().backward()
        optimizer.step()


def tags(folder):
    return [entry.tag for entry in tbscope.read_log(folder)]


@pytest.mark.parametrize("kind", [SummaryWriter, tensorboardX.SummaryWriter])
def test_the_step_is_in_the_log_of_the_script(kind, tmp_path):
    tbscope.install(watch=True, logdir=str(tmp_path / "own"), style="torch")
    with kind(str(tmp_path / "theirs")) as writer:
        train(nn.Sequential(nn.Linear(3, 3), nn.Tanh()))
        writer.add_scalar("loss", 1.0)
    (entry,) = tbscope.read_log(tmp_path / "theirs")
    assert {node.phase for node in entry.graph.nodes} == {"forward", "backward", "optimizer"}
    assert not (tmp_path / "own").exists()


def test_each_model_is_drawn_once_with_a_tag_of_its_own(tmp_path, capsys):
    tbscope.install(watch=True, logdir=str(tmp_path))
    for _ in range(2):
        train(Encoder(3, 3))
        train(Decoder(3, 3))
    train(Encoder(3, 4))
    assert set(tags(tmp_path)) == {None, "Decoder", "Encoder_"}
    assert capsys.readouterr().err == f"tbscope draws a training step in {tmp_path}\n"


def test_models_of_one_optimizer_are_one_graph(tmp_path):
    tbscope.install(watch=True, logdir=str(tmp_path))
    train(Encoder(3, 5), Decoder(5, 3), Decoder(3, 3))
    (entry,) = tbscope.read_log(tmp_path)
    called = {call.qualified_name for call in entry.graph.calls}
    assert called >= {"Encoder", "Decoder", "Decoder1"}


def test_a_script_that_draws_a_graph_itself_is_not_watched(tmp_path):
    tbscope.install(watch=True)
    model = Encoder(3, 3)
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_graph(model, torch.ones(2, 3))
        train(model)
    (entry,) = tbscope.read_log(tmp_path)
    assert {node.phase for node in entry.graph.nodes} == {"forward"}


def test_a_script_that_records_or_watches_itself_is_not_watched(tmp_path):
    tbscope.install(watch=True, logdir=str(tmp_path / "own"))
    with tbscope.SummaryWriter(tmp_path / "theirs") as writer:
        model = Encoder(3, 3)
        writer.watch(model)
        train(model)
    assert tags(tmp_path / "theirs") == [None]
    with tbscope.record():
        train(Decoder(3, 3))
    assert not (tmp_path / "own").exists()


def test_nothing_is_watched_unless_asked_for(tmp_path):
    tbscope.install(logdir=str(tmp_path))
    train(Encoder(3, 3))
    assert not any(tmp_path.iterdir())


def test_a_failure_is_one_warning_and_the_training_goes_on(tmp_path):
    (tmp_path / "file").write_text("")
    tbscope.install(watch=True, logdir=str(tmp_path / "file" / "log"))
    with pytest.warns(UserWarning, match="tbscope watches no step of the script: ") as warned:
        train(Encoder(3, 3))
    assert len(warned) == 1


def test_optimizers_that_are_imported_later_are_watched(tmp_path):
    program = f"""
import tbscope, sys
tbscope.install(watch=True, logdir={str(tmp_path)!r})
assert "torch" not in sys.modules
import torch
model = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert tags(tmp_path) == [None]
