"""`watch` in trainings without a backward pass after the call: tangents, steps within."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, jvp
from training_steps import POINTS, Net

import tbscope


@pytest.fixture
def writer(tmp_path):
    with tbscope.SummaryWriter(str(tmp_path)) as writer:
        yield writer


def tops(graph):
    return list(dict.fromkeys(str(node.scope).split("/")[0] for node in graph.nodes))


def adam(model):
    return torch.optim.Adam(model.parameters())


def by_tangents(model, optimizer):
    """Train by the slope along a random way (a forward gradient)."""
    ways = [torch.randn_like(each) for each in model.parameters()]
    with torch.no_grad(), forward_ad.dual_level():
        pairs = zip(model.named_parameters(), ways, strict=True)
        held = {name: forward_ad.make_dual(each, way) for (name, each), way in pairs}
        loss = functional_call(model, held, (POINTS,)).pow(2).mean()
        slope = forward_ad.unpack_dual(loss).tangent
    for parameter, way in zip(model.parameters(), ways, strict=True):
        parameter.grad = slope * way
    optimizer.step()


def by_jvp(model, optimizer):
    def loss(held):
        return functional_call(model, held, (POINTS,)).pow(2).mean()

    held = {name: each.detach() for name, each in model.named_parameters()}
    ways = {name: torch.randn_like(each) for name, each in held.items()}
    _, slope = jvp(loss, (held,), (ways,))
    for name, parameter in model.named_parameters():
        parameter.grad = slope * ways[name]
    optimizer.step()


@pytest.mark.parametrize("step", [by_tangents, by_jvp])
def test_a_step_by_tangents_alone_is_drawn_and_trains_as_without(writer, step):
    trained = []
    for watch in (None, writer.watch):
        torch.manual_seed(0)
        # Tangents of a norm have other last bits under any mode, of torch's own too.
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        optimizer, watched = adam(model), watch and watch(model)
        for _ in range(2):
            step(model, optimizer)
        trained.append(model)
    for one, other in zip(*(model.parameters() for model in trained), strict=True):
        assert torch.equal(one, other)
    watched.graph.verify()
    assert tops(watched.graph) == ["None", "Sequential", "optimizer"]
    assert tbscope.lint(tbscope.to_graph_def(watched.graph)) == []
    updated = {node.attributes.get("updates") for node in watched.graph.nodes}
    assert updated >= {name for name, _ in model.named_parameters()}


def test_without_an_optimizer_such_a_step_is_over_with_the_next_call(writer):
    model = Net()
    watched = writer.watch(model)
    for _ in range(2):
        assert watched.graph is None
        with torch.no_grad(), forward_ad.dual_level():
            model(forward_ad.make_dual(POINTS, torch.ones_like(POINTS)))
    assert tops(watched.graph) == ["None", "Net"]


def test_a_slope_beside_a_backward_pass_ends_no_step(writer):
    model = Net()
    optimizer, watched = adam(model), writer.watch(model)
    _, slope = jvp(model, (POINTS,), (torch.ones_like(POINTS),))
    (model(POINTS).pow(2).mean() + slope.pow(2).mean()).backward()
    optimizer.step()
    assert tops(watched.graph) == ["None", "Net", "Net.1", "gradients", "optimizer"]


class TrainsItself(Net):
    """Makes its steps in its calls."""

    def __init__(self):
        super().__init__()
        self.optimizer = torch.optim.SGD(self.parameters(), 0.1)

    def forward(self, x):
        for _ in range(2):
            self.optimizer.zero_grad()
            super().forward(x).pow(2).mean().backward()
            self.optimizer.step()
        return super().forward(x).detach()


def test_a_call_that_makes_steps_within_is_drawn_at_its_end(writer):
    model = TrainsItself()
    watched = writer.watch(model)
    model(POINTS)
    watched.graph.verify()
    assert tops(watched.graph) == ["None", "TrainsItself"]
    scopes = [str(node.scope).split("/") for node in watched.graph.nodes]
    inside = {"gradients", "optimizer", "gradients.1", "optimizer.1"}
    assert {parts[1] for parts in scopes if len(parts) > 1} >= inside
