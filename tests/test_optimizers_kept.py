"""What optimizers keep from step to step, in whatever holds it, and what is done for several."""

import pytest
import torch
from test_optimizers import WRITES, Aliasing, trained
from torch import nn
from training_steps import POINTS, squares

import tbscope


class History:
    """Keeps tensors in attributes, as a class of the optimizer's own does."""

    def __init__(self, tensor):
        self.latest = tensor


class Keeping(torch.optim.Optimizer):
    """Adds what it keeps for a parameter to the gradient, wherever it keeps it."""

    def __init__(self, parameters, keep, find):
        super().__init__(parameters, {"lr": 0.1})
        self.keep, self.find = keep, find

    @torch.no_grad()
    def step(self, closure):
        torch.enable_grad()(closure)()
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            kept = self.find(state) if state else torch.zeros_like(parameter)
            parameter.sub_(parameter.grad + kept)
            state["kept"] = self.keep(parameter.grad.clone())


KEPT = {
    "itself": (lambda tensor: tensor, lambda state: state["kept"], ""),
    "a list": (lambda tensor: [0, tensor], lambda state: state["kept"][1], ".1"),
    "a mapping": (lambda tensor: {"m": tensor}, lambda state: state["kept"]["m"], ".m"),
    "an object": (History, lambda state: state["kept"].latest, ".latest"),
}


def inputs(graph):
    return [node.name for node in graph.inputs]


@pytest.mark.parametrize("way", KEPT)
def test_what_an_optimizer_keeps_for_a_parameter_stands_in_its_box(way):
    keep, find, path = KEPT[way]
    model = nn.Linear(3, 2)
    graph = trained(model, Keeping(model.parameters(), keep, find), steps=2)
    kept = [node.name for node in graph.nodes if node.kind == "constant"]
    assert kept == [f"optimizer/Keeping/Linear/{name}.kept{path}" for name in ("weight", "bias")]
    assert inputs(graph) == ["input"]


def test_what_lbfgs_keeps_of_earlier_steps_is_no_input():
    model = nn.Linear(3, 2)
    given = torch.optim.LBFGS(model.parameters(), max_iter=2)
    graph = trained(model, given, steps=3)
    assert inputs(graph) == ["input"]
    assert any(node.name.endswith(".old_dirs.0") for node in graph.nodes)


def test_a_step_size_that_is_a_tensor_stands_in_the_box_of_the_optimizer():
    model, size = nn.Linear(3, 2), torch.tensor(0.1)
    graph = trained(model, torch.optim.SGD(model.parameters(), size, foreach=True))
    assert inputs(graph) == ["input"]
    (kept,) = [node for node in graph.nodes if node.kind == "constant"]
    assert kept.name == "optimizer/SGD.lr"


def test_what_an_optimizer_does_not_keep_is_an_input():
    noise = torch.ones(())

    class Noisy(torch.optim.SGD):
        def step(self, closure):
            super().step(closure)
            with torch.no_grad():
                self.param_groups[0]["params"][0].add_(noise)

    model = nn.Linear(3, 2)
    graph = trained(model, Noisy(model.parameters(), 0.1))
    assert inputs(graph) == ["input", "input~2"]


class Counted(list):
    """Counts how often somebody goes through it."""

    times = 0

    def __iter__(self):
        self.times += 1
        return super().__iter__()


@pytest.mark.parametrize("named", [True, False])
def test_the_parameters_are_gone_through_as_often_for_many_as_for_few(named):
    times = []
    for count in (2, 9):
        model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(count)))
        optimizer = Aliasing(model.parameters(), WRITES["a view"][0])
        optimizer.param_groups = Counted(optimizer.param_groups)
        with tbscope.record(*([model] if named else [])):
            parameters = list(model.parameters())
            sum(one.square().sum() for one in parameters).backward()
            optimizer.step(lambda: None)
        times.append(optimizer.param_groups.times)
    assert times[0] == times[1]


def test_of_two_models_of_one_class_each_parameter_is_told_by_its_own_name():
    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    both = [*one.parameters(), *other.parameters()]
    optimizer = Aliasing(both, WRITES["a view"][0])
    with tbscope.record(one, other) as recording:
        (one(POINTS) - other(POINTS)).square().sum().backward()
        optimizer.step(lambda: None)
    told = [node.attributes.get("updates") for node in recording.graph.nodes]
    assert [name for name in told if name] == ["weight", "bias"] * 2


class ByTurns(torch.optim.Optimizer):
    """Works on all parameters at once, on each by itself, and on all again."""

    def __init__(self, parameters, together):
        super().__init__(parameters, {"together": together})

    @torch.no_grad()
    def step(self, closure):
        torch.enable_grad()(closure)()
        given = self.param_groups[0]["params"]
        moments = [self.state[one].setdefault("m", torch.ones_like(one)) for one in given]
        if self.param_groups[0]["together"]:
            torch._foreach_mul_(moments, 0.9)
        sizes = [moment.square() for moment in moments]
        torch._foreach_sub_(given, sizes)


@pytest.mark.parametrize("together", [True, False])
def test_what_goes_on_from_what_was_done_for_all_stands_beside_it(together):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    graph = trained(model, ByTurns(model.parameters(), together), steps=2)
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []
    squared = {str(node.scope) for node in graph.nodes if node.op == "square"}
    assert ("optimizer/ByTurns" in squared) is together
    assert len(squared) == (1 if together else 4)


@pytest.mark.parametrize("passes", [1, 2])
def test_what_clips_after_each_pass_has_a_box_for_each(passes):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with tbscope.record(model) as recording:
        for number in range(2):
            if number < passes:
                squares(model)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    boxes = dict.fromkeys(str(node.scope).split("/")[0] for node in recording.graph.nodes)
    clipping = [box for box in boxes if box.startswith("clip")]
    assert clipping == ["clip_grad_norm_", "clip_grad_norm_.1"][:passes]
    assert tbscope.lint(tbscope.to_graph_def(recording.graph)) == []
