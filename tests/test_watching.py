"""`watch`: a model's next training step is drawn, and the training knows nothing of it."""

import warnings
from copy import deepcopy

import pytest
import torch
from cli_runs import graphs_in
from torch import nn
from training_steps import POINTS, Net

import tbscope


def train(model, optimizer, steps=1, points=POINTS):
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(points), torch.zeros(len(points), 2)).backward()
        optimizer.step()


@pytest.fixture
def setting(tmp_path):
    torch.manual_seed(0)
    model = Net()
    with tbscope.SummaryWriter(str(tmp_path)) as writer:
        yield writer, model, torch.optim.Adam(model.parameters())


def hooks_of(model):
    from torch.optim import optimizer

    return [
        len(each)
        for each in (
            model._forward_hooks,
            model._forward_pre_hooks,
            optimizer._global_optimizer_pre_hooks,
            optimizer._global_optimizer_post_hooks,
        )
    ]


def tops(graph):
    return list(dict.fromkeys(str(node.scope).split("/")[0] for node in graph.nodes))


def test_the_next_step_is_drawn_from_the_call_to_the_optimizer(setting):
    writer, model, optimizer = setting
    watched = writer.watch(model)
    assert watched.graph is None
    train(model, optimizer)
    assert tops(watched.graph) == ["None", "Net", "gradients", "optimizer"]
    watched.graph.verify()
    assert tbscope.lint(tbscope.to_graph_def(watched.graph)) == []


def test_it_is_written_once(setting, tmp_path):
    writer, model, optimizer = setting
    writer.watch(model)
    train(model, optimizer, steps=3)
    assert len(graphs_in(tmp_path)) == 1


def test_afterwards_no_hook_is_left(setting):
    writer, model, optimizer = setting
    before = hooks_of(model)
    watched = writer.watch(model)
    assert hooks_of(model) != before
    train(model, optimizer, steps=2)
    assert watched.is_over
    assert hooks_of(model) == before


def test_the_training_goes_on_as_without(setting):
    writer, model, optimizer = setting
    other = deepcopy(model)
    unwatched = torch.optim.Adam(other.parameters())
    writer.watch(model, every=2)
    torch.manual_seed(1)
    train(model, optimizer, steps=4)
    state = torch.get_rng_state()
    torch.manual_seed(1)
    train(other, unwatched, steps=4)
    assert torch.equal(torch.get_rng_state(), state)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_what_runs_unseen_before_the_backward_pass_is_told_by_autograd(setting):
    writer, model, optimizer = setting
    watched = writer.watch(model)
    train(model, optimizer)
    (loss,) = [node for node in watched.graph.nodes if "told_by" in node.attributes]
    assert (loss.op, loss.outputs[0].shape, loss.phase) == ("mse_loss", (), "forward")
    assert loss.inputs[0].producer.scope.path == "Net/Linear[head]"
    assert watched.graph.inputs[0].name == "x"


def test_all_that_runs_unseen_is_told_from_the_model_to_the_loss(tmp_path):
    model, scale = nn.Linear(4, 6), torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([*model.parameters(), scale], 0.1)
    with tbscope.SummaryWriter(str(tmp_path)) as writer:
        watched = writer.watch(model)
        _, second = model(torch.rand(2, 4)).chunk(2, 1)
        (second * scale).sum().backward()
        optimizer.step()
    split, times, total = [node for node in watched.graph.nodes if "told_by" in node.attributes]
    assert (split.op, times.op, total.op) == ("split", "mul", "sum")
    assert [value.shape for value in split.outputs] == [(2, 3), (2, 3)]
    assert split.inputs[0].producer.op == "linear"
    assert (times.inputs[0], times.inputs[1].shape) == (split.outputs[1], (3,))
    assert total.inputs == [times.outputs[0]]


def test_what_runs_unseen_between_two_calls_is_told_too(tmp_path):
    model = nn.Linear(4, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with tbscope.SummaryWriter(str(tmp_path)) as writer:
        watched = writer.watch(model)
        first = model(torch.rand(2, 4)).tanh().sum()
        (first + model(torch.rand(2, 4)).exp().sum()).backward()
        optimizer.step()
    told = [node.op for node in watched.graph.nodes if "told_by" in node.attributes]
    assert sorted(told) == ["add", "exp", "sum", "sum", "tanh"]
    backward = {node.op: str(node.scope) for node in watched.graph.nodes if "backward" in node.op}
    assert backward == {"tanh_backward": "gradients"}


def watched_step(tmp_path, model, run):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with tbscope.SummaryWriter(str(tmp_path)) as writer:
        watched = writer.watch(model)
        run(model)
        optimizer.step()
    return watched.graph


LABELS, ROWS = torch.tensor([0, 1, 0]), torch.linspace(-1, 1, 12).reshape(3, 4)
LOSSES = {
    "squares": (lambda out: (out * 2).square().sum(), "pow", "mul"),
    "exponents": (lambda out: (out + 1).exp().sum(), "mul", "exp"),
    "two of a kind": (lambda out: ((out + 1) * out.exp()).sum(), "mul", "add"),
    "classes": (lambda out: nn.functional.cross_entropy(out, LABELS), "nll_loss", "log_softmax"),
    "the largest": (lambda out: (out * 3).max(), "eq", "mul"),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_what_a_loss_saves_of_what_ran_unseen_is_what_that_gave(tmp_path, loss):
    function, reader, maker = LOSSES[loss]
    graph = watched_step(tmp_path, nn.Linear(4, 2), lambda model: function(model(ROWS)).backward())
    assert all(len(node.outputs) == 1 for node in graph.nodes if node.op in (maker, "pow", "max"))
    read = [
        value
        for node in graph.nodes
        if node.phase == "backward" and node.op.startswith(reader)
        for value in node.inputs
    ]
    made = {through(value) for value in read}
    assert maker in made


def through(value):
    """Give the operation that gave a value, whatever shows it."""
    node = value.producer
    return through(node.inputs[0]) if node.op == "detach" else node.op


def test_what_a_loss_saves_of_what_nobody_made_is_its_own(tmp_path):
    target = torch.ones(3, 2)
    graph = watched_step(
        tmp_path,
        nn.Linear(4, 2),
        lambda model: ((model(ROWS) + 1) * target).square().sum().backward(),
    )
    (product,) = [node for node in graph.nodes if node.op == "mul" and node.phase == "forward"]
    assert [value.shape for value in product.outputs] == [(3, 2), (3, 2)]
    (power,) = [node for node in graph.nodes if node.op == "pow" and node.phase == "backward"]
    assert power.inputs[0] is product.outputs[0]


def test_hooks_for_what_is_saved_run_as_often_as_without(tmp_path):
    def run(model, counts):
        hooks = torch.autograd.graph.saved_tensors_hooks
        with hooks(lambda x: x.clone(), lambda x: (counts.append(1), x)[1]):
            ((model(ROWS) * 2).exp() + 1).square().sum().backward()

    plain, watched = [], []
    run(nn.Linear(4, 2), plain)
    graph = watched_step(tmp_path, nn.Linear(4, 2), lambda model: run(model, watched))
    assert len(watched) == len(plain) > 2
    graph.verify()


def test_a_gradient_that_a_watched_step_was_given_is_an_input(tmp_path):
    graph = watched_step(
        tmp_path, nn.Linear(4, 2), lambda model: model(ROWS).backward(torch.full((3, 2), 0.5))
    )
    assert [node.name for node in graph.inputs] == ["input", "gradient"]
    assert "ones_like" not in {node.op for node in graph.nodes}


def test_without_backward_any_call_is_drawn_at_once(setting):
    writer, model, _ = setting
    watched = writer.watch(model.eval(), backward=False)
    with torch.no_grad():
        model(POINTS)
    assert tops(watched.graph) == ["None", "Net"]
    assert [output.value.shape for output in watched.graph.outputs] == [(5, 2)]


def test_with_backward_a_call_in_training_is_awaited(setting):
    writer, model, optimizer = setting
    watched = writer.watch(model)
    with torch.no_grad():
        model(POINTS)
    model.eval()
    model(POINTS)
    assert watched.graph is None
    model.train()
    train(model, optimizer)
    assert watched.graph is not None


@pytest.mark.parametrize("to_none", [True, False])
def test_a_step_without_an_optimizer_ends_with_the_next_call_after_its_gradients(setting, to_none):
    writer, model = setting[0], Net()
    watched = writer.watch(model)
    model(POINTS).sum().backward()
    assert watched.graph is None
    model.zero_grad(set_to_none=to_none)
    model(POINTS)
    assert tops(watched.graph) == ["None", "Net", "gradients"]


def test_an_optimizer_of_another_model_does_not_end_it(setting):
    writer, model, optimizer = setting
    other = nn.Linear(3, 2)
    watched = writer.watch(model)
    model(POINTS).sum().backward()
    train(other, torch.optim.SGD(other.parameters(), 0.1))
    assert watched.graph is None
    optimizer.step()
    assert "optimizer" in tops(watched.graph)


def test_gradients_that_are_accumulated_are_all_drawn_for_a_given_optimizer(setting):
    writer, model, optimizer = setting
    watched = writer.watch(model, optimizer=optimizer)
    model(POINTS).sum().backward()
    model(POINTS).sum().backward()
    optimizer.step()
    assert tops(watched.graph) == ["None", "Net", "gradients", "Net.1", "gradients.1", "optimizer"]


def test_a_later_call_is_drawn_only_if_the_structure_is_another(setting, tmp_path):
    writer, model, optimizer = setting
    # What Adam keeps is made in its first step.
    train(model, optimizer)
    watched = writer.watch(model, every=2)
    train(model, optimizer, steps=5)
    first = len(graphs_in(tmp_path))
    train(model, optimizer, steps=3, points=POINTS[:2])
    assert (first, len(graphs_in(tmp_path))) == (1, 2)
    assert "the structure changed" in watched.graph.notes[0].text
    watched.remove()
    assert hooks_of(model)[:2] == [0, 0]


def test_a_call_that_raises_is_the_trainings_own_and_the_next_is_drawn(setting):
    writer, model, optimizer = setting
    watched = writer.watch(model)
    with pytest.raises(RuntimeError, match="shapes"):
        model(torch.ones(1, 7))
    train(model, optimizer)
    assert tops(watched.graph) == ["None", "Net", "gradients", "optimizer"]


def test_an_error_of_ours_is_one_warning_and_the_training_goes_on(setting):
    writer, model, optimizer = setting
    writer.watch(model, color_by=lambda node: 1 / 0)
    before = model.head.weight.clone()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        train(model, optimizer, steps=3)
    assert len([each for each in told if "tbscope drew no step" in str(each.message)]) == 1
    assert not torch.equal(before, model.head.weight)
    assert hooks_of(model)[:2] == [0, 0]


def test_what_cannot_be_watched_is_told(setting):
    writer, model, _ = setting
    for wrong in ({"every": 0}, {"every": True}, {"optimizer": "Adam"}, {"backward": 1}):
        with pytest.raises(tbscope.ArgumentError):
            writer.watch(model, **wrong)
    with pytest.raises(tbscope.ArgumentError, match="as a model"):
        writer.watch(lambda x: x)
    assert hooks_of(model)[:2] == [0, 0]
