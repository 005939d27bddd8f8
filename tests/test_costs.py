"""Costs: through which tensors gradients flow, as autograd itself has it, and what adds up."""

from collections import Counter

import pytest
import torch
from build import GraphBuilder
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import tbscope
from tbscope.analysis.costs import (
    Costs,
    needs_gradient,
    scope_work,
    uncounted_kernels,
)
from tbscope.ir.graph import Gradient, Measured


class Between(nn.Module):
    """Two products with something between them."""

    def __init__(self, between):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.between = between

    def forward(self, x):
        return self.last(self.between(self.first(x)))


def backward_by_torch(model, inputs):
    """Give the FLOPs of a backward pass that is really run."""
    with torch.enable_grad():
        given = model.train()(inputs)
        result = given if isinstance(given, torch.Tensor) else given[0]
        with FlopCounterMode(display=False) as counter:
            if result.requires_grad:
                result.sum().backward()
    return counter.get_total_flops()


def detached_in_place(y):
    z = y * 1
    z.detach_()
    return z


def detached_after_a_view_was_taken(y):
    z = y * 1
    view = z.view(8)
    z.detach_()
    return view.view(2, 4)


def copied_into_a_new_one(y):
    return torch.zeros_like(y).copy_(y)


def copied_into_a_row(y):
    z = torch.zeros(2, 4)
    z[0].copy_(y[0])
    return z


def filled_by_out(y):
    z = torch.empty(2, 4)
    with torch.no_grad():
        torch.mul(y, 2, out=z)
    return z


def its_argmax(y):
    return y.argmax(-1).float() @ torch.ones(2, 4)


def as_data_of_another(y):
    z = torch.zeros(2, 4)
    z.data = y
    return z


# What cuts the way of gradients beside what nearly does.
WAYS = {
    "detach": torch.detach,
    "detach_": detached_in_place,
    "detach_ of what a view was taken of": detached_after_a_view_was_taken,
    "data": lambda y: y.data,
    "data of a view": lambda y: y.view(8).data.view(2, 4),
    "data that was set": as_data_of_another,
    "clone": torch.clone,
    "a copy of what is detached": lambda y: torch.zeros_like(y).copy_(y.detach()),
    "a copy": copied_into_a_new_one,
    "a copy into a row": copied_into_a_row,
    "zeros of its size": torch.zeros_like,
    "zeros of its type": lambda y: y.new_zeros(2, 4),
    "noise of its size": torch.randn_like,
    "noise added": lambda y: y + torch.randn_like(y),
    "zeros written": lambda y: (y * 1).zero_(),
    "out": filled_by_out,
    "out that is none": lambda y: torch.mul(y, 2, out=None),
    "argmax": its_argmax,
    "max": lambda y: y.max(-1).values @ torch.ones(2, 4),
    "a comparison": lambda y: (y > 0).to(y.dtype),
    "round": torch.round,
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", WAYS)
def test_gradients_flow_as_far_as_autograd_has_them(name, grad):
    model, inputs = Between(WAYS[name]), torch.rand(2, 4)
    costs = tbscope.costs(tbscope.trace(model, inputs, training=True, grad=grad)).total
    assert costs.backward_flops == backward_by_torch(model, inputs)


def test_what_is_frozen_needs_no_gradient_beside_what_is_written_through_a_view():
    model, inputs = Between(copied_into_a_row), torch.rand(2, 4)
    model.last.requires_grad_(False)
    costs = tbscope.costs(tbscope.trace(model, inputs, training=True)).total
    assert costs.backward_flops == backward_by_torch(model, inputs) > 0


def test_an_output_that_is_written_through_a_view_needs_a_gradient():
    model, inputs = Between(torch.relu), torch.rand(2, 4)
    last, model.last = model.last, nn.Identity()
    model.last.forward = lambda y: copied_into_a_row(last(y))
    costs = tbscope.costs(tbscope.trace(model, inputs, training=True)).total
    assert costs.backward_flops == backward_by_torch(model, inputs) > 0


def test_a_detach_in_place_is_a_node_of_its_tensor_alone():
    graph = tbscope.trace(Between(detached_in_place), torch.rand(2, 4))
    *_, cut, last = [node for node in graph.nodes if node.kind == "op"]
    assert (cut.op, cut.flops, cut.allocated_bytes) == ("detach_", 0, 0)
    assert last.inputs[0].producer is cut
    drawn = tbscope.to_graph_def(graph, level="op")
    assert not any(node.op == "detach_" for node in drawn.node)


def test_a_detach_in_place_of_what_nobody_made_is_no_node():
    stranger = torch.ones(2, 4)
    graph = tbscope.trace(Between(lambda y: (stranger.detach_(), y)[1]), torch.rand(2, 4))
    assert [node.op for node in graph.nodes if node.kind == "op"] == ["linear", "linear"]


class Branches(nn.Module):
    """A product that is given back, and one of which only the places of the largest are."""

    def __init__(self, choose):
        super().__init__()
        self.main, self.side, self.choose = nn.Linear(4, 4), nn.Linear(4, 4), choose

    def forward(self, x):
        return self.main(x), self.choose(self.side(x))


@pytest.mark.parametrize(("choose", "branches"), [("argmax", 1), ("amax", 2)])
def test_a_branch_that_gives_integers_has_no_backward_pass(choose, branches):
    model = Branches(lambda y: getattr(torch, choose)(y, -1))
    costs = tbscope.costs(tbscope.trace(model, torch.rand(2, 4))).total
    assert costs.backward_flops == branches * 2 * 2 * 4 * 4


# -- layers of which a part learns ----------------------------------------------------------


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_fast_layer_asks_for_as_much_as_one_that_learns(norm_first):
    layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True, norm_first=norm_first)
    inputs = torch.rand(2, 5, 16)
    graph = tbscope.trace(layer.eval(), inputs)
    assert "aten::_transformer_encoder_layer_fwd" in graph.nodes[-1].kernels
    learning = tbscope.trace(layer, inputs, training=True)
    flops = tbscope.costs(graph).total.backward_flops
    assert flops == tbscope.costs(learning).total.backward_flops > 0


def test_fast_attention_asks_for_as_much_as_that_which_learns():
    layer, x = nn.MultiheadAttention(16, 4, batch_first=True), torch.rand(2, 5, 16)
    asked = {"kwargs": {"need_weights": False}}
    graph = tbscope.trace(layer.eval(), (x, x, x), **asked)
    assert "aten::_native_multi_head_attention" in graph.nodes[-1].kernels
    learning = tbscope.trace(layer, (x, x, x), training=True, **asked)
    flops = tbscope.costs(graph).total.backward_flops
    assert flops == tbscope.costs(learning).total.backward_flops > 0


def test_two_inputs_of_one_storage_ask_for_its_gradient_alike():
    graph = tbscope.trace(lambda x: x @ x.T, torch.rand(2, 3))
    (product,) = [node for node in graph.nodes if node.op == "matmul"]
    assert [gradient.inputs for gradient in product.gradients] == [(0, 1), (0, 1)]


def test_a_fast_layer_of_which_nothing_learns_has_no_backward_pass():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).requires_grad_(False)
    assert tbscope.costs(tbscope.trace(layer, torch.rand(2, 5, 16))).total.backward_flops == 0


@pytest.mark.parametrize("learns", ["norm1.bias", "norm2.bias", "linear1.bias", "linear2.weight"])
def test_the_same_layer_asks_for_as_much_in_training(learns):
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    layer.requires_grad_(False).get_parameter(learns).requires_grad_(True)
    inputs = torch.rand(2, 5, 16)
    costs = tbscope.costs(tbscope.trace(layer, inputs, training=True)).total
    assert costs.backward_flops == backward_by_torch(layer, inputs)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("part", ["bias", "weight_hh", "weight_ih", ""])
def test_of_a_recurrent_layer_the_parts_that_learn_count(part, layers):
    model = nn.LSTM(8, 16, layers)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(part in name)
    costs = tbscope.costs(tbscope.trace(model, torch.rand(5, 3, 8))).total
    of_input, of_state, between = (2 * 15 * 64 * width for width in (8, 16, 16))
    # The state's way back through all steps, and from each layer to the one below it.
    expected = layers * of_state + (layers - 1) * between
    if part in ("weight_hh", ""):
        expected += layers * of_state
    if part in ("weight_ih", ""):
        expected += of_input + (layers - 1) * between
    assert costs.backward_flops == expected


# -- graphs by hand -------------------------------------------------------------------------


def one_product(**facts):
    """Give a graph of a product of an input and a parameter."""
    build = GraphBuilder()
    x = build.input("x", (2, 3))
    weight = build.parameter("weight", (3, 4), attributes={"requires_grad": True})
    y = build.op("mm", x, weight, shape=(2, 4), **facts)
    build.output("out", y)
    return build.graph, y


def test_only_the_parts_that_are_asked_for_count():
    parts = (Gradient(10, (0,)), Gradient(100, (1,)), Gradient(1000, (0, 1)))
    graph, y = one_product(flops=48, gradients=parts)
    assert tbscope.costs(graph).nodes[y.producer].backward_flops == 1100
    assert tbscope.costs(graph, backward=False).nodes[y.producer].backward_flops == 0


def test_what_no_output_depends_on_needs_no_gradient():
    graph, y = one_product()
    weight = graph.nodes[1].outputs[0]
    assert needs_gradient(graph) == {weight, y}
    graph.outputs.clear()
    assert needs_gradient(graph) == set()


@pytest.mark.parametrize(("dtype", "flows"), [("bfloat16", True), ("complex64", True), ("u8", 0)])
def test_gradients_flow_along_floats(dtype, flows):
    graph, y = one_product(dtype=dtype)
    assert (y in needs_gradient(graph)) == flows


def test_all_that_is_read_and_given_moves_once():
    build = GraphBuilder()
    x = build.input("x", (2, 3))
    square = build.op("mm", x, x, shape=(2, 2), allocated_bytes=16)
    view = build.op("view", square, shape=(4,))
    product = build.op("mm", view, x, shape=(), flops=5)
    costs = tbscope.costs(build.graph).nodes
    moved = [costs[value.producer].moved_bytes for value in (square, view, product)]
    assert moved == [24 + 16, 0, 16 + 24 + 4]
    assert x.producer not in costs


def test_kernels_without_formula_count_as_often_as_they_ran():
    build = GraphBuilder()
    known = {"aten::gelu": "no formula"}
    kernels = ["aten::gelu", "aten::mm", "aten::gelu"]
    told = build.op("block", shape=(2,), kernels=kernels, flops=4).producer
    integers = build.op("block", shape=(2,), kernels=kernels, flops=0).producer
    assert uncounted_kernels(told, known) == ["aten::gelu"] * 2
    assert uncounted_kernels(integers, known) == []
    assert uncounted_kernels(told, {"aten::silu": "no formula"}) == []


def nested(**facts):
    """Give a graph of two operations in a scope, the second one in a scope of its own."""
    build = GraphBuilder()
    build.graph.uncounted["aten::gelu"] = "no formula"
    outer, inner = build.call("Net"), build.call("Net/GELU[act]")
    x = build.input("x", (2,))
    y = build.op("mm", x, scope=outer, kernels=["aten::mm"], flops=8, measured=Measured(2.0))
    build.op("gelu", y, scope=inner, kernels=["aten::gelu"], measured=Measured(3.0), **facts)
    return build.graph, outer, inner


def test_scopes_count_what_is_in_the_scopes_below():
    graph, outer, inner = nested(allocated_bytes=8)
    costs = tbscope.costs(graph).scopes
    assert (costs[outer].calls, costs[inner].calls) == (2, 1)
    assert (costs[outer].operations, costs[inner].operations) == (2, 1)
    assert (costs[outer].duration_us, costs[inner].duration_us) == (5.0, 3.0)
    assert (costs[outer].flops, costs[inner].flops) == (8, 0)
    assert costs[outer].activation_bytes == 8
    assert costs[outer] == tbscope.costs(graph).total


def test_what_a_scope_computes_agrees_with_its_costs():
    graph, outer, inner = nested()
    work, costs = scope_work(graph), tbscope.costs(graph).scopes
    assert (work[outer].flops, work[inner].flops) == (8, 0)
    for scope in (outer, inner):
        assert work[scope].uncounted == costs[scope].uncounted == {"aten::gelu": 1}


def test_a_scope_without_operations_of_its_own_computes_what_the_scopes_below_do():
    build = GraphBuilder()
    outer, middle = build.call("Net"), build.call("Net/Block[block]")
    inner = build.call("Net/Block[block]/Linear[fc]")
    build.op("mm", build.input("x", (2,)), scope=inner, flops=8)
    work = scope_work(build.graph)
    assert [work[scope].flops for scope in (outer, middle, inner)] == [8, 8, 8]


def test_what_was_not_measured_has_no_time_and_adds_none():
    total = Costs()
    total.add(Costs(flops=1))
    assert total.duration_us is None
    total.add(Costs(duration_us=0.0))
    assert total.duration_us == 0.0
    total.add(Costs(duration_us=2.5, uncounted=Counter({"aten::gelu": 2})))
    total.add(Costs())
    assert (total.duration_us, total.flops, total.uncounted["aten::gelu"]) == (2.5, 1, 2)
