"""What loops of a script's own do to parameters and gradients stands in a box."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from training_steps import POINTS, squares

import tbscope
from tbscope.sources.eager.record.manual_updates import origin_of


@torch.no_grad()
def average(kept, learnt):
    for one, other in zip(kept, learnt, strict=True):
        one.mul_(0.9).add_(other, alpha=0.1)


def by_a_function(model, twin, kept):
    average(twin.parameters(), model.parameters())


def in_the_loop(model, twin, kept):
    with torch.no_grad():
        for one, other in zip(twin.parameters(), model.parameters(), strict=True):
            one.copy_(one * 0.9 + other * 0.1)


def of_tensors(model, twin, kept):
    average(kept, [each.data for each in model.parameters()])


def by_hand(model, twin, kept):
    for each in model.parameters():
        each.data.sub_(0.1 * each.grad)


def set_anew(model, twin, kept):
    for one, other in zip(twin.parameters(), model.parameters(), strict=True):
        one.data = one.data * 0.9 + other.data * 0.1


def kept_anew(model, twin, kept):
    for at, each in enumerate(model.parameters()):
        kept[at] = kept[at] * 0.9 + each.data * 0.1


def squares_kept(model, twin, kept):
    for at, each in enumerate(model.parameters()):
        kept[at] = 0.9 * kept[at] + 0.1 * each.grad.detach() ** 2


def norms(model, twin, kept):
    return [(each.data * 2).norm() for each in model.parameters()]


def in_torch(model, twin, kept):
    twin.load_state_dict(model.state_dict())


def apart(model, twin, kept):
    with tbscope.scope("apart"):
        average(twin.parameters(), model.parameters())


def few(model, twin, kept):
    twin[0].bias.data.zero_()


def read_later(model, twin, kept):
    for each in kept:
        each.mul_(2)
    return [each.exp() for each in kept]


WAYS = {
    by_a_function: "average",
    in_the_loop: "in_the_loop",
    of_tensors: "average",
    by_hand: "by_hand",
    set_anew: "set_anew",
    kept_anew: "kept_anew",
    squares_kept: "squares_kept",
    norms: None,
    in_torch: "Module.load_state_dict",
    apart: "apart",
    few: None,
    read_later: None,
}


def recorded(way, *, passes=True):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    twin, kept = deepcopy(model), [each.detach().clone() for each in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with tbscope.record(model, twin) as recording:
        if passes:
            squares(model)
            optimizer.step()
        held = way(model, twin, kept), kept
    del held
    return recording.graph


def boxes(graph):
    found = {}
    for node in graph.nodes:
        if node.kind == "op" and node.role != "view":
            top = (
                None
                if node.scope is None
                else next(iter([*node.scope.ancestors()][::-1]), node.scope)
            )
            found.setdefault(None if top is None else top.part.label, []).append(node)
    return found


@pytest.mark.parametrize("way", WAYS)
def test_what_is_done_to_parameters_has_a_box(way):
    name = WAYS[way]
    graph = recorded(way)
    graph.verify()
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []
    found = boxes(graph)
    known = {"Sequential", "gradients", "optimizer"}
    assert set(found) - known - {None} == ({name} if name else set())
    # The loss.
    assert [node.op for node in found[None]][:2] == ["pow", "mean"]
    assert (len(found[None]) == 2) is (name is not None)


def test_a_block_of_the_users_own_has_no_box_in_it():
    graph = recorded(apart)
    assert {str(node.scope) for node in graph.nodes if node.op == "mul_"} == {"apart"}


@pytest.mark.parametrize(("also", "name"), [(True, "update"), (False, "learn")])
def test_a_box_is_called_like_a_function_that_does_nothing_else(also, name):
    def learn(model, loss):
        if also:
            loss = loss.square().mean()
        loss.backward()
        for each in model.parameters():
            each.data.sub_(0.1 * each.grad).clamp_(-1, 1)

    model = nn.Linear(3, 2)
    with tbscope.record(model) as recording:
        out = model(POINTS)
        learn(model, out if also else out.square().mean())
    (box,) = {str(node.scope) for node in recording.graph.nodes if node.op == "clamp_"}
    assert box == name


def noisy(model):
    for each in model.parameters():
        each.grad = each.grad.clamp(-1, 1) + torch.randn_like(each)


def joined(model):
    flat = torch.cat([each.grad.flatten() for each in model.parameters()])
    flat, at = flat / flat.norm(), 0
    for each in model.parameters():
        each.grad = flat[at : at + each.numel()].view_as(each).clone()
        at += each.numel()


@pytest.mark.parametrize("change", [noisy, joined])
def test_what_is_done_to_gradients_before_they_are_set_has_a_box(change):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with tbscope.record(model) as recording:
        squares(model)
        change(model)
        optimizer.step()
    found = boxes(recording.graph)
    assert list(found) == ["Sequential", None, "gradients", change.__name__, "optimizer"]
    assert [node.op for node in found[None]] == ["pow", "mean"]
    assert tbscope.lint(tbscope.to_graph_def(recording.graph)) == []


def test_what_sets_a_parameter_from_a_copy_of_it_has_a_box_like_the_copy():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    with tbscope.record(model) as recording:
        squares(model)
        before = [each.data.clone() for each in model.parameters()]
        for each in model.parameters():
            each.data.add_(each.grad)
        squares(model)
        for each, old in zip(model.parameters(), before, strict=True):
            each.data = old
    tops = [str(node.scope) for node in recording.graph.nodes if node.op in ("clone", "set_data")]
    assert tops == ["update"] * 4 + ["update.1"] * 4


def test_a_step_by_tangents_alone_has_a_box_for_what_it_does_to_parameters():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    held = {name: each.detach() for name, each in model.named_parameters()}
    ways = {name: torch.randn_like(each) for name, each in held.items()}

    def loss(held):
        return torch.func.functional_call(model, held, (POINTS,)).pow(2).mean()

    with tbscope.record(model) as recording:
        _, slope = torch.func.jvp(loss, (held,), (ways,))
        with torch.no_grad():
            for name, each in model.named_parameters():
                each.sub_(0.1 * slope * ways[name])
    found = boxes(recording.graph)
    assert {node.op for node in found["update"]} == {"mul", "sub_"}
    assert "mean" in {node.op for node in found[None]}


def test_without_a_backward_pass_there_is_no_such_box():
    assert None in boxes(recorded(by_a_function, passes=False))


def test_what_is_done_before_the_optimizer_and_after_it_stands_apart():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    twin, optimizer = deepcopy(model), torch.optim.SGD(model.parameters(), 0.1)
    with tbscope.record(model, twin) as recording:
        squares(model)
        for each in model.parameters():
            each.grad.add_(torch.randn_like(each.grad))
        optimizer.step()
        in_the_loop(model, twin, ())
    tops = dict.fromkeys(str(node.scope).split("/")[0] for node in recording.graph.nodes)
    order = ["gradients", "update", "optimizer", "in_the_loop"]
    assert [top for top in tops if top in order] == order
    assert tbscope.lint(tbscope.to_graph_def(recording.graph)) == []


def test_a_step_in_a_block_has_the_box_in_that_block():
    model = nn.Linear(3, 2)
    twin = deepcopy(model)
    with tbscope.record(model, twin) as recording:
        for _ in range(2):
            with tbscope.scope("step"):
                squares(model)
                average(twin.parameters(), model.parameters())
    found = {str(node.scope) for node in recording.graph.nodes if node.op == "mul_"}
    assert found == {"step/average", "step.1/average"}


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(10, 3)
        layers = (nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
        self.net = nn.Sequential(*layers)

    def forward(self, x, time):
        return self.net(x + self.time(time))


def test_inputs_and_outputs_of_what_a_script_keeps_stand_in_boxes_beside_a_long_loss():
    torch.manual_seed(0)
    model, signal = Denoiser(), torch.linspace(0.99, 0.01, 10)
    kept = [each.detach().clone() for each in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters())
    with tbscope.record(model) as recording:
        time, noise = torch.randint(0, 10, (5,)), torch.randn_like(POINTS)
        near, far = signal[time].sqrt()[:, None], (1 - signal[time]).sqrt()[:, None]
        aim = near * noise - far * POINTS
        weight = (signal[time] / (1 - signal[time])).clamp(max=5)[:, None]
        out = model(near * POINTS + far * noise, time)
        (weight * nn.functional.mse_loss(out, aim, reduction="none")).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        kept_anew(model, None, kept)
    assert tbscope.lint(tbscope.to_graph_def(recording.graph)) == []


def test_a_result_beside_written_tensors_has_its_own_operation_as_origin():
    def run(x, mean, variance):
        return nn.functional.batch_norm(x, mean, variance, training=True), mean

    graph = tbscope.trace(run, (torch.ones(2, 3), torch.zeros(3), torch.ones(3)))
    result, mean = graph.outputs
    assert len(result.value.producer.outputs) > len(result.value.producer.writes)
    assert origin_of(result.value).op == "batch_norm"
    assert origin_of(mean.value).name == "mean"
