"""The callback for transformers: the first step of a Trainer is drawn, and it trains on."""

from pathlib import Path

import pytest
import torch
from cli_runs import graphs_in, tags_in
from client_models import bert, trainer_of_transformers
from test_lightning_callback import told_while, tops

import tbscope

pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def callback():
    from tbscope.integrations.transformers import GraphCallback

    return GraphCallback


def log_of(folder):
    (log,) = (Path(folder) / "runs").iterdir()
    return log


def test_the_first_step_is_drawn_once_with_its_numbers(callback, tmp_path):
    drawn = callback()
    trainer = trainer_of_transformers(tmp_path, [drawn])
    assert told_while(trainer.train) == []
    assert trainer.state.global_step == 2
    drawn.graph.verify()
    assert {"input_ids", "attention_mask", "labels"} & {node.name for node in drawn.graph.inputs}
    assert tops(drawn.graph) == [
        "None",
        "BertForSequenceClassification",
        "gradients",
        "optimizer",
    ]
    assert len(graphs_in(log_of(tmp_path))) == 1
    assert {"flops", "parameters"} <= tags_in(log_of(tmp_path))


def test_the_training_goes_on_as_without_and_no_hook_is_left(callback, tmp_path):
    watched, alone = (
        trainer_of_transformers(tmp_path / name, callbacks)
        for name, callbacks in (("watched", [callback()]), ("alone", []))
    )
    for trainer in (watched, alone):
        torch.manual_seed(1)
        trainer.train()
    for one, two in zip(watched.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.equal(one, two)
    assert not watched.model._forward_hooks
    assert not watched.model._forward_pre_hooks


def test_a_training_of_one_step_leaves_no_hook_either(callback, tmp_path):
    trainer = trainer_of_transformers(tmp_path, [callback()], max_steps=1)
    trainer.train()
    assert len(graphs_in(log_of(tmp_path))) == 1
    assert not trainer.model._forward_hooks
    assert not trainer.model._forward_pre_hooks


def test_with_accumulation_the_calls_and_backward_passes_up_to_the_optimizer_are_drawn(
    callback, tmp_path
):
    drawn = callback()
    trainer_of_transformers(tmp_path, [drawn], gradient_accumulation_steps=2).train()
    assert tops(drawn.graph)[:3] == ["None", "BertForSequenceClassification", "gradients"]
    assert tops(drawn.graph)[-2:] == ["gradients.1", "optimizer"]
    assert len(graphs_in(log_of(tmp_path))) == 1


def test_a_directory_of_its_own_a_tag_and_other_numbers(callback, tmp_path):
    drawn = callback(str(tmp_path / "own"), tag="step", overlays=["calls"], backward=False)
    trainer_of_transformers(tmp_path / "out", [drawn], report_to="none").train()
    assert tags_in(tmp_path / "own") == {"step", "step/calls"}
    assert tops(drawn.graph) == ["None", "BertForSequenceClassification"]


def test_without_a_writer_there_is_one_warning(callback, tmp_path):
    trainer = trainer_of_transformers(tmp_path, [callback()], report_to="none")
    (told,) = told_while(trainer.train)
    assert "the trainer has no writer of TensorBoard's" in told
    assert trainer.state.global_step == 2


def test_a_callback_that_passes_on_finds_the_writer_too(callback, tmp_path):
    class Own(callback):
        def on_step_end(self, *arguments, **trained):
            return super().on_step_end(*arguments, **trained)

    trainer_of_transformers(tmp_path, [Own()]).train()
    assert len(graphs_in(log_of(tmp_path))) == 1


def test_a_model_that_is_never_called_in_training_is_told(callback, tmp_path):
    class Evaluating(type(bert())):
        def train(self, mode=True):
            return super().train(False)

    model = Evaluating(bert().config)
    trainer = trainer_of_transformers(tmp_path, [callback()], model=model)
    (told,) = told_while(trainer.train)
    assert "no call of the model in training mode" in told
    assert not model._forward_hooks


def test_another_process_than_the_first_draws_nothing(callback, tmp_path):
    drawn = callback(str(tmp_path / "own"))

    class Second(type(trainer_of_transformers(tmp_path, []))):
        def is_world_process_zero(self):
            return False

    trainer_of_transformers(tmp_path, [drawn], report_to="none", kind=Second).train()
    assert (drawn.graph, (tmp_path / "own").exists()) == (None, False)


def test_what_is_no_option_is_refused_before_the_training(callback):
    for wrong in ({"logdir": 3}, {"overlays": ["flop"]}, {"backward": None}, {"levels": "op"}):
        with pytest.raises(tbscope.ArgumentError):
            callback(**wrong)
