"""Backward passes of several threads: whose gradient a kernel computes is known across them."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from odd_steps import ODD
from torch import nn
from torch.utils.checkpoint import checkpoint
from training_steps import (
    POINTS,
    STEPS,
    BackwardKernels,
    Net,
    backward_nodes,
    closure_of,
    gradients_of,
    loss_of,
    recorded,
)

import tbscope


def run_in_thread(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    thread.join()


def backward_elsewhere(model):
    run_in_thread(loss_of(model).backward)


def forward_elsewhere(model):
    with ThreadPoolExecutor(1) as pool:
        loss = pool.submit(loss_of, model).result()
    loss.backward()


def all_elsewhere(model):
    run_in_thread(lambda: loss_of(model).backward())


def forward_in_two(model):
    losses = {}
    for number in (0, 1):
        run_in_thread(lambda at: losses.update({at: loss_of(model, POINTS[at:])}), number)
    (losses[0] + losses[1]).backward()


def both_in_two(model):
    """Train in two threads at a time, each of which waits for the other one's backward pass."""
    together = threading.Barrier(2)

    def meet(_):
        together.wait()

    def train(at):
        loss = loss_of(model, POINTS[at:])
        loss.register_hook(meet)
        loss.backward()

    threads = [threading.Thread(target=train, args=(at,)) for at in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


WAYS = [backward_elsewhere, forward_elsewhere, all_elsewhere, forward_in_two, both_in_two]
BLOCK = "Net/ModuleList[blocks]/Block[{}]"
MODULES = {
    *("Net/Linear[inp]", "Net/Linear[head]"),
    *(f"{BLOCK.format(at)}/{part}" for at in (0, 1) for part in ("Linear[fc]", "LayerNorm[norm]")),
}


def in_one_thread(model, times=1):
    """Give how often each kernel runs for a node of autograd's."""
    with BackwardKernels() as counted:
        for at in range(times):
            loss_of(model, POINTS[at:]).backward()
    return counted.counts


@pytest.mark.parametrize("way", WAYS)
def test_the_gradients_of_any_threads_stand_in_the_boxes_of_their_modules(way):
    graph = recorded(Net(), way)
    graph.verify()
    found = {finding.rule for finding in tbscope.lint(tbscope.to_graph_def(graph))}
    # Gradients of two threads come in no order of the model's.
    assert found <= ({"box-cycle"} if way in WAYS[3:] else set())
    scopes = {str(node.scope).partition("/")[2] for node in backward_nodes(graph)}
    plain = {scope.replace("Net.1/", "Net/") for scope in scopes}
    assert {scope for scope in plain if "[" in scope} - {
        BLOCK.format(0),
        BLOCK.format(1),
    } == MODULES
    at_top = [node for node in backward_nodes(graph) if "/" not in str(node.scope)]
    assert {node.op for node in at_top} <= {"ones_like", "expand", "div", "pow", "mul"}


@pytest.mark.parametrize("way", WAYS[:3])
def test_each_kernel_of_a_pass_in_another_thread_is_in_the_graph_once(way):
    graph = recorded(Net(), way)
    shown = Counter(kernel for node in backward_nodes(graph) for kernel in node.kernels)
    assert shown == in_one_thread(Net())


@pytest.mark.parametrize("way", WAYS)
def test_the_parameters_with_gradients_are_those_of_the_graph(way):
    model = Net()
    assert set(gradients_of(recorded(model, way))) == set(dict(model.named_parameters()))


def test_functions_that_a_pass_in_another_thread_calls_stand_in_it():
    (make, _), given = STEPS["own function"], POINTS
    graph = recorded(make(), lambda model: run_in_thread(model(given).sum().backward))
    called = [node for node in graph.nodes if node.op == "mul"]
    assert called
    assert {node.phase for node in called} == {"backward"}
    assert {str(node.scope).partition("/")[0] for node in called} == {"gradients"}


def test_what_is_written_into_by_another_thread_is_known():
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))

    def run(model):
        hidden = model[0](POINTS)
        run_in_thread(lambda: hidden.mul_(2))
        model[1](hidden).sum().backward()

    nodes = backward_nodes(recorded(net, run))
    (scaled,) = [node for node in nodes if node.attributes.get("differentiates") == "mul_"]
    assert (scaled.op, str(scaled.scope)) == ("mul", "gradients")
    inside = {str(node.scope) for node in nodes} - {"gradients"}
    assert inside == {f"gradients/Sequential/Linear[{at}]" for at in (0, 1)}


def test_a_graph_that_outlives_its_recording_is_not_taken_for_one_of_the_next():
    net, kept = nn.Linear(3, 2), []
    recorded(net, lambda model: run_in_thread(lambda: kept.append(loss_of(model))))
    graph = recorded(net, lambda model: (forward_elsewhere(model), kept[0].backward()))
    last = [node for node in backward_nodes(graph) if str(node.scope).startswith("gradients.1")]
    assert {str(node.scope) for node in last} == {"gradients.1", "gradients.1/Linear"}
    assert {node.op for node in last if "Linear" in str(node.scope)} == {"bias_grad", "weight_grad"}


class Deep(nn.Module):
    """Checkpoints so deep in each other that autograd takes further threads of its own."""

    def __init__(self, depth):
        super().__init__()
        self.fc, self.depth = nn.Linear(3, 3), depth

    def at(self, x, depth):
        x = self.fc(x)
        return checkpoint(self.at, x, depth - 1, use_reentrant=True) if depth else x

    def forward(self, x):
        return self.at(x, self.depth)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_passes_in_passes_go_on_in_threads_of_autograds_own():
    model, points, counted = Deep(70), POINTS.clone().requires_grad_(), []
    model.fc.register_forward_hook(lambda *_: counted.append(1))
    graph = recorded(model, lambda deep: deep(points).sum().backward())
    graph.verify()
    assert set(gradients_of(graph)) >= {"fc.weight", "fc.bias"}
    calls = [call for call in graph.calls if call.qualified_name == "fc"]
    assert len(calls) == len(counted) > 70


# -- what stands where, in one thread -----------------------------------------------------


def train_lbfgs(model):
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    optimizer.step(closure_of(model, optimizer))


def test_the_passes_that_an_optimizer_asks_for_are_backward_passes_in_its_box():
    graph = recorded(Net(), train_lbfgs)
    roots = {str(node.scope).partition("/Net")[0] for node in backward_nodes(graph)}
    assert roots == {
        *("gradients", "optimizer/LBFGS/gradients", "optimizer/LBFGS/gradients.1"),
    }
    shown = Counter(kernel for node in backward_nodes(graph) for kernel in node.kernels)
    with BackwardKernels() as counted:
        train_lbfgs(Net())
    assert shown == counted.counts


def test_what_an_optimizer_does_in_a_backward_pass_is_the_optimizers():
    def update(parameter):
        optimizers[parameter].step()
        parameter.grad = None

    model = nn.Linear(3, 2)
    optimizers = {one: torch.optim.SGD([one], 0.1) for one in model.parameters()}
    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(update)
    graph = recorded(model, lambda net: loss_of(net).backward())
    updates = [node for node in graph.nodes if "updates" in node.attributes]
    assert [node.attributes["updates"] for node in updates] == ["bias", "weight"]
    assert {node.phase for node in updates} == {"optimizer"}
    assert not any("optimizer" in str(node.scope) for node in backward_nodes(graph))


def test_what_hooks_do_with_the_gradient_of_a_parameter_stands_with_it():
    make, run = ODD["hooks of all kinds"]
    graph = recorded(make(), run)
    places = {
        str(node.source).rpartition(" in ")[2]: str(node.scope)
        for node in backward_nodes(graph)
        if node.op in ("mul_", "clamp")
    }
    head = "gradients/Net/Linear[head]"
    assert places == {"double": head, "<lambda>": head}
    halved = [
        node for node in backward_nodes(graph) if node.op == "mul" and "inp" in str(node.scope)
    ]
    assert [str(node.scope) for node in halved] == ["gradients/Net/Linear[inp]"]


def test_what_a_checkpoint_begins_anew_with_stands_where_its_gradient_is_computed():
    make, run = ODD["a reentrant checkpoint amid parts of a part"]
    graph = recorded(make(), run)
    (begun,) = [node for node in backward_nodes(graph) if node.op == "detach_grad"]
    assert str(begun.scope).startswith("gradients/Helped/Net[net]/ModuleList[blocks]/Block[0]")
    points = POINTS.clone().requires_grad_()
    graph = recorded(nn.Linear(3, 2), lambda net: net(points).sum().backward())
    (given,) = [node for node in backward_nodes(graph) if node.op == "input_grad"]
    assert str(given.scope) == "gradients"


class Nested(torch.autograd.Function):
    """A function whose backward pass runs others: the engine runs the sixtieth in a new thread."""

    @staticmethod
    def forward(ctx, x, depth, weight):
        ctx.depth, ctx.weight = depth, weight
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if ctx.depth:
            with torch.enable_grad():
                inner = Nested.apply(torch.ones(1, requires_grad=True), ctx.depth - 1, ctx.weight)
                (inner + ctx.weight).backward()
        return grad, None, None


def test_hooks_in_a_thread_of_autograds_are_recorded():
    # As on a CUDA device, where each backward pass runs in a thread of autograd's.
    model, threads = nn.Linear(1, 1, bias=False), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(_):
        threads.append(threading.get_ident())
        optimizer.step()
        torch.autograd.Variable._execution_engine.queue_callback(optimizer.step)

    model.weight.register_post_accumulate_grad_hook(step)
    with tbscope.record(model) as recording:
        Nested.apply(torch.ones(1, requires_grad=True), 62, model.weight).backward()
    assert len(set(threads)) == 2
    updates = [node for node in recording.graph.nodes if "optimizer" in str(node.scope)]
    assert len([node for node in updates if "updates" in node.attributes]) == 2 * len(threads)
