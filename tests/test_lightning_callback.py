"""Lightning's callback: the first batch of a training is drawn, and the training goes on."""

import warnings
from copy import deepcopy

import pytest
import torch
from cli_runs import graphs_in, tags_in
from client_models import Net, lit_net, loss_of, points, trainer_of_lightning

import tbscope
from tbscope.utils import warning

pytest.importorskip("lightning")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def callback():
    from tbscope.integrations.lightning import GraphCallback

    return GraphCallback


def tops(graph):
    return list(dict.fromkeys(str(node.scope).split("/")[0] for node in graph.nodes))


def told_while(train):
    """Give what tbscope warned of while something ran, as if it had never warned before."""
    warning._warned.clear()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        train()
    return [str(each.message) for each in told if "tbscope drew" in str(each.message)]


def test_the_first_batch_is_drawn_once_with_its_numbers(callback, tmp_path):
    drawn = callback()
    trainer = trainer_of_lightning(tmp_path, [drawn])
    assert told_while(lambda: trainer.fit(lit_net(), points())) == []
    assert trainer.global_step == 2
    drawn.graph.verify()
    assert drawn.graph.name == "Lit"
    assert [node.name for node in drawn.graph.inputs] == ["batch.x", "batch.y"]
    assert tops(drawn.graph) == ["None", "Lit", "gradients", "optimizer"]
    assert len(graphs_in(trainer.logger.log_dir)) == 1
    assert {"flops", "parameters"} <= tags_in(trainer.logger.log_dir)


def test_what_the_module_logs_is_left_out_and_its_methods_are_its_own_again(callback, tmp_path):
    drawn, module = callback(), lit_net()
    trainer_of_lightning(tmp_path, [drawn]).fit(module, points())
    assert {node.op for node in drawn.graph.nodes if node.op}.isdisjoint({"deepcopy", "squeeze"})
    assert {"log", "log_dict"}.isdisjoint(vars(module))


def test_the_training_goes_on_as_without(callback, tmp_path):
    watched, alone = lit_net(), lit_net()
    trainer_of_lightning(tmp_path, [callback()]).fit(watched, points())
    trainer_of_lightning(tmp_path).fit(alone, points())
    for one, two in zip(watched.parameters(), alone.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(("batches", "equal"), [(3, 2), (12, 8)])
def test_micro_batches_are_drawn_up_to_the_optimizer(callback, tmp_path, batches, equal):
    watched, alone = lit_net(), lit_net()
    data = torch.utils.data.DataLoader([{"x": torch.ones(3), "y": torch.ones(2)}] * 24)
    drawn = callback()
    for module, callbacks in ((watched, [drawn]), (alone, [])):
        trainer = trainer_of_lightning(
            tmp_path / str(len(callbacks)), callbacks, accumulate_grad_batches=batches
        )
        assert told_while(lambda: trainer.fit(module, data)) == []  # noqa: B023
    for one, two in zip(watched.parameters(), alone.parameters(), strict=True):
        assert torch.equal(one, two)
    drawn.graph.verify()
    passes = {top for top in tops(drawn.graph) if top.startswith("gradients")}
    assert len(passes) == equal + 1
    assert tops(drawn.graph)[-1] == "optimizer"
    # Lightning runs the last one in a closure of the optimizer, called by a method of the module.
    names = [node.name for node in tbscope.to_graph_def(drawn.graph).node]
    assert any(name.startswith(f"Lit/net_x_{equal}/") for name in names)
    assert "stack" not in {node.op for node in drawn.graph.nodes}


def test_micro_batches_without_an_optimizer_are_drawn_at_the_end(callback, tmp_path):
    drawn = callback()
    options = {"accumulate_grad_batches": 4, "max_steps": 1, "limit_train_batches": 2}
    trainer_of_lightning(tmp_path, [drawn], **options).fit(lit_net(), points())
    assert tops(drawn.graph)[:3] == ["None", "Lit", "gradients"]


def test_several_optimizers_by_hand_are_all_drawn(callback, tmp_path):
    class Two(type(lit_net())):
        def __init__(self):
            super().__init__()
            self.other, self.automatic_optimization = Net(), False

        def training_step(self, batch, batch_idx):
            for net, optimizer in zip((self.net, self.other), self.optimizers(), strict=True):
                self.manual_backward(loss_of(net, batch))
                optimizer.step()

        def configure_optimizers(self):
            nets = (self.net, self.other)
            return [torch.optim.SGD(net.parameters(), 0.1) for net in nets]

    drawn = callback()
    trainer_of_lightning(tmp_path, [drawn]).fit(Two(), points())
    updated = {
        node.attributes["updates"] for node in drawn.graph.nodes if "updates" in node.attributes
    }
    assert {"net.fc.weight", "other.fc.weight"} <= updated


def test_a_directory_of_its_own_a_tag_and_other_numbers(callback, tmp_path):
    drawn = callback(str(tmp_path / "own"), tag="step", overlays=["calls"], backward=False)
    trainer = trainer_of_lightning(tmp_path, [drawn], logger=False)
    trainer.fit(lit_net(), points())
    assert tags_in(tmp_path / "own") == {"step", "step/calls"}
    assert "gradients" not in tops(drawn.graph)


@pytest.mark.parametrize("logger", ["csv", False])
def test_without_a_writer_there_is_one_warning(callback, tmp_path, logger):
    from lightning.pytorch.loggers import CSVLogger

    loggers = CSVLogger(str(tmp_path)) if logger else False
    trainer = trainer_of_lightning(tmp_path, [callback()], logger=loggers)
    (told,) = told_while(lambda: trainer.fit(lit_net(), points()))
    assert "the trainer has no writer of TensorBoard's" in told
    assert "GraphCallback('runs/x')" in told
    assert trainer.global_step == 2


def test_the_writer_is_found_among_several_loggers(callback, tmp_path):
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

    loggers = [CSVLogger(str(tmp_path / "csv")), TensorBoardLogger(str(tmp_path / "board"))]
    trainer_of_lightning(tmp_path, [callback()], logger=loggers).fit(lit_net(), points())
    assert len(graphs_in(loggers[1].log_dir)) == 1


def test_a_graph_that_cannot_be_drawn_is_one_warning(callback, tmp_path):
    def colour(node):
        raise RuntimeError("no colour for lightning")

    trainer = trainer_of_lightning(tmp_path, [callback(color_by=colour)])
    (told,) = told_while(lambda: trainer.fit(lit_net(), points()))
    assert "no colour for lightning" in told
    assert trainer.global_step == 2


def test_a_step_that_raises_is_the_trainings_own_and_nothing_is_left(callback, tmp_path):
    class Failing(type(lit_net())):
        def training_step(self, batch, batch_idx):
            super().training_step(batch, batch_idx)
            raise KeyError("its own")

    drawn, module = callback(), Failing()
    trainer = trainer_of_lightning(tmp_path, [drawn])
    with pytest.raises(KeyError, match="its own"):
        trainer.fit(module, points())
    assert (drawn.graph, graphs_in(trainer.logger.log_dir)) == (None, [])
    assert "log" not in vars(module)
    graph = tbscope.trace(module, torch.ones(1, 3))
    assert [node.op for node in graph.nodes if node.kind == "op"] == ["linear", "relu", "linear"]


def test_another_process_than_the_first_draws_nothing(callback, tmp_path):
    from lightning.pytorch.strategies import SingleDeviceStrategy

    class Second(SingleDeviceStrategy):
        is_global_zero = False

    drawn = callback(str(tmp_path / "own"))
    second = Second(device="cpu")
    trainer_of_lightning(tmp_path, [drawn], strategy=second, logger=False).fit(lit_net(), points())
    assert drawn.graph is None
    assert not (tmp_path / "own").exists()


def test_an_example_of_lightnings_own_logger_may_be_a_dict(callback, tmp_path):
    """Its log_graph refuses one; what is trained with needs none."""
    module = deepcopy(lit_net())
    module.example_input_array = {"x": torch.ones(1, 3)}
    drawn = callback()
    trainer_of_lightning(tmp_path, [drawn], log_graph=True).fit(module, points())
    assert tops(drawn.graph)[1] == "Lit"


def test_what_is_no_option_is_refused_before_the_training(callback):
    for wrong in (
        *({"logdir": 3}, {"tag": 3}, {"run_name": ".."}, {"backward": 1}, {"style": "keras"}),
        *({"overlays": "flops"}, {"overlays": ["flop"]}, {"overlays": [3]}, {"levels": "op"}),
    ):
        with pytest.raises(tbscope.ArgumentError) as refused:
            callback(**wrong)
        assert refused.value.why
        assert refused.value.fix
