"""What a node tells of itself: its role, what it writes into, and whether it is random."""

import pytest
import torch
from real_graphs import KINDS, operations, real_graph
from torch import nn
from torch.nn import functional

import tbscope
from tbscope.ir.graph import Argument, Constant
from tbscope.passes.collapse_leaves import collapse_leaves
from tbscope.passes.collapse_modules import collapse_modules
from tbscope.sources.torch.operations import is_random, kernel_info, role_of

X = torch.rand(2, 3)


def only(function, *given, **options):
    """Trace a function; give its last operation."""
    return operations(tbscope.trace(function, given, **options))[-1]


def written(node):
    """Give the names of the values that an operation wrote into."""
    return [node.inputs[place].name for place in node.writes]


# -- roles ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "role"),
    [
        (lambda x: x.view(3, 2), "view"),
        (lambda x: x[0], "view"),
        (lambda x: x.reshape(6), "view"),
        (lambda x: x[0, 1:], "view"),
        (lambda x: x.mT, "view"),
        (lambda x: x.t().reshape(6), "copy"),
        (lambda x: x.clone(), "copy"),
        (lambda x: x.half(), "cast"),
        (lambda x: x.exp(), None),
        (lambda x: x[[0, 1]], None),
        (lambda x: x.mean(), None),
        (torch.zeros_like, None),
        (lambda x: torch.zeros(2, 3), "maker"),
        (lambda x: torch.arange(5.0), "maker"),
        (lambda x: torch.tensor([1.0, 2.0]), "maker"),
        (lambda x: torch.rand(2, 3), None),
    ],
)
def test_an_operation_that_computes_nothing_has_a_role(function, role):
    assert only(function, X).role == role


def test_an_operation_has_a_role_only_if_all_its_kernels_have_one():
    assert role_of(["aten::view", "aten::_to_copy", "aten::clone"], reads=True) == "cast"
    assert role_of(["aten::view", "aten::_to_copy", "aten::mul"], reads=True) is None
    assert role_of(["aten::empty", "aten::lift"], reads=False) == "maker"
    assert role_of(["aten::empty", "aten::fill_"], reads=False) is None
    assert role_of([], reads=True) is None


def test_what_lifts_a_tensor_is_a_view_of_one_that_is_known():
    assert role_of(["aten::lift_fresh"], reads=True) == "view"
    assert role_of(["aten::lift_fresh"], reads=False) == "maker"


def test_a_module_that_passes_its_input_on_has_no_role():
    assert only(nn.Identity(), X).role is None


def test_kernels_inside_of_an_operation_tell_what_they_are_too():
    kernels = only(lambda x: x.t().reshape(6), X, kernels=True).body.nodes
    assert [(node.op, node.role) for node in kernels] == [
        ("clone", "copy"),
        ("_unsafe_view", "view"),
    ]
    node = only(functional.dropout, X, kernels=True)
    assert [(inner.op, inner.role) for inner in node.body.nodes if inner.random] == [
        ("bernoulli_", None)
    ]
    assert {inner.op: written(inner) for inner in node.body.nodes if inner.writes} == {
        "bernoulli_": [node.body.nodes[0].outputs[0].name],
        "div_": [node.body.nodes[1].outputs[0].name],
    }
    assert node.writes == ()


# -- writes --------------------------------------------------------------------------------


def fill_first_row(x, y):
    x[0] = y
    return x


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda x, y: x.add_(y), ["x"]),
        (fill_first_row, ["x"]),
        (lambda x, y: torch._foreach_add_([x, y], 1.0), ["x", "y"]),
        (lambda x, y: functional.relu(x, inplace=True), ["x"]),
        (lambda x, y: torch.where(x > 0, x, y), []),
        (lambda x, y: x.int() & y.int(), []),
        (lambda x, y: functional.dropout(x, training=True), []),
        (lambda x, y: functional.gumbel_softmax(x), []),
    ],
)
def test_an_operation_tells_what_it_writes_into(function, names):
    given = (X.clone(), X[0].clone() if function is fill_first_row else X.clone())
    assert written(only(function, *given)) == names


@pytest.mark.parametrize(
    ("training", "names"), [(True, ["running_mean", "running_var"]), (False, [])]
)
def test_a_normalisation_writes_into_its_statistics_in_training(training, names):
    graph = tbscope.trace(nn.BatchNorm1d(3), X, training=training)
    (node,) = (node for node in graph.nodes if node.op == "batch_norm")
    assert written(node) == names


@pytest.mark.parametrize("way", [collapse_leaves, collapse_modules])
def test_a_node_that_stands_for_a_module_writes_into_what_its_operations_do(way):
    graph = tbscope.trace(nn.Sequential(nn.BatchNorm1d(3), nn.Dropout()), X, training=True)
    way(graph)
    norm, dropout = operations(graph)
    assert sorted(written(norm)) == ["0.num_batches_tracked", "0.running_mean", "0.running_var"]
    assert (norm.random, dropout.random, dropout.writes) == (False, True, ())


def test_what_an_operation_fills_by_out_is_none_of_its_operands():
    node = only(lambda x, y: torch.add(x, x, out=y), X, X.clone())
    assert (written(node), len(node.outputs)) == ([], 1)


def fill(source, target):
    target.copy_(source)


def fill_by_operator(x, y):
    torch.ops.tbscope_roles.fill(x, y)


def test_an_operator_of_a_user_that_writes_needs_no_underscore():
    with torch.library._scoped_library("tbscope_roles", "DEF") as library:
        library.define("fill(Tensor source, Tensor(a!) target) -> ()")
        library.impl("fill", fill, "CPU")
        node = only(fill_by_operator, X, torch.zeros(2, 3))
    assert (node.op, written(node)) == ("fill", ["y"])


@pytest.mark.parametrize("name", KINDS)
def test_no_real_model_writes_into_what_the_names_of_its_kernels_do_not_tell(name):
    for node in operations(real_graph(name)):
        if node.writes:
            assert any(kernel.endswith("_") or "batch_norm" in kernel for kernel in node.kernels), (
                node
            )


# -- random numbers ------------------------------------------------------------------------


def test_a_random_operation_says_so():
    assert only(torch.rand_like, X).random
    assert not only(torch.zeros_like, X).random
    assert only(nn.Dropout(), X, training=True).random


@pytest.mark.parametrize(
    ("dropout", "train", "random"), [(0.5, True, True), (0.0, True, False), (0.5, False, False)]
)
def test_a_fused_recurrent_layer_is_random_only_with_dropout_in_training(dropout, train, random):
    facts = kernel_info(torch.ops.aten._cudnn_rnn.default)
    x = Constant("x")
    given = ([x], [x, x], True, 2, dropout, train, False, True)
    arguments = [Argument(None, nest) for nest in given]
    assert is_random([facts.name], arguments, ()) is random
