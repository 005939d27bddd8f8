"""Loops that train in one recording, whose rounds have passes, and methods that train."""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss
from training_steps import Net

import tbscope
from tbscope.page.glyphs import Box
from tbscope.page.hierarchy import Hierarchy

POINTS = torch.linspace(-1, 1, 24).reshape(8, 3)
SUMS, MANY = POINTS.sum(1, keepdim=True), torch.linspace(-1, 1, 36).reshape(12, 3)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
        self.policy, self.value = nn.Linear(4, 2), nn.Linear(4, 1)

    def forward(self, x):
        hidden = self.body(x)
        return torch.distributions.Categorical(logits=self.policy(hidden)), self.value(hidden)


def proximal(model, optimizer):
    """Make a step of PPO: two epochs of two batches each."""
    with torch.no_grad():
        choice, value = model(POINTS)
        taken = choice.sample()
        before, gain = choice.log_prob(taken), SUMS - value
    for _ in range(2):
        for rows in torch.randperm(8).split(4):
            choice, value = model(POINTS[rows])
            ratio = (choice.log_prob(taken[rows]) - before[rows]).exp()
            score = (gain[rows] - gain[rows].mean()) / (gain[rows].std() + 1e-8)
            clipped = torch.min(ratio * score[:, 0], ratio.clamp(0.8, 1.2) * score[:, 0])
            loss = mse_loss(value, SUMS[rows]) - clipped.mean() - 0.01 * choice.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()


def smooth():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def through_tasks(model, optimizer):
    """Make a step of MAML: three tasks, and three steps through which it differentiates in each."""
    optimizer.zero_grad()
    total = 0
    for task in range(3):
        held = dict(model.named_parameters())
        for _ in range(3):
            loss = mse_loss(functional_call(model, held, (POINTS + task,)), SUMS)
            gradients = torch.autograd.grad(loss, list(held.values()), create_graph=True)
            pairs = zip(held.items(), gradients, strict=True)
            held = {name: one - 0.1 * gradient for (name, one), gradient in pairs}
        total = total + mse_loss(functional_call(model, held, (POINTS - task,)), SUMS)
    (total / 3).backward()
    optimizer.step()


def by_parts(model, optimizer):
    """Add up the gradients of twelve small batches."""

    def loss(part):
        return model(part).pow(2).mean() / 12

    optimizer.zero_grad()
    for part in MANY.split(1):
        loss(part).backward()
    optimizer.step()


LOOPS = {
    "PPO": (ActorCritic, proximal),
    "MAML": (smooth, through_tasks),
    "accumulation": (Net, by_parts),
}


def trained(name, *, record):
    torch.manual_seed(0)
    make, step = LOOPS[name]
    model = make()
    optimizer = torch.optim.Adam(model.parameters())
    step(model, optimizer)
    if not record:
        step(model, optimizer)
        return model, None
    with tbscope.record(model) as recording:
        step(model, optimizer)
    return model, recording.graph


def boxes(graph, above=""):
    hierarchy = Hierarchy.of(tbscope.to_graph_def(graph))
    box = hierarchy.boxes[above] if above else hierarchy.root
    found = [child.label for child in box.children.values() if isinstance(child, Box)]
    return [label for label in found if not label.startswith("__function")]


@pytest.mark.parametrize("name", LOOPS)
def test_a_step_with_many_passes_is_drawn_without_a_fault_and_trains_as_without(name):
    model, graph = trained(name, record=True)
    alone, _ = trained(name, record=False)
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.equal(one, other)
    graph.verify()
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []


def test_a_round_holds_the_passes_and_the_steps_of_optimizers_that_ran_in_it():
    _, graph = trained("PPO", record=True)
    assert [label for label in boxes(graph) if "-" not in label] == [
        *("ActorCritic", "step.0", "step.1")
    ]
    assert boxes(graph, "step.1") == ["step.0", "step.1"]
    inside = ["ActorCritic", "gradients", "clip_grad_norm_", "optimizer"]
    assert set(boxes(graph, "step.1/step.0")) >= set(inside)


def test_a_pass_after_a_loop_stands_beside_its_rounds():
    _, graph = trained("MAML", record=True)
    assert boxes(graph) == ["step.0", "step.1", "step.2", "gradients.10th", "optimizer"]
    assert {"step.0", "step.1", "step.2"} <= set(boxes(graph, "step.2"))
    assert boxes(graph, "step.2/step.1") == ["Sequential", "gradients"]


def test_all_of_a_pass_knows_the_function_that_has_asked_for_it():
    model = smooth()

    def differentiate():
        model(POINTS).sum().backward()

    with tbscope.record(model) as recording:
        differentiate()
    passed = [node for node in recording.graph.nodes if node.phase == "backward" and node.kernels]
    assert {node.run.function.name for node in passed} == {"differentiate"}
    assert len({node.step for node in passed}) == 1


# -- methods that train -----------------------------------------------------------------


class Adversaries(nn.Module):
    """Trains its parts by a method, as a module of Lightning that optimizes by hand does."""

    def __init__(self):
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3))
        self.judge = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))

    def forward(self, noise):
        return self.maker(noise)

    def loss(self, out, truth):
        return binary_cross_entropy_with_logits(out, torch.full_like(out, truth))

    def training_step(self, make, noise, *, calls):
        of_maker, of_judge = make(self.maker.parameters()), make(self.judge.parameters())
        made = self(noise) if calls else self.maker(noise)
        loss = self.loss(self.judge(POINTS), 1.0) + self.loss(self.judge(made.detach()), 0.0)
        loss.backward()
        self.seen = loss.detach() * 2
        of_judge.step()
        of_maker.zero_grad()
        self.loss(self.judge(made), 1.0).backward()
        of_maker.step()


def adversaries(*, calls, record=True):
    torch.manual_seed(0)
    model, noise = Adversaries(), torch.randn(8, 2)
    make = torch.optim.SGD
    if not record:
        model.training_step(make, noise, calls=calls)
        return model, None
    with tbscope.record(model) as recording:
        model.training_step(make, noise, calls=calls)
    return model, recording.graph


@pytest.mark.parametrize("calls", [True, False])
def test_what_a_method_runs_after_a_step_stands_in_another_box_of_its_module(calls):
    model, graph = adversaries(calls=calls)
    alone, _ = adversaries(calls=calls, record=False)
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.equal(one, other)
    graph.verify()
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []
    tops = [str(node.scope).split("/")[0] for node in graph.nodes if node.kernels]
    assert list(dict.fromkeys(tops)) == [
        *("Adversaries", "gradients", "optimizer"),
        *("Adversaries.1", "gradients.1", "optimizer.1"),
    ]
    called = [call.scope.path for call in graph.calls if call.qualified_name == "judge"]
    assert called == [
        *("Adversaries/Sequential[judge]", "Adversaries/Sequential[judge].1"),
        "Adversaries.1/Sequential[judge]",
    ]


def test_what_a_method_makes_of_results_alone_stands_with_them():
    _, graph = adversaries(calls=True)
    (seen,) = (node for node in graph.nodes if node.op == "mul" and node.phase == "forward")
    assert seen.scope.path == "Adversaries"


class Penalized(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = smooth()

    def penalty(self, points):
        points = points.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(self.net(points).sum(), points, create_graph=True)
        return (gradient.norm() - 1).pow(2)


def test_what_a_method_makes_of_gradients_stands_in_another_box_than_what_they_read():
    model = Penalized()
    with tbscope.record(model) as recording:
        model.penalty(POINTS).backward()
    assert tbscope.lint(tbscope.to_graph_def(recording.graph)) == []
    (norm,) = (node for node in recording.graph.nodes if node.op == "norm" and not node.inputs[1:])
    assert norm.scope.path == "Penalized.1"


class Layer(nn.Linear):
    """Trains itself on what is to be told apart, as layers of the forward-forward algorithm do."""

    def __init__(self):
        super().__init__(3, 3)
        self.optimizer = torch.optim.SGD(self.parameters(), 0.1)

    def train_on(self, points):
        self.optimizer.zero_grad()
        (self(points).relu() - self(points.flip(0))).pow(2).mean().backward()
        self.optimizer.step()
        return self(points).relu().detach()


class Greedy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def fit(self, points):
        for layer in self.layers:
            points = layer.train_on(points)
        return points

    def forward(self, points):
        return self.fit(points)


class Stacked(nn.Module):
    """Trains the members of a list, one after another."""

    def __init__(self):
        super().__init__()
        parts = (nn.Sequential(nn.Linear(3, 3), nn.ReLU()) for _ in range(3))
        self.layers = nn.ModuleList(parts)
        self.optimizer = torch.optim.SGD(self.parameters(), 0.1)

    def forward(self, points):
        for layer in self.layers:
            self.optimizer.zero_grad()
            layer(points).pow(2).mean().backward()
            self.optimizer.step()
            points = layer(points).detach()
        return points


@pytest.mark.parametrize(
    ("kind", "method"), [(Greedy, "fit"), (Greedy, "__call__"), (Stacked, "__call__")]
)
def test_layers_that_train_one_after_another_are_drawn_without_a_fault(kind, method):
    torch.manual_seed(0)
    model = kind()
    with tbscope.record(model) as recording:
        getattr(model, method)(POINTS)
    graph = recording.graph
    graph.verify()
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []
    told = {node.attributes.get("updates") for node in graph.nodes}
    assert told >= {name for name, _ in model.named_parameters()}


class Hooked(nn.Module):
    """Has a method that its trainer calls before the optimizer does, as Lightning does."""

    def __init__(self):
        super().__init__()
        self.net = smooth()

    def training_step(self, points):
        return self.net(points).pow(2).mean()

    def on_before_step(self):
        self.norm = torch.stack([each.grad.norm() for each in self.parameters()]).norm()
        nn.utils.clip_grad_norm_(self.parameters(), 0.5)


def test_what_a_method_does_with_gradients_stands_between_these_and_the_optimizer():
    model = Hooked()
    optimizer = torch.optim.Adam(model.parameters())
    with tbscope.record(model) as recording:
        model.training_step(POINTS).backward()
        model.on_before_step()
        optimizer.step()
    graph = recording.graph
    graph.verify()
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []
    tops = [str(node.scope).split("/")[0] for node in graph.nodes if node.kernels]
    assert list(dict.fromkeys(tops)) == ["Hooked", "gradients", "Hooked.1", "optimizer"]
    (clamp,) = (node for node in graph.nodes if node.op == "clamp")
    assert clamp.scope.path == "Hooked.1/clip_grad_norm_"
