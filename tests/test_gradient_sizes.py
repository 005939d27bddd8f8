"""What gradients are like after a recorded step: norms, zeros, NaN and infinities by module."""

import math
from contextlib import ExitStack

import pytest
import torch
from torch import nn
from training_steps import POINTS, STEPS, Net, made, recorded, squares

import tbscope
from tbscope.overlays.make import make_overlay


def figure(graph, name):
    """Give the numbers of an overlay by the paths of modules."""
    (made_of,) = make_overlay(graph, name)
    return {str(scope): number for scope, number in made_of.numbers.items()}


def own_gradients(model):
    """Give the gradients of each module's own parameters in one row; a tied one counts once."""
    counted, found = set(), {}
    for name, module in model.named_modules():
        own = [one for one in module.parameters(recurse=False) if one not in counted]
        counted.update(own)
        gradients = [one.grad.detach().flatten() for one in own if one.grad is not None]
        if gradients:
            found[name] = torch.cat(gradients)
    return found


def by_name(graph, name):
    names = {str(scope): scope.qualified_name for scope in graph.scopes()}
    return {names[path]: number for path, number in figure(graph, name).items()}


@pytest.mark.parametrize("name", STEPS)
def test_the_figures_are_those_of_the_gradients_that_are_left(name):
    model, step = made(name)
    graph = recorded(model, step)
    wanted = own_gradients(model)
    norms, zeros = by_name(graph, "gradient_norm"), by_name(graph, "gradient_zeros")
    assert norms == pytest.approx({key: each.norm().item() for key, each in wanted.items()})
    assert zeros == {key: (each == 0).sum().item() / len(each) for key, each in wanted.items()}
    assert set(by_name(graph, "gradient_nan").values()) == {0}


def spoil(model, *wrong):
    """Have a step leave wrong numbers in the gradient of the first layer's bias."""

    def step(model):
        model[0].bias.register_hook(lambda given: given + torch.tensor(wrong))
        squares(model)

    return recorded(model, step)


class Held(nn.Module):
    """A layer that is never called: its holder uses what it holds."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3, bias=False)

    def forward(self, x):
        return x @ self.inner.weight


def layers():
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))


def test_what_is_no_number_is_counted_and_has_no_norm():
    graph = spoil(layers(), math.nan, math.inf, -math.inf)
    assert figure(graph, "gradient_nan") == {"Sequential/Linear[0]": 1, "Sequential/Linear[1]": 0}
    assert figure(graph, "gradient_inf") == {"Sequential/Linear[0]": 2, "Sequential/Linear[1]": 0}
    assert set(figure(graph, "gradient_norm")) == {"Sequential/Linear[1]"}
    graph = spoil(layers(), 1e18, 1.0, 0.0)
    assert set(figure(graph, "gradient_inf").values()) == {0}


def test_zeros_are_told_on_the_card():
    model = nn.Linear(3, 2)
    graph = recorded(model, lambda model: model(POINTS)[:, 0].sum().backward())
    (given,) = [node for node in graph.nodes if node.attributes.get("gradient_of") == "bias"]
    assert given.attributes["gradient_zeros"] == 1
    assert given.attributes["gradient_norm"] == model.bias.grad.norm().item() == 5


def test_gradients_of_half_the_bits_do_not_overflow():
    model = nn.Linear(3, 2).half()
    graph = recorded(model, lambda model: (model(POINTS.half()) * 300).sum().backward())
    (norm,) = figure(graph, "gradient_norm").values()
    whole = torch.cat([one.grad.float().flatten() for one in model.parameters()])
    assert norm == pytest.approx(whole.norm().item())
    assert norm > 1500


def test_sparse_gradients_are_left_out():
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2))
    graph = recorded(model, lambda model: model(torch.tensor([1])).sum().backward())
    assert set(figure(graph, "gradient_norm")) == {"Sequential/Linear[1]"}


def test_models_whose_parts_have_the_same_names_have_gradients_of_their_own():
    one, other = layers(), layers()
    with tbscope.record(one, other) as recording:
        (one(POINTS).sum() * 2).backward()
        other(POINTS).sum().backward()
    norms = figure(recording.graph, "gradient_norm")
    wanted = [
        each.norm().item() for model in (one, other) for each in own_gradients(model).values()
    ]
    assert list(norms.values()) == pytest.approx(wanted)


@pytest.mark.parametrize("inner", [nn.Identity, Held])
def test_models_of_one_class_have_the_gradients_of_their_last_pass(inner):
    one, other = (nn.Sequential(inner(), nn.Linear(3, 2)) for _ in range(2))
    with tbscope.record(one, other) as recording:
        for factor in (1, 10):
            (one(POINTS).sum() * factor).backward()
            (other(POINTS).sum() * factor * 100).backward()
    norms = figure(recording.graph, "gradient_norm")
    wanted = [
        each.norm().item() for model in (one, other) for each in own_gradients(model).values()
    ]
    assert list(norms.values()) == pytest.approx(wanted)


@pytest.mark.parametrize("names", [("one", "two"), ("part", "part"), ("all/first", "all/last")])
def test_gradients_of_passes_that_begin_in_scopes_are_those_of_their_modules(names):
    models = layers(), layers()
    with tbscope.record(*models) as recording:
        for factor in (1, 10):
            for name, model in zip(names, models, strict=True):
                with ExitStack() as stack:
                    for part in name.split("/"):
                        stack.enter_context(tbscope.scope(part))
                    (model(POINTS).sum() * factor * len(name)).backward()
    norms = figure(recording.graph, "gradient_norm")
    wanted = [each.norm().item() for model in models for each in own_gradients(model).values()]
    assert list(norms.values()) == pytest.approx(wanted)


def test_gradients_of_a_pass_in_a_scope_of_its_own_are_those_of_their_modules():
    models = layers(), layers()
    with tbscope.record(*models) as recording:
        with tbscope.scope("there"):
            losses = [model(POINTS).sum() * (at + 1) for at, model in enumerate(models)]
        with tbscope.scope("back"):
            for loss in losses:
                loss.backward()
    norms = figure(recording.graph, "gradient_norm")
    wanted = [each.norm().item() for model in models for each in own_gradients(model).values()]
    assert list(norms.values()) == pytest.approx(wanted)


def test_in_a_scope_too_a_model_that_no_gradient_reaches_has_not_those_of_another_one():
    one, other = layers(), layers()
    with tbscope.record(one, other) as recording, tbscope.scope("step"):
        one(POINTS)
        other(POINTS).sum().backward()
    norms = figure(recording.graph, "gradient_norm")
    assert list(norms) == ["step/Sequential.1/Linear[0]", "step/Sequential.1/Linear[1]"]


def test_a_model_that_no_gradient_reaches_has_not_those_of_another_one():
    one, other = layers(), layers()
    with tbscope.record(one, other) as recording:
        one(POINTS)
        other(POINTS).sum().backward()
    norms = figure(recording.graph, "gradient_norm")
    assert list(norms) == ["Sequential.1/Linear[0]", "Sequential.1/Linear[1]"]


def test_gradients_that_are_dropped_in_the_step_are_told_as_they_were():
    model = nn.Linear(3, 2)

    def step(model):
        squares(model)
        step.norm = model.weight.grad.norm().item()
        model.zero_grad()

    graph = recorded(model, step)
    (given,) = [node for node in graph.nodes if node.attributes.get("gradient_of") == "weight"]
    assert given.attributes["gradient_norm"] == pytest.approx(step.norm)


@pytest.mark.parametrize("name", ["gradient_norm", "gradient_zeros", "gradient_nan"])
def test_a_graph_without_a_backward_pass_says_so(name):
    with pytest.raises(tbscope.ArgumentError, match="has no gradients of parameters"):
        make_overlay(tbscope.trace(Net(), POINTS), name)


def test_stand_ins_have_no_gradients_that_could_be_looked_at():
    for model, given, fake in ((Net(), POINTS, True), (Net().to("meta"), POINTS.to("meta"), False)):
        graph = tbscope.trace(model, given, loss=torch.sum, backward=True, fake=fake)
        assert not any("gradient_norm" in node.attributes for node in graph.nodes)
    graph = tbscope.trace(Net(), POINTS, loss=torch.sum, backward=True)
    assert any("gradient_norm" in node.attributes for node in graph.nodes)


class Wide(nn.Module):
    """A parameter of many pieces, of which the last is not a whole one."""

    def __init__(self, dtype, turned):
        super().__init__()
        weight = torch.ones(3, 70_000, dtype=dtype)
        self.weight = nn.Parameter(weight.t() if turned else weight)

    def forward(self, factors):
        return (self.weight * factors).sum()


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.complex64])
def test_a_large_gradient_is_told_as_a_whole(dtype, turned):
    model = Wide(dtype, turned)
    factors = torch.arange(210_000).reshape(model.weight.shape).remainder(7).to(dtype)
    graph = recorded(model, lambda model: model(factors).abs().backward())
    (told,) = [node.attributes for node in graph.nodes if "gradient_norm" in node.attributes]
    wide = torch.complex128 if dtype.is_complex else torch.float64
    assert told["gradient_norm"] == pytest.approx(model.weight.grad.to(wide).norm().item())
    assert told["gradient_zeros"] == 30_000


def test_what_is_no_number_is_counted_in_a_large_gradient():
    model, factors = Wide(torch.float32, turned=False), torch.ones(3, 70_000)
    factors[0, 0], factors[2, -1] = math.nan, math.inf
    graph = recorded(model, lambda model: model(factors).backward())
    (told,) = [node.attributes for node in graph.nodes if "gradient_zeros" in node.attributes]
    assert told["gradient_nan"] == told["gradient_inf"] == 1
    assert "gradient_norm" not in told
