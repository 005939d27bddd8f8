"""What gradients are like after a recorded step: norms, zeros, NaN and infinities."""

import math

import pytest
import torch
from torch import nn
from training_steps import POINTS, STEPS, Net, made, recorded, squares

import tbscope
from tbscope.overlays.overlay import make_overlay


def told(graph, name):
    """Give an attribute of the gradients that parameters are left with, by their names."""
    given = [node.attributes for node in graph.nodes if "gradient_zeros" in node.attributes]
    return {str(one["gradient_of"]): one[name] for one in given if name in one}


@pytest.mark.parametrize("name", STEPS)
def test_the_sizes_are_those_of_the_gradients_that_are_left(name):
    model, step = made(name)
    graph = recorded(model, step)
    norms, zeros = told(graph, "gradient_norm"), told(graph, "gradient_zeros")
    named = model.named_parameters(remove_duplicate=False)
    given = {key: one.grad for key, one in named if key in norms}
    everything = {one.grad for one in model.parameters() if one.grad is not None}
    assert set(given.values()) == everything
    assert {key: norms[key] for key in given} == pytest.approx(
        {key: one.norm().item() for key, one in given.items()}
    )
    assert {key: zeros[key] for key in given} == {
        key: (one == 0).sum().item() / one.numel() for key, one in given.items()
    }
    assert told(graph, "gradient_nan") == {}


def test_they_are_numbers_of_an_overlay_by_the_names_of_parameters():
    model = layers()
    graph = recorded(model, squares)
    norms = told(graph, "gradient_norm")
    (figure,) = make_overlay(graph, "gradient_norm", norms)
    assert {node.name: number for node, number in figure.numbers.items()} == norms


def spoil(model, *wrong):
    """Have a step leave wrong numbers in the gradient of the first layer's bias."""

    def step(model):
        model[0].bias.register_hook(lambda given: given + torch.tensor(wrong))
        squares(model)

    return recorded(model, step)


def layers():
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))


def test_what_is_no_number_is_counted_and_has_no_norm():
    graph = spoil(layers(), math.nan, math.inf, -math.inf)
    assert told(graph, "gradient_nan")["0.bias"] == 1
    assert told(graph, "gradient_inf")["0.bias"] == 2
    assert set(told(graph, "gradient_norm")) == {"0.weight", "1.weight", "1.bias"}
    graph = spoil(layers(), 1e18, 1.0, 0.0)
    assert told(graph, "gradient_inf") == {}


def test_zeros_are_told_on_the_card():
    model = nn.Linear(3, 2)
    graph = recorded(model, lambda model: model(POINTS)[:, 0].sum().backward())
    (given,) = [node for node in graph.nodes if node.attributes.get("gradient_of") == "bias"]
    assert given.attributes["gradient_zeros"] == 0.5
    assert given.attributes["gradient_norm"] == model.bias.grad.norm().item() == 5


def test_gradients_of_half_the_bits_do_not_overflow():
    model = nn.Linear(3, 2).half()
    graph = recorded(model, lambda model: (model(POINTS.half()) * 300).sum().backward())
    norms = told(graph, "gradient_norm")
    assert norms["bias"] == pytest.approx(model.bias.grad.float().norm().item())
    assert max(norms.values()) > 1500


def test_sparse_gradients_are_left_out():
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2))
    graph = recorded(model, lambda model: model(torch.tensor([1])).sum().backward())
    assert set(told(graph, "gradient_norm")) == {"1.weight", "1.bias"}


def test_gradients_that_are_dropped_in_the_step_are_told_as_they_were():
    model = nn.Linear(3, 2)

    def step(model):
        squares(model)
        step.norm = model.weight.grad.norm().item()
        model.zero_grad()

    graph = recorded(model, step)
    (given,) = [node for node in graph.nodes if node.attributes.get("gradient_of") == "weight"]
    assert given.attributes["gradient_norm"] == pytest.approx(step.norm)


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
    (sizes,) = [node.attributes for node in graph.nodes if "gradient_norm" in node.attributes]
    wide = torch.complex128 if dtype.is_complex else torch.float64
    assert sizes["gradient_norm"] == pytest.approx(model.weight.grad.to(wide).norm().item())
    assert sizes["gradient_zeros"] == pytest.approx(1 / 7)


def test_what_is_no_number_is_counted_in_a_large_gradient():
    model, factors = Wide(torch.float32, turned=False), torch.ones(3, 70_000)
    factors[0, 0], factors[2, -1] = math.nan, math.inf
    graph = recorded(model, lambda model: model(factors).backward())
    (sizes,) = [node.attributes for node in graph.nodes if "gradient_zeros" in node.attributes]
    assert sizes["gradient_nan"] == sizes["gradient_inf"] == 1
    assert "gradient_norm" not in sizes
