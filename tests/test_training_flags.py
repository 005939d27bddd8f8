"""Whichever modules a draw switches, by whatever path it meets them: each has its flag again."""

import functools
import itertools

import pytest
import torch
from torch import nn
from ways_to_draw import WAYS, small

import tbscope
from tbscope.sources.torch.module_names import Registry
from tests.sweeps import sampled

MODES = [*WAYS, {"profile": 1, "training": True}]


def compiled(module):
    return torch.compile(module, backend="eager")


class Holder(nn.Module):
    """Holds a model where `modules()` does not look."""

    def __init__(self, model):
        super().__init__()
        self.layers = [model]
        object.__setattr__(self, "hidden", model)

    def forward(self, x):
        return self.layers[0](x)


def of_wrapper():
    model = compiled(small())
    return model, [model, *model._orig_mod.modules()]


def of_layers():
    layers = [compiled(nn.Linear(4, 4)), compiled(small())]
    model = nn.Sequential(*layers)
    return model, [model, *layers, *layers[1]._orig_mod.modules()]


def of_both():
    layer = compiled(nn.Linear(4, 4))
    model = compiled(nn.Sequential(layer, nn.ReLU()))
    return model, [model, *model._orig_mod.modules(), layer, layer._orig_mod]


def of_replicas():
    model = compiled(small())
    return nn.DataParallel(model), [model, *model._orig_mod.modules()]


def of_one_in_place():
    model = small()
    model.compile(backend="eager")
    return model, list(model.modules())


def of_a_compiled_function():
    model = small()
    return torch.compile(model.forward, backend="eager"), list(model.modules())


def of_a_closure():
    model, switched = of_wrapper()
    return lambda x: model(x * 2), switched


def of_a_partial():
    model, switched = of_wrapper()
    return functools.partial(model), switched


def of_a_list_and_an_attribute():
    model, switched = of_wrapper()
    return Holder(model), switched


def of_the_original_called_by_hand():
    model, switched = of_wrapper()
    return (lambda x: model(x) + model._orig_mod(x)), switched


KINDS = [
    of_wrapper,
    of_layers,
    of_both,
    of_replicas,
    of_one_in_place,
    of_a_compiled_function,
    of_a_closure,
    of_a_partial,
    of_a_list_and_an_attribute,
    of_the_original_called_by_hand,
]


# Kinds and modes take the flags by turns.
FLAGS = list(itertools.product(KINDS, MODES, [True, False]))


@pytest.mark.parametrize(
    ("kind", "options", "training"),
    sampled(FLAGS, [*FLAGS[::4], *FLAGS[3::4]]),
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_compiled_modules_have_their_flags_again(kind, options, training):
    model, switched = kind()
    for module in switched:
        module.train(training)
    tbscope.trace(model, torch.randn(3, 4), **options)
    assert [module.training for module in switched] == [training] * len(switched)


def test_each_compiled_layer_has_its_own_flag_again():
    model, switched = of_layers()
    model[1].eval()
    before = [module.training for module in switched]
    assert len(set(before)) == 2
    for training in (True, False):
        tbscope.trace(model, torch.randn(3, 4), training=training)
        assert [module.training for module in switched] == before


@pytest.mark.parametrize("options", [{}, {"profile": 1}, {"partial": True}], ids=str)
def test_flags_come_back_where_the_model_raises(options):
    model, switched = of_wrapper()
    model.train()
    try:
        tbscope.trace(model, torch.randn(3, 5), **options)
    except tbscope.TraceError:
        assert "partial" not in options
    assert all(module.training for module in switched)


def test_a_compiled_model_runs_in_the_mode_that_was_asked_for():
    model = compiled(nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4)))
    for training in (True, False):
        graph = tbscope.trace(model, torch.randn(3, 4), training=training)
        assert {call.training for call in graph.calls} == {training}
        assert any(node.op == "dropout" and node.random for node in graph.nodes) == training


@pytest.mark.parametrize("options", [{}, {"grad": True}, {"profile": 1}, {"fake": True}], ids=str)
def test_a_compiled_model_trains_to_the_same_weights_after_a_draw(options):
    def trained(draws):
        torch.manual_seed(0)
        model, x = compiled(small()), torch.randn(3, 4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(3):
            if draws:
                tbscope.trace(model, x, **options)
            model(x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model.state_dict().values()

    assert all(map(torch.equal, trained(True), trained(False)))


class Switching(nn.Module):
    """Switches a module that nobody registers before it has ever been called."""

    def __init__(self, switch):
        super().__init__()
        self.teacher = [small()]
        self.switch = switch

    def forward(self, x):
        self.switch(self.teacher[0])
        return self.teacher[0](x)


@pytest.mark.parametrize("options", MODES, ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_hidden_module_that_forward_switches_is_switched_back(options, training):
    model = Switching(lambda teacher: teacher.train(training))
    model.teacher[0].train(not training)
    graph = tbscope.trace(model, torch.randn(3, 4), **options)
    assert [module.training for module in model.teacher[0].modules()] == [not training] * 4
    # What forward asks for by itself holds, whatever mode was asked for around it.
    assert [call.training for call in graph.calls[1:]] == [training] * 4


class Stored(nn.Module):
    """Keeps its mode in another attribute."""

    @property
    def training(self):
        return self.__dict__.get("mode", True)

    @training.setter
    def training(self, mode):
        self.__dict__["mode"] = mode

    def forward(self, x):
        return x * 2 if self.training else x + 1


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluating"])
def test_a_module_that_keeps_its_mode_elsewhere_is_switched_and_switched_back(training):
    model = Stored()
    model.train(training)
    for mode in (True, False):
        graph = tbscope.trace(model, torch.ones(2), training=mode)
        assert [call.training for call in graph.calls] == [mode]
        assert model.training is training


@pytest.mark.parametrize("options", MODES, ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluating"])
def test_scripted_modules_that_forward_switches_have_their_flags_again(options, training):
    scripted = torch.jit.script(small()).train(training)

    def switch(x):
        return scripted.train(not training)(x)

    tbscope.trace(switch, torch.randn(3, 4), **options)
    assert [module.training for module in scripted.modules()] == [training] * 4


def test_a_compiled_module_is_listed_once_beside_its_wrapper():
    model, switched = of_both()
    registry = Registry()
    registry.add_root(model)
    listed = registry.modules()
    assert len(listed) == len(set(map(id, listed)))
    assert {id(module) for module in switched} == set(map(id, listed))
    assert all(registry.module(module) is not None for module in listed)
