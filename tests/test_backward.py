"""Backward passes: every kernel of autograd's engine, in the scope whose gradient it computes."""

from collections import Counter
from contextlib import contextmanager
from copy import deepcopy

import pytest
import torch
from odd_steps import ODD
from real_graphs import operations
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode
from training_steps import (
    POINTS,
    STEPS,
    BackwardKernels,
    Net,
    backward_nodes,
    gradients_of,
    made,
    recorded,
    squares,
)

import tbscope

ROOTS = "gradients", "recomputed"
AGAIN = "gradients/recomputed"


def state(model):
    return [*model.state_dict().values(), *(each.grad for each in model.parameters())]


def same(one, other):
    return all(
        (a is None and b is None) or torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )


@pytest.fixture(params=[*STEPS, *ODD])
def step(request):
    return made(request.param)


def test_a_step_that_is_recorded_does_what_it_does_unwatched(step):
    model, run = step
    other = deepcopy(model)
    torch.manual_seed(1)
    run(other)
    drawn = torch.get_rng_state()
    torch.manual_seed(1)
    recorded(model, run)
    assert same(state(model), state(other))
    assert torch.equal(torch.get_rng_state(), drawn)


def test_the_graph_of_a_step_is_sound(step):
    graph = recorded(*step)
    graph.verify()
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []
    assert [node for node in graph.nodes if node.kind == "constant"] == []


def test_every_kernel_of_the_engine_is_in_the_graph(step):
    model, run = step
    graph = recorded(model, run)
    model.zero_grad(set_to_none=True)
    with BackwardKernels() as counted:
        run(model)
    shown = Counter(kernel for node in backward_nodes(graph) for kernel in node.kernels)
    # A hook of Python's has no node of autograd's, and a pass inside of another one adds.
    assert counted.counts - shown <= Counter({"aten::detach": 1})
    assert sum((shown - counted.counts).values()) <= 1


def test_every_parameter_with_a_gradient_has_a_node_for_it(step):
    model, run = step
    graph = recorded(model, run)
    wanted = {name for name, each in model.named_parameters() if each.grad is not None}
    assert set(gradients_of(graph)) & set(dict(model.named_parameters())) == wanted
    assert wanted


def test_every_gradient_stands_in_the_scope_that_its_operation_mirrors(step):
    graph = recorded(*step)
    paths = {str(node.scope) for node in graph.nodes if node.phase == "forward"}
    for node in backward_nodes(graph):
        parts = str(node.scope).split("/")
        # A pass may go through another one, and begin in a module.
        mirrored = [part for part in parts if part.partition(".")[0] not in ROOTS]
        assert "gradients" in str(node.scope)
        assert "/".join(mirrored) in paths | {""}


def test_the_modules_of_gradients_come_in_the_order_of_the_chain_rule():
    graph = recorded(Net(), squares)
    scopes = dict.fromkeys(str(node.scope) for node in backward_nodes(graph))
    block = "gradients/Net/ModuleList[blocks]/Block[{}]"
    assert list(scopes) == [
        "gradients",
        "gradients/Net/Linear[head]",
        *(block.format(1), f"{block.format(1)}/Linear[fc]", f"{block.format(1)}/LayerNorm[norm]"),
        *(block.format(0), f"{block.format(0)}/Linear[fc]", f"{block.format(0)}/LayerNorm[norm]"),
        "gradients/Net/Linear[inp]",
    ]


def test_a_gradient_reads_what_its_operation_has_saved():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    graph = recorded(net, squares)
    tanh = next(node for node in graph.nodes if node.op == "tanh")
    backward = next(node for node in graph.nodes if node.op == "tanh_backward")
    saved = backward.inputs[1].producer
    assert (saved.op, saved.inputs) == ("detach", tanh.outputs)
    product = next(node for node in backward_nodes(graph) if node.op == "mm")
    assert product.inputs[1].producer.name == "input"


def test_what_an_operation_alone_knows_becomes_a_result_of_it():
    graph = recorded(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)), squares)
    norm = next(node for node in graph.nodes if node.op == "layer_norm")
    backward = next(node for node in graph.nodes if node.op == "native_layer_norm_backward")
    assert [value.shape for value in norm.outputs] == [(5, 4), (5, 1), (5, 1)]
    assert norm.outputs[1:] == backward.inputs[2:4]


def test_what_a_norm_that_writes_has_saved_is_a_node_that_waits_for_it():
    graph = recorded(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), squares)
    norm = next(node for node in graph.nodes if node.op == "batch_norm")
    saved = [node for node in graph.nodes if node.op == "saved"]
    assert [node.control_inputs for node in saved] == [[norm], [norm]]
    assert {str(node.scope) for node in saved} == {"Sequential/BatchNorm1d[1]"}


def test_a_norm_that_has_saved_something_is_one_node_of_the_drawing():
    graph = recorded(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), squares)
    nodes = {node.name: node for node in tbscope.to_graph_def(graph).node}
    assert nodes["Sequential/1"].op == "BatchNorm1d"
    backward = nodes["gradients/Sequential/1/native_batch_norm_backward"]
    read = [text for text in backward.input if text.startswith("Sequential/1:")]
    shapes = nodes["Sequential/1"].attr["_output_shapes"].list.shape
    assert [shapes[int(text[-1])].dim[0].size for text in read] == [4, 4, 4, 4]
    assert "^Sequential/1" not in nodes["Sequential/1"].input


def test_what_a_step_has_saved_is_never_taken_for_what_another_one_had():
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.LayerNorm(4))

    def steps(model):
        for _ in range(6):
            # What the first ones had is gone, and its memory is used again.
            model(POINTS).pow(2).mean().backward()

    read = [
        (str(node.scope).split("/")[1], str(value.producer.scope).split("/")[0])
        for node in backward_nodes(recorded(net, steps))
        if node.op == "native_layer_norm_backward"
        for value in node.inputs[2:4]
    ]
    assert len(read) == 6 * 2 * 2
    assert all(mirrored == made_in for mirrored, made_in in read)


def test_the_gradients_of_a_later_call_stand_together():
    graph = recorded(*made("accumulation"))
    later = {str(node.scope) for node in backward_nodes(graph)} - {"gradients.1"}
    assert {path for path in later if path.startswith("gradients.1/")} == {
        path.replace("gradients/Net", "gradients.1/Net.1")
        for path in later
        if path.startswith("gradients/")
    }


def test_a_gradient_that_is_added_to_is_told():
    net = nn.Linear(3, 2)
    graph = recorded(net, squares)
    assert all("accumulates" not in node.attributes for node in graph.nodes)
    graph = recorded(net, squares)
    added = [node for node in graph.nodes if node.attributes.get("accumulates")]
    assert [node.op for node in added] == ["bias_grad", "weight_grad"]
    assert [node.name for node in graph.inputs] == ["input", "bias.grad", "weight.grad"]


def test_what_a_checkpoint_runs_again_stands_in_a_box_that_says_so():
    graph = recorded(*made("checkpoint"))
    again = [node.op for node in graph.nodes if str(node.scope).startswith("gradients/recomputed/")]
    assert again == ["linear", "relu"]
    once = recorded(*made("blocks"))
    assert not any("recomputed" in str(node.scope) for node in once.nodes)


def test_what_runs_again_in_a_pass_amid_forward_stands_apart_from_the_gradients():
    graph = recorded(*made("a checkpoint in a gradient in forward"))
    places = [(node.op, str(node.scope)) for node in graph.nodes if "gradients" in str(node.scope)]
    inner = "CheckpointedForce/gradients"
    assert ("linear", f"{inner}/recomputed/ModuleList[parts]/Linear[0]") in places
    assert ("mm", f"{inner}/ModuleList[parts]/Linear[0]") in places


def test_an_optimizer_that_steps_amid_a_pass_is_nothing_that_runs_again():
    net = nn.Linear(3, 1)
    optimizer = torch.optim.SGD([net.weight])
    net.weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    graph = recorded(net, squares)
    places = {str(node.scope) for node in graph.nodes if node.phase == "optimizer"}
    assert places
    assert all(place.startswith("gradients/optimizer/SGD") for place in places)


def test_a_scope_that_is_opened_again_stands_apart_from_the_one_that_it_mirrors():
    def square(x):
        with tbscope.scope("inner"):
            return x * x

    x = torch.ones(2, requires_grad=True)
    with tbscope.record() as recording:
        checkpoint(lambda x: square(x).sin(), x, use_reentrant=False).sum().backward()
    again = [node.op for node in recording.graph.nodes if str(node.scope) == f"{AGAIN}/inner"]
    assert again == ["mul"]
    assert "gradients/inner" in {str(node.scope) for node in recording.graph.nodes}


def test_a_scope_may_be_called_like_what_runs_again():
    def run(x):
        with tbscope.scope("recomputed"):
            y = x.exp()
        return checkpoint(torch.sin, y, use_reentrant=False).sum()

    x = torch.ones(2, requires_grad=True)
    with tbscope.record() as recording:
        run(x).backward()
    boxes = {node.op: str(node.scope) for node in backward_nodes(recording.graph)}
    assert (boxes["sin"], boxes["input_grad"]) == (AGAIN, "gradients")
    assert boxes["mul"] == f"{AGAIN}.1"
    assert tbscope.lint(tbscope.to_graph_def(recording.graph)) == []


def test_each_pass_has_a_box_of_its_own():
    graph = recorded(*made("accumulation"))
    roots = {str(node.scope).partition("/")[0] for node in backward_nodes(graph)}
    assert roots == {"gradients", "gradients.1"}


def test_a_pass_through_a_pass_stands_in_the_gradients_of_gradients():
    graph = recorded(*made("double backward"))
    roots = {tuple(str(node.scope).split("/")[:2]) for node in backward_nodes(graph)}
    assert ("gradients.1", "gradients") in roots
    assert ("gradients.1", "Sequential") in roots


def test_gradients_that_were_asked_for_are_results_and_others_are_not():
    net, points = nn.Linear(3, 2), POINTS.clone().requires_grad_()
    with tbscope.record(net) as recording:
        (gradient,) = torch.autograd.grad(net(points).sum(), points)
    (output,) = recording.graph.outputs
    assert output.value.producer.phase == "backward"
    assert output.value.shape == tuple(gradient.shape)
    assert recorded(net, squares).outputs == []


def asked(model):
    return torch.autograd.grad(model(POINTS).pow(2).mean(), list(model.parameters()))


def set_by_hand(model):
    for parameter, gradient in zip(model.parameters(), asked(model), strict=True):
        parameter.grad = gradient


def set_by_a_function(model):
    def loss(held):
        return torch.func.functional_call(model, held, (POINTS,)).pow(2).mean()

    held = {name: each.detach() for name, each in model.named_parameters()}
    gradients = torch.func.grad(loss)(held)
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name]


def set_later(model):
    for parameter, gradient in zip(model.parameters(), asked(model), strict=True):
        parameter.grad = gradient * 2


@pytest.mark.parametrize("way", [set_by_hand, set_by_a_function, set_later, squares])
def test_a_gradient_that_a_script_sets_is_that_of_its_parameter(way):
    model = Net()
    graph = recorded(model, way)
    names = dict(model.named_parameters())
    assert gradients_of(graph) == list(dict.fromkeys(gradients_of(graph)))
    assert set(gradients_of(graph)) == set(names)
    for node in graph.nodes:
        if "gradient_of" in node.attributes:
            gradient = names[node.attributes["gradient_of"]].grad
            assert node.attributes["gradient_norm"] == pytest.approx(float(gradient.norm()))
            assert node.outputs[0].shape == gradient.shape
    places = {str(node.scope) for node in graph.nodes if node.op == "weight_grad"}
    assert ("gradients/Net/Linear[head]" in places) is (way is not set_later)


def test_gradients_that_a_script_sets_of_two_models_of_one_class_are_told_apart():
    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    parameters = [*one.parameters(), *other.parameters()]
    with tbscope.record(one, other) as recording:
        loss = (one(POINTS) * other(POINTS)).sum()
        for each, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            each.grad = gradient
    told = [node for node in recording.graph.nodes if "gradient_of" in node.attributes]
    places = [str(node.scope) for node in told]
    assert places == ["gradients/Linear"] * 2 + ["gradients/Linear.1"] * 2
    norms = [node.attributes["gradient_norm"] for node in told]
    assert norms == pytest.approx([float(each.grad.norm()) for each in parameters])


def test_a_gradient_that_is_asked_for_and_set_nowhere_is_that_of_no_parameter():
    assert gradients_of(recorded(Net(), asked)) == []


def test_a_gradient_that_was_computed_before_is_that_of_no_parameter():
    before = torch.ones(2)

    def step(model):
        model(POINTS)
        model.head.bias.grad = before
        model.head.weight.grad = None

    assert gradients_of(recorded(Net(), step)) == []


def test_a_loss_is_a_result_though_a_backward_pass_begins_at_it():
    net = nn.Linear(3, 2)
    with tbscope.record(net) as recording:
        loss = net(POINTS).sum()
        loss.backward()
    assert [output.value.producer.op for output in recording.graph.outputs] == ["sum"]


@pytest.mark.parametrize("given", [True, False])
def test_a_gradient_that_was_given_is_an_input_and_none_is_invented(given):
    net, weights = nn.Linear(3, 1), torch.full((5, 1), 0.5)
    with tbscope.record(net) as recording:
        y = net(POINTS)
        y.backward(weights) if given else y.sum().backward()
    graph = recording.graph
    assert ("gradient" in [node.name for node in graph.inputs]) is given
    assert ("ones_like" in [node.op for node in graph.nodes]) is not given
    (product,) = [node for node in backward_nodes(graph) if node.op == "mm"]
    first = product.inputs[0].producer.inputs[0].producer
    assert (first.name if given else first.op) == ("gradient" if given else "expand")


def test_of_several_gradients_those_are_inputs_that_were_given():
    net, weights = nn.Linear(3, 2), torch.ones(5)
    with tbscope.record(net) as recording:
        y = net(POINTS)
        torch.autograd.backward([y[:, 0], y[:, 1].sum()], [weights, None])
    graph = recording.graph
    assert [node.name for node in graph.inputs] == ["input", "gradient"]
    assert [node.op for node in graph.nodes].count("ones_like") == 1


def test_a_gradient_that_the_recording_has_made_is_known_by_what_made_it():
    net = nn.Linear(3, 2)
    with tbscope.record(net) as recording:
        y = net(POINTS)
        torch.autograd.grad(y, net.weight, grad_outputs=y * 2)
    (product,) = [node for node in backward_nodes(recording.graph) if node.op == "mm"]
    # A result of `linear` times two.
    gave = product.inputs[0].producer.inputs[0].producer
    assert (gave.op, "also" in gave.attributes) == ("mul", False)
    assert [node.name for node in recording.graph.inputs] == ["input"]


def test_a_gradient_that_a_model_gives_within_itself_is_no_input_of_the_model():
    class Slope(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.ones = nn.Linear(3, 2), [torch.ones(5, 2)]

        def forward(self, x):
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.fc(x), x, self.ones[0], create_graph=True)[0]

    graph = tbscope.trace(Slope(), POINTS, loss=torch.sum, backward=True)
    assert [node.name for node in graph.inputs] == ["x"]
    assert [node.op for node in graph.nodes].count("ones_like") == 1


def test_without_backward_a_pass_is_one_operation():
    net = nn.Linear(3, 2)
    with tbscope.record(net, backward=False) as recording:
        net(POINTS).sum().backward()
    assert [node.op for node in operations(recording.graph)] == ["linear", "sum", "backward"]


def test_without_backward_a_pass_gives_the_gradients_that_are_read():
    net, other = nn.Linear(3, 2), torch.ones(2, 3)
    with tbscope.record(net, backward=False) as recording:
        net(POINTS).sum().backward()
        kept = net.weight.grad * other
    (node,) = [node for node in recording.graph.nodes if node.op == "backward"]
    assert [value.shape for value in node.outputs] == [(2, 3)]
    # What lies in `weight.grad` and `bias.grad` is no result of the region.
    (output,) = recording.graph.outputs
    assert output.value.producer.inputs[0] is node.outputs[0]
    assert output.value.shape == kept.shape


@pytest.mark.parametrize("adds", [True, False])
def test_a_gradient_from_before_is_an_input_once_something_reads_it(adds):
    class Reads(nn.Linear):
        @torch.enable_grad()
        def forward(self, x):
            loss = super().forward(x).pow(2).sum()
            if adds:
                loss.backward()
            assert self.bias.grad is not None
            return self.weight.grad * 2

    net = Reads(3, 2)
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    graph = tbscope.trace(net, POINTS)
    graph.verify()
    assert [node.name for node in graph.inputs] == ["x", "weight.grad"]
    ops = [node.op for node in graph.nodes if node.kind == "op"]
    assert ops == ["linear", "pow", "sum", *(["backward", "accumulate"] if adds else []), "mul"]
    product = graph.outputs[0].value.producer
    total = product.inputs[0].producer
    if adds:
        # The one that is unread is part of nothing.
        assert [value.producer.op for value in total.inputs] == ["input", "backward"]
    else:
        assert total.kind == "input"
    assert all(torch.equal(each.grad, torch.ones_like(each)) for each in net.parameters())


def test_what_a_model_tunes_of_itself_is_put_back_with_its_optimizer():
    class Tunes(nn.Linear):
        def __init__(self):
            super().__init__(3, 3)
            self.optimizer = torch.optim.Adam(self.parameters(), lr=0.1)

        @torch.enable_grad()
        def forward(self, x):
            self.optimizer.zero_grad()
            (super().forward(x) - x).pow(2).sum().backward()
            self.optimizer.step()
            return super().forward(x)

    net, twin = Tunes(), Tunes()
    twin.load_state_dict(net.state_dict())
    net(POINTS), twin(POINTS)
    graph = tbscope.trace(net, POINTS)
    assert {"backward", "linear"} <= {node.op for node in graph.nodes}
    assert torch.equal(net(POINTS), twin(POINTS))
    with tbscope.record(net, backward=False):
        net(POINTS)
    twin(POINTS)
    assert torch.equal(net(POINTS), twin(POINTS))


def test_flops_are_those_that_ran():
    model, run = made("convolutions")
    graph = recorded(model, run)
    with FlopCounterMode(display=False) as counter:
        run(model)
    totals = graph.summary().totals
    assert totals["flops"] + totals["backward_flops"] == counter.get_total_flops()
    assert totals["backward_flops"] > totals["flops"]


def test_saved_bytes_are_those_of_results_that_the_backward_pass_reads():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Flatten(), nn.Linear(4, 2))
    graph = tbscope.trace(net, POINTS, loss=torch.sum, backward=True)
    rows = {row["name"]: row["saved_bytes"] for row in graph.summary().rows if row["name"]}
    # The first layer keeps its input, the last one what `tanh` gave, which keeps it, too.
    assert rows == {"0": 0, "1": 5 * 4 * 4, "2": 0, "3": 0}


def test_what_is_saved_where_a_tensor_was_that_is_gone_is_of_the_operation_that_saved_it():
    def run(x):
        for _ in range(20):
            # Of the size of the mean and of the deviation, and gone when these are saved.
            (x[:, :1] + 1).exp()
            x = torch.nn.functional.layer_norm(x, (8,))
        return x

    with tbscope.record() as recording:
        run(torch.randn(4, 8, requires_grad=True)).sum().backward()
    passes = [node for node in recording.graph.nodes if node.op == "native_layer_norm_backward"]
    assert {value.producer.op for node in passes for value in node.inputs[2:4]} == {"layer_norm"}
    assert len(passes) == 20


class Negated(torch.autograd.Function):
    """Gives what it was given, and turns its gradient round."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.neg()


class Last(nn.Module):
    """Ends in a function of its own, or in an operation of torch."""

    def __init__(self, ends):
        super().__init__()
        self.fc, self.ends = nn.Linear(3, 3), ends

    def forward(self, x):
        return self.ends(self.fc(x))


@pytest.mark.parametrize("ends", [Negated.apply, torch.neg])
def test_the_gradient_of_a_function_stands_in_the_module_that_called_it_last(ends):
    model = nn.Sequential(Last(ends), nn.ReLU())
    graph = recorded(model, lambda model: model(torch.ones(2, 3)).sum().backward())
    (node,) = [node for node in backward_nodes(graph) if node.op == "neg"]
    assert str(node.scope) == "gradients/Sequential/Last[0]"


class HandingOn(TorchDispatchMode):
    """Does nothing but hand kernels on, in a function of its own."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self._run(func, args, kwargs or {})

    def _run(self, func, args, kwargs):
        return func(*args, **kwargs)


WATCHERS = {
    "a mode": lambda model: HandingOn(),
    "a counter of FLOPs": lambda model: FlopCounterMode(display=False),
    "a recording": tbscope.record,
    "two modes": lambda model: _joined(HandingOn(), HandingOn()),
}


@contextmanager
def _joined(*blocks):
    with blocks[0], blocks[1]:
        yield


@pytest.mark.parametrize("watcher", WATCHERS)
@pytest.mark.parametrize("name", ["blocks", "own function", "hooks", "lstm", "convolutions"])
def test_a_backward_pass_is_recorded_alike_where_others_watch_it_too(name, watcher):
    model, run = made(name)
    plain = str(recorded(model, run))
    model, run = made(name)
    with tbscope.record(model) as recording, WATCHERS[watcher](model):
        run(model)
    assert str(recording.graph) == plain
    assert gradients_of(recording.graph)


def test_what_a_hook_does_unseen_by_functions_is_no_gradient_where_others_watch_it_too():
    def halve(parameter):
        with torch._C.DisableTorchFunction():
            parameter.grad.mul_(0.5)

    def run(model):
        hook = model.weight.register_post_accumulate_grad_hook(halve)
        squares(model)
        hook.remove()

    plain = str(recorded(nn.Linear(3, 2), run))
    model = nn.Linear(3, 2)
    with tbscope.record(model) as recording, HandingOn():
        run(model)
    assert str(recording.graph) == plain
    assert plain.count("= mul_(") == 1
    assert plain.count("= weight_grad(") == 1


class Hyper(nn.Module):
    """A layer whose weight another layer makes, set in one of two ways."""

    def __init__(self, change):
        super().__init__()
        self.made, self.layer = nn.Linear(2, 4), nn.Linear(2, 2)
        self.change = change

    def forward(self, x):
        self.change(self.layer, self.made(x[0]).view(2, 2))
        return self.layer(x).sum()


def put(layer, weight):
    layer.weight = nn.Parameter(weight)


def fill(layer, weight):
    layer.weight.data = weight


@pytest.mark.parametrize("change", [put, fill])
def test_the_gradient_of_a_weight_that_forward_sets_is_called_by_the_weight(change):
    graph = tbscope.trace(Hyper(change), torch.ones(2, 2), grad=True, backward=True)
    gradients = [node.op for node in graph.nodes if node.op.endswith("_grad")]
    assert sorted(gradients) == ["bias_grad", "weight_grad"]
    graph.verify()


def test_a_gradient_that_is_copied_as_a_hook_keeps_it_is_no_sum():
    net, kept = nn.Linear(3, 2), []
    net.weight.register_hook(kept.append)
    graph = recorded(net, squares)
    (node,) = (node for node in graph.nodes if node.attributes.get("gradient_of") == "weight")
    assert node.writes
    assert "accumulates" not in node.attributes


def test_a_gradient_that_another_tensor_gets_too_is_that_of_the_first():
    net = nn.Linear(3, 3)
    net.spare = nn.Parameter(torch.ones(3, 3))

    def step(model):
        squares(model)
        model.spare.grad = model.weight.grad

    graph = recorded(net, step)
    assert [*gradients_of(graph)].count("weight") == 1
    assert "spare" not in gradients_of(graph)
