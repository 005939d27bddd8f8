"""Optimizers that step in hooks of a backward pass are put back, however the hooks reach them."""

import functools

import pytest
import torch
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward

import tbscope

X = torch.ones(1, 2)
STEPPING = {}


def by_closure(model, optimizers, seen):
    def hook(parameter):
        optimizers[parameter].step()
        seen.append(parameter)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)


def by_global(model, optimizers, seen):
    STEPPING.clear()
    STEPPING.update(optimizers)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step_global)


def step_global(parameter):
    STEPPING[parameter].step()


def by_default(model, optimizers, seen):
    for parameter, optimizer in optimizers.items():
        parameter.register_post_accumulate_grad_hook(lambda one, by=optimizer: by.step())


def by_method(model, optimizers, seen):
    for parameter, optimizer in optimizers.items():
        parameter.register_post_accumulate_grad_hook(Steps(optimizer).run)


def by_partial(model, optimizers, seen):
    for parameter, optimizer in optimizers.items():
        hook = functools.partial(Steps.run, Steps(optimizer))
        parameter.register_post_accumulate_grad_hook(hook)


class Steps:
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def run(self, parameter):
        self.optimizer.step()


def by_autograd(model, optimizers, seen):
    kept = []
    for parameter, optimizer in optimizers.items():
        node = parameter.view_as(parameter).grad_fn.next_functions[0][0]
        node.register_hook(lambda *_, by=optimizer: by.step())
        kept.append(node)
    model.kept_nodes = lambda: kept


def by_modules(model, optimizers, seen):
    def after(module, given, got):
        for parameter in model[2].parameters():
            optimizers[parameter].step()
        seen.append(module)

    def before(module, got):
        seen.append(module)

    model[0].register_full_backward_hook(after)
    model[2].register_full_backward_pre_hook(before)


def by_torch(model, optimizers, seen):
    given = {"lr": 0.1, "momentum": 0.9}
    _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), given)
    for parameter in model.parameters():
        optimizers[parameter] = parameter._in_backward_optimizers[0]


REGISTERED = [
    *(by_closure, by_global, by_default, by_method, by_partial, by_autograd, by_modules, by_torch),
]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("register", REGISTERED)
@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_optimizers_that_step_in_hooks_are_put_back(register, kind):
    model, seen = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)), []
    given = {"lr": 0.1, **({"momentum": 0.9} if kind is torch.optim.SGD else {})}
    optimizers = {each: kind([each], **given) for each in model.parameters()}
    register(model, optimizers, seen)
    # So that each optimizer has a state.
    model(X).sum().backward()

    def state():
        return repr([[each.state_dict() for each in optimizers.values()], *model.parameters()])

    before = state()
    graph = tbscope.trace(model, X, loss=torch.sum, backward=True)
    assert state() == before
    assert [note.text for note in graph.notes if note.topic == "run"] == []
    # They did run, and are drawn.
    assert "SGD" in str(graph) or "Adam" in str(graph)
    model(X).sum().backward()
    assert state() != before


def test_variables_around_a_hook_stay_as_the_run_leaves_them():
    model, seen = nn.Linear(2, 2), []
    model.register_forward_hook(lambda module, given, got: seen.append(1))
    graph = tbscope.trace(model, X, loss=torch.sum, backward=True)
    assert seen == [1]
    assert [note.text for note in graph.notes if note.topic == "run"] == []


def test_a_hook_of_an_accumulated_gradient_that_forward_registers_is_gone_after():
    class Registers(nn.Linear):
        def forward(self, x):
            self.weight.register_post_accumulate_grad_hook(lambda weight: None)
            return super().forward(x)

    model = Registers(2, 2)
    tbscope.trace(model, X, loss=torch.sum, backward=True)
    assert not model.weight._post_accumulate_grad_hooks
