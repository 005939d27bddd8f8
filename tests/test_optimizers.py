"""Steps of optimizers: what is done for a parameter stands in a box of its name."""

from copy import deepcopy
from weakref import ref

import pytest
import torch
from torch import nn
from training_steps import POINTS, Net, closure_of, squares

import tbscope

OPTIMIZERS = {
    "SGD, each by itself": lambda given: torch.optim.SGD(given, 0.1, 0.9, foreach=False),
    "SGD, all at once": lambda given: torch.optim.SGD(given, 0.1, 0.9, foreach=True),
    "Adam, each by itself": lambda given: torch.optim.Adam(given, foreach=False),
    "Adam, all at once": lambda given: torch.optim.Adam(given, foreach=True),
    "AdamW, fused": lambda given: torch.optim.AdamW(given, fused=True),
    "Adagrad": torch.optim.Adagrad,
    "Adafactor": torch.optim.Adafactor,
    "RMSprop": torch.optim.RMSprop,
    "LBFGS": lambda given: torch.optim.LBFGS(given, max_iter=2),
}


def run(model, optimizer):
    optimizer.step(closure_of(model, optimizer))


def trained(model, optimizer, steps=1):
    """Give the graph of a last step."""
    for _ in range(steps - 1):
        run(model, optimizer)
    with tbscope.record(model) as recording:
        run(model, optimizer)
    return recording.graph


def optimizer_nodes(graph):
    return [node for node in graph.nodes if node.phase == "optimizer"]


def updated(graph):
    return {
        name
        for node in optimizer_nodes(graph)
        for name in str(node.attributes.get("updates", "")).split(", ")
        if name
    }


@pytest.fixture(params=OPTIMIZERS)
def make(request):
    torch.manual_seed(0)
    return OPTIMIZERS[request.param]


def test_training_goes_on_as_without_a_recording(make):
    model = Net()
    other = deepcopy(model)
    optimizer, unwatched = make(model.parameters()), make(other.parameters())
    trained(model, optimizer, steps=2)
    run(model, optimizer)
    for _ in range(3):
        run(other, unwatched)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one.grad, two.grad)
        held, alike = optimizer.state[one], unwatched.state[two]
        assert held.keys() == alike.keys()
        tensors = [name for name in held if isinstance(held[name], torch.Tensor)]
        assert all(torch.equal(held[name], alike[name]) for name in tensors)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_step_is_sound_and_updates_every_parameter(make, steps):
    model = Net()
    graph = trained(model, make(model.parameters()), steps)
    graph.verify()
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []
    assert updated(graph) == set(dict(model.named_parameters()))


def test_all_of_a_step_stands_in_the_box_of_its_optimizer(make):
    model = Net()
    graph = trained(model, make(model.parameters()))
    roots = {str(node.scope).split("/")[0] for node in optimizer_nodes(graph)}
    assert roots == {"optimizer"}
    names = {str(node.scope).split("/")[1] for node in optimizer_nodes(graph)}
    assert len(names) == 1


def test_what_is_done_for_one_parameter_stands_in_its_box():
    model = Net()
    graph = trained(model, torch.optim.Adam(model.parameters(), foreach=False))
    scopes = {str(node.scope) for node in optimizer_nodes(graph)}
    box = "optimizer/Adam/Net/{}"
    assert scopes == {
        *(box.format(f"Linear[inp]/{name}") for name in ("weight", "bias")),
        *(box.format(f"Linear[head]/{name}") for name in ("weight", "bias")),
        *(
            box.format(f"ModuleList[blocks]/Block[{number}]/{part}/{name}")
            for number in (0, 1)
            for part in ("Linear[fc]", "LayerNorm[norm]")
            for name in ("weight", "bias")
        ),
    }


def test_what_is_begun_for_one_parameter_stands_in_its_box_where_all_go_on_together():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    graph = trained(model, torch.optim.Adam(model.parameters(), foreach=True))
    counters = [node for node in optimizer_nodes(graph) if node.op == "tensor"]
    boxes = [f"optimizer/Adam/Sequential/Linear[{i}]/{n}" for i in "01" for n in ("weight", "bias")]
    # The last is the 1 that is added to all of them.
    assert [str(node.scope) for node in counters] == [*boxes, "optimizer/Adam"]
    (added,) = {str(node.scope) for node in optimizer_nodes(graph) if node.op == "foreach_add_"}
    assert added == "optimizer/Adam"


@pytest.mark.parametrize(("name", "box"), [("head", "head"), ("", "group_1"), (3, "group_1")])
def test_groups_have_boxes_of_their_own_called_by_names_that_are_texts(name, box):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    groups = [{"params": model[0].parameters()}, {"params": model[1].parameters(), "name": name}]
    graph = trained(model, torch.optim.SGD(groups, lr=0.1, foreach=True))
    scopes = {str(node.scope) for node in optimizer_nodes(graph)}
    assert scopes == {"optimizer/SGD/group_0", f"optimizer/SGD/{box}"}


def test_a_gradient_arrives_where_its_parameter_is_updated():
    model = nn.Linear(3, 2, bias=False)
    graph = trained(model, torch.optim.SGD(model.parameters(), lr=0.1, foreach=False))
    (update,) = [node for node in optimizer_nodes(graph) if "updates" in node.attributes]
    producers = [value.producer for value in update.inputs]
    assert [node.kind for node in producers] == ["parameter", "op"]
    assert producers[1].attributes["gradient_of"] == "weight"


def test_the_model_in_a_closure_stands_outside_until_the_optimizer_has_begun():
    model = nn.Linear(3, 2)
    graph = trained(model, torch.optim.LBFGS(model.parameters(), max_iter=2))
    calls = [str(call.scope) for call in graph.calls]
    assert calls == ["Linear", "optimizer/LBFGS/Linear"]
    graph = trained(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert [str(call.scope) for call in graph.calls] == ["Linear"]


def test_an_optimizer_that_a_method_of_the_model_calls_has_the_boxes_of_its_parameters():
    class Learner(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 1)
            self.optimizer = torch.optim.SGD(self.parameters(), 0.1)

        def learn(self):
            self.fc(torch.ones(1, 2)).sum().backward()
            self.optimizer.step()

    with tbscope.record(learner := Learner()) as recording:
        learner.learn()
    made = [str(node.scope) for node in recording.graph.nodes if node.phase == "optimizer"]
    box = "optimizer/SGD/Learner/Linear[fc]"
    assert made == [f"{box}/weight", f"{box}/bias"]


def test_clipping_has_a_box_of_its_own():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tbscope.record(model) as recording:
        squares(model)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    tops = [str(node.scope).split("/")[0] for node in recording.graph.nodes]
    boxes = ["None", "Linear", "gradients", "clip_grad_norm_", "optimizer"]
    assert list(dict.fromkeys(tops)) == boxes


@pytest.mark.parametrize("of_gradients", [True, False])
def test_a_norm_that_is_asked_for_and_clipped_by_has_the_boxes_of_both_helpers(of_gradients):
    model = nn.Linear(3, 2)
    squares(model)
    with tbscope.record(model) as recording:
        # Nothing is differentiated there, not even what requires it.
        norm = torch.nn.utils.get_total_norm(
            [each.grad if of_gradients else each for each in model.parameters()], foreach=False
        )
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)
    assert {node.phase for node in recording.graph.nodes if node.kind == "op"} == {"optimizer"}
    boxes = [str(node.scope) for node in recording.graph.nodes if node.kind == "op"]
    assert list(dict.fromkeys(boxes)) == ["get_total_norm", "clip_grads_with_norm_"]


@pytest.mark.parametrize("bias", [True, False])
def test_an_optimizer_of_one_parameter_that_keeps_something_works_in_its_box(bias):
    model = nn.Linear(3, 2, bias=bias)
    graph = trained(model, torch.optim.Adam(model.parameters(), foreach=False))
    names = ["weight", "bias"] if bias else ["weight"]
    scopes = {str(node.scope) for node in optimizer_nodes(graph)}
    assert scopes == {f"optimizer/Adam/Linear/{name}" for name in names}


def test_what_clips_before_each_of_two_steps_has_a_box_for_each():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tbscope.record(model) as recording:
        for _ in range(2):
            squares(model)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    tops = [str(node.scope).split("/")[0] for node in recording.graph.nodes]
    boxes = [top for top in dict.fromkeys(tops) if top.startswith("clip_grad_norm_")]
    assert boxes == ["clip_grad_norm_", "clip_grad_norm_.1"]


def test_an_optimizer_that_raises_leaves_no_box_open():
    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            raise ZeroDivisionError

    model = nn.Linear(3, 2)
    failing = Failing(model.parameters(), lr=0.1)
    with tbscope.record(model) as recording:
        squares(model)
        with pytest.raises(ZeroDivisionError):
            failing.step()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        model(POINTS).exp()
    last = recording.graph.nodes[-1]
    assert (last.op, last.scope) == ("exp", None)


AFTER = {
    "a module": lambda model, loss: model(POINTS),
    "an operation": lambda model, loss: torch.ones(2).sin(),
    "a step": lambda model, loss: torch.optim.SGD(model.parameters(), lr=0.1).step(),
    "a backward pass": lambda model, loss: loss.backward(),
    "a scope by hand": lambda model, loss: by_hand(model),
}


def by_hand(model):
    with tbscope.scope("mine"):
        model(POINTS)


@pytest.mark.parametrize("after", AFTER)
def test_training_goes_on_outside_of_a_step_that_has_failed_amid_its_work(after):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    run(model, optimizer)
    optimizer.state[model.bias]["exp_avg"] = torch.ones(7)
    with tbscope.record(model) as recording:
        loss = model(POINTS).pow(2).mean()
        with pytest.raises(RuntimeError):
            optimizer.step()
        AFTER[after](model, loss)
        model(POINTS).exp()
    graph = recording.graph
    graph.verify()
    last = graph.nodes[-1]
    assert (last.op, last.scope) == ("exp", None)
    calls = {str(call.scope) for call in graph.calls}
    assert calls <= {"Linear", "Linear.1", "Linear.2", "mine/Linear"}
    assert ("mine/Linear" in calls) == (after == "a scope by hand")
    tops = {str(node.scope).partition("/")[0] for node in graph.nodes if node.phase == "backward"}
    assert tops == ({"gradients"} if after == "a backward pass" else set())


def test_a_step_that_fails_in_a_module_closes_no_scope_of_the_same_name_around_it():
    class Learner(nn.Linear):
        def forward(self, optimizer):
            optimizer.step(lambda: 1 // 0)

    learner = Learner(2, 1)
    optimizer = torch.optim.SGD(learner.parameters(), 0.1)
    with tbscope.record(learner) as recording, tbscope.scope("optimizer"):
        with pytest.raises(ZeroDivisionError):
            learner(optimizer)
        torch.ones(2).exp()
    last = recording.graph.nodes[-1]
    assert (last.op, str(last.scope)) == ("exp", "optimizer")


def test_gradients_that_are_set_to_nothing_are_no_operations():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with tbscope.record(model) as recording:
        optimizer.zero_grad()
        squares(model)
        optimizer.step()
        schedule.step()
    tops = {str(node.scope).split("/")[0] for node in recording.graph.nodes}
    assert tops == {"None", "Linear", "gradients", "optimizer"}


def test_hooks_of_optimizers_are_gone_after_a_recording():
    from torch.optim import optimizer

    hooks = optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks
    before = [dict(each) for each in hooks]
    model = nn.Linear(3, 2)
    trained(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert [dict(each) for each in hooks] == before


class Aliasing(torch.optim.Optimizer):
    """Writes into its parameters through what shows them, as older optimizers do."""

    def __init__(self, parameters, write):
        super().__init__(parameters, {})
        self.write = write

    @torch.no_grad()
    def step(self, closure):
        torch.enable_grad()(closure)()
        for parameter in self.param_groups[0]["params"]:
            moment = self.state[parameter].setdefault("moment", torch.zeros_like(parameter))
            moment.mul_(0.9).add_(parameter.grad)
            parameter.grad.data.mul_(0.5)
            self.write(parameter, moment)


def one_view(parameter, moment):
    parameter.data.mul_(0.9).add_(moment, alpha=-0.1)


def itself_first(parameter, moment):
    parameter.mul_(0.9)
    parameter.data.add_(moment, alpha=-0.1)


WRITES = {
    "data": (lambda given, moment: given.data.add_(moment, alpha=-0.1), 1),
    "a view": (lambda given, moment: given.view(-1).sub_(moment.view(-1)), 1),
    "a part": (lambda given, moment: given[:1].sub_(moment[:1]), 1),
    "several": (lambda given, moment: torch._foreach_sub_([given.data], [moment]), 1),
    "one view, twice": (one_view, 2),
    "itself first": (itself_first, 2),
    "a copy": (lambda given, moment: given.clone().sub_(moment), 0),
}


@pytest.mark.parametrize("way", WRITES)
def test_a_write_into_what_shows_a_parameter_tells_that_it_updates_it(way):
    write, times = WRITES[way]
    model = nn.Linear(3, 2)
    graph = trained(model, Aliasing(model.parameters(), write), steps=2)
    graph.verify()
    told = [node.attributes["updates"] for node in graph.nodes if "updates" in node.attributes]
    # Neither what is kept for a parameter nor its gradient is the parameter.
    assert sorted(told) == sorted(["weight", "bias"] * times)


def test_complex_parameters_are_told_where_they_are_updated():
    model = nn.Linear(3, 2, dtype=torch.complex64)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    with tbscope.record(model) as recording:
        model(POINTS.to(torch.complex64)).abs().mean().backward()
        optimizer.step()
    told = [node for node in recording.graph.nodes if "updates" in node.attributes]
    assert [(node.op, node.attributes["updates"]) for node in told] == [
        ("addcdiv_", "weight"),
        ("addcdiv_", "bias"),
    ]


@pytest.mark.parametrize("hooked", [True, False])
def test_a_gradient_that_a_closure_makes_anew_belongs_to_its_parameter(hooked):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, maximize=True, foreach=False)
    run(model, optimizer)

    def halve(*_):
        model.inp.weight.grad.mul_(0.5)

    if hooked:
        # A part of the step, and so the closure is one, too.
        optimizer.register_step_pre_hook(halve)
    graph = trained(model, optimizer)
    boxes = [node.scope.part.label for node in graph.nodes if node.op == "neg"]
    assert boxes == [name.rpartition(".")[2] for name, _ in model.named_parameters()]


def test_no_gradient_of_a_step_lives_longer_because_it_was_recorded():
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    with tbscope.record(model):
        run(model, optimizer)
        gradient = ref(model.inp.weight.grad)
        model.zero_grad()
        assert gradient() is None


class Together(torch.optim.Optimizer):
    """Scales the gradients of all its groups by one number."""

    def __init__(self, groups):
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self, closure=None):
        learnt = [each for group in self.param_groups for each in group["params"]]
        torch.stack([each.grad.sum() for each in learnt]).neg()


def test_an_operation_on_several_groups_is_in_the_box_of_none():
    model = Net()
    groups = [{"params": [model.inp.weight]}, {"params": [model.head.weight]}]
    with tbscope.record(model) as recording:
        squares(model)
        Together(groups).step()
    found = {node.op: str(node.scope) for node in optimizer_nodes(recording.graph)}
    assert (found["stack"], found["neg"]) == ("optimizer/Together", "optimizer/Together")
    assert found["sum"].startswith("optimizer/Together/group_1/")


class Asking(torch.optim.SGD):
    """Takes another argument after the closure."""

    def step(self, closure, scale):
        self.scale = scale
        return super().step(closure)


def test_arguments_after_a_closure_reach_the_optimizer():
    model = Net()
    optimizer = Asking(model.parameters(), 0.1)
    with tbscope.record(model):
        optimizer.step(closure_of(model, optimizer), 3)
    assert optimizer.scale == 3
