"""`training=` means what the model's own `train()` and `eval()` do; all is put back after."""

import threading
import types

import pytest
import torch
from card_facts import facts
from torch import nn

import tbscope

X = torch.ones(2, 3)


class Frozen(nn.Module):
    """A backbone that keeps its norm frozen, and stops the gradients of its first layer."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.drop = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.norm(self.layer(x)))

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        self.layer.weight.requires_grad_(False)
        return self


class Merging(nn.Module):
    """An adapter that merges its weights for evaluation."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.merged = False

    def forward(self, x):
        return self.layer(x) if self.merged else self.layer(x) + x

    def eval(self):
        super().eval()
        self.layer.weight.data.add_(1)
        self.merged = True
        return self


class Apart(nn.Module):
    """Switches nothing but itself."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Dropout(0.5)

    def forward(self, x):
        return self.layer(x) + 1

    def train(self, mode=True):
        self.training = mode
        return self


class Refusing(Frozen):
    def train(self, mode=True):
        raise NotImplementedError("it has one mode")


def flags(graph):
    return {call.qualified_name: call.training for call in graph.calls}


def state(model):
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    asking = {name: tensor.requires_grad for name, tensor in model.named_parameters()}
    modes = {name: module.training for name, module in model.named_modules()}
    return tensors, asking, modes, sorted(vars(model))


def is_as(model, before):
    after = state(model)
    same = all(torch.equal(after[0][name], tensor) for name, tensor in before[0].items())
    return same and after[1:] == before[1:]


OPTIONS = [{}, {"fake": True}, {"profile": 1}, {"grad": True}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_frozen_norm_stays_frozen_in_training(options):
    model = Frozen()
    model.norm.train()
    model.drop.eval()
    before = state(model)
    graph = tbscope.trace(model, X, training=True, **options)
    assert flags(graph) == {"": True, "layer": True, "norm": False, "drop": True}
    assert is_as(model, before)
    drawn = {node.name: node for node in tbscope.to_graph_def(graph).node}
    assert [facts(drawn[name])["training"].b for name in ("norm", "drop")] == [False, True]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_what_eval_writes_and_sets_is_put_back(options):
    model = Merging()
    before = state(model)
    graph = tbscope.trace(model, X, **options)
    assert [node.op for node in graph.nodes if node.kind == "op"] == ["linear"]
    assert is_as(model, before)
    assert not model.merged


@pytest.mark.parametrize(("in_training", "times"), [([], 0), (["layer"], 1)])
def test_what_stands_in_evaluation_is_not_switched_a_second_time(in_training, times):
    class Telling(Merging):
        def eval(self):
            switched.append(self)
            return super().eval()

    switched = []
    model = Telling()
    # An attribute of this name is a mode in modules alone.
    model.settings = types.SimpleNamespace(training=True)
    model.train(False)
    for name in in_training:
        model.get_submodule(name).train()
    tbscope.trace(model, X)
    assert len(switched) == times


def test_what_train_sets_is_put_back_beside_another_thread():
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    model = Frozen()
    before = state(model)
    tbscope.trace(model, X, training=True)
    end.set()
    thread.join()
    assert is_as(model, before)


def test_measured_runs_are_in_the_same_mode():
    class Telling(Frozen):
        def forward(self, x):
            seen.append([module.training for module in (self.norm, self.drop)])
            return super().forward(x)

    seen = []
    tbscope.trace(Telling(), X, training=True, profile=2)
    assert len(seen) > 3
    assert seen == [[False, True]] * len(seen)


def test_without_a_mode_nothing_is_switched():
    model = Frozen()
    model.train()
    model.norm.train()
    graph = tbscope.trace(model, X, training=None)
    assert flags(graph)["norm"] is True


def test_what_train_leaves_out_keeps_its_mode():
    model = Apart()
    model.layer.eval()
    graph = tbscope.trace(model, X, training=True)
    assert flags(graph) == {"": True, "layer": False}
    assert model.layer.training is False


def test_modules_that_only_the_run_shows_switch_themselves():
    model = Frozen()
    before = state(model)
    held = [nn.Sequential(model)]
    graph = tbscope.trace(lambda x: [held[0](x)], X, training=True, profile=1)
    assert flags(graph)["0.norm"] is False
    assert flags(graph)["0.drop"] is True
    assert is_as(model, before)


def test_an_inner_module_that_freezes_itself_is_frozen():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = Frozen()

        def forward(self, x):
            return self.backbone(x)

    graph = tbscope.trace(Outer(), X, training=True)
    assert flags(graph)["backbone.norm"] is False


def test_one_that_refuses_is_switched_part_by_part_with_a_note():
    model = Refusing()
    before = state(model)
    graph = tbscope.trace(model, X, training=False)
    assert set(flags(graph).values()) == {False}
    assert graph.notes[0].text == (
        "Refusing.eval() raised NotImplementedError: it has one mode: each of its modules was "
        "switched by itself"
    )
    assert is_as(model, before)


def test_plain_models_have_no_such_note():
    assert tbscope.trace(nn.Sequential(nn.ReLU()), X, training=True).notes == []


def test_a_module_that_the_run_switches_before_it_calls_it_has_its_mode_again():
    hidden = [nn.Dropout()]

    def switching(x):
        return hidden[0].eval()(x)

    graph = tbscope.trace(switching, X, training=None)
    assert [*flags(graph).values()] == [False]
    assert hidden[0].training
