"""Times of a backward pass: every operation that autograd's engine runs is timed by itself."""

import time
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from training_steps import (
    IMAGES,
    POINTS,
    SEQUENCES,
    TARGETS,
    TOKENS,
    Net,
    WithFunction,
    backward_nodes,
    made,
    squares,
)

import tbscope
from tbscope import SummaryWriter

INPUTS = {
    "blocks": POINTS,
    "convolutions": IMAGES,
    "encoder layer": SEQUENCES,
    "reentrant checkpoint": POINTS.clone().requires_grad_(),
    "own function": POINTS,
    "tied": TOKENS,
}


class PlainTimer(TorchDispatchMode):
    """Times each kernel that runs for a node of autograd's graph."""

    def __init__(self):
        super().__init__()
        self.times = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        begun = time.perf_counter_ns()
        result = func(*args, **(kwargs or {}))
        if torch._C._current_autograd_node() is not None:
            self.times.append((func.name().partition(".")[0], time.perf_counter_ns() - begun))
        return result


def total(out):
    return out.pow(2).sum()


def profiled(model, given, **options):
    named = {"training": True, "loss": total, "backward": True, "profile": 1}
    return tbscope.trace(model, given, **named | options)


@pytest.mark.parametrize("name", INPUTS)
def test_every_operation_of_a_step_has_a_time(name):
    graph = profiled(made(name)[0], INPUTS[name])
    ran = [node for node in graph.nodes if node.kind == "op" and node.kernels]
    assert [node.op for node in ran if node.duration_us is None] == []
    assert all(node.duration_us > 0 for node in ran)
    assert all(node.peak_bytes is not None for node in ran)
    assert not any("no times" in note.text for note in graph.notes)


@pytest.mark.parametrize("name", ["blocks", "convolutions", "encoder layer", "tied"])
def test_what_is_timed_is_what_a_plain_timer_times(name):
    model = made(name)[0]
    timed = [node for node in backward_nodes(profiled(model, INPUTS[name])) if node.duration_us]
    with PlainTimer() as timer:
        total(model(INPUTS[name])).backward()
    kernels = [kernel for node in timed for kernel in node.kernels]
    assert kernels == [kernel for kernel, _ in timer.times]
    assert timer.times


def test_the_time_of_a_modules_gradient_is_that_of_its_operations():
    graph = profiled(Net(), POINTS)
    place = "gradients/Net/ModuleList[blocks]/Block[1]"
    (scope,) = [each for each in graph.scopes() if str(each) == place]
    inside = [node for node in backward_nodes(graph) if str(node.scope).startswith(place)]
    costs = tbscope.costs(graph).scopes[scope]
    assert costs.duration_us == pytest.approx(sum(node.duration_us for node in inside))
    assert costs.operations == len(inside) > 5


def test_functions_that_run_in_a_backward_pass_are_timed():
    graph = profiled(WithFunction(), POINTS)
    called = [node for node in backward_nodes(graph) if node.source is not None]
    assert {"mul", "add"} <= {node.op for node in called}
    assert all(node.duration_us for node in called)


def test_a_measured_step_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    squares(model)
    before = deepcopy(model.state_dict()), [each.grad.clone() for each in model.parameters()]
    state = torch.get_rng_state()
    profiled(model, POINTS, profile=2)
    assert torch.equal(torch.get_rng_state(), state)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[0][name])
    for each, gradient in zip(model.parameters(), before[1], strict=True):
        assert torch.equal(each.grad, gradient)


def test_gradients_that_were_not_there_are_not_there_after_a_measured_step():
    model = Net()
    profiled(model, POINTS)
    assert [each.grad for each in model.parameters()] == [None] * len(list(model.parameters()))


def test_the_whole_step_is_what_an_unwatched_run_takes():
    runs = []

    def loss(out):
        runs.append(out.requires_grad)
        return out.sum()

    graph = profiled(nn.Linear(3, 2), POINTS, loss=loss, profile=1)
    # One is drawn, one measures memory; one and two to warm up run unwatched, timed, and in parts.
    assert runs == [True] * (2 + 3 * 3)
    assert graph.profile.operations_us > 0
    assert graph.profile.peak_bytes >= max(node.peak_bytes or 0 for node in graph.nodes)


def test_a_loss_alone_is_timed_too():
    graph = profiled(nn.Linear(3, 2), POINTS, backward=False, grad=True)
    timed = {node.op for node in graph.nodes if node.duration_us}
    assert timed == {"linear", "pow", "sum"}


def test_a_pass_that_is_drawn_is_not_the_one_that_is_waited_for(tmp_path):
    model, optimizer = Net(), None
    with SummaryWriter(str(tmp_path)) as writer:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        watched = writer.watch(model)
        loss = nn.functional.cross_entropy(model(POINTS), TARGETS.repeat(2)[:5])
        drawn = profiled(nn.Linear(3, 2), POINTS)
        optimizer.step()
        assert watched.graph is None
        loss.backward()
        optimizer.step()
    assert backward_nodes(drawn)
    names = {str(node.scope) for node in backward_nodes(watched.graph)}
    assert "gradients/Net/Linear[head]" in names
    assert not any("gradients/Linear" in name for name in names)
