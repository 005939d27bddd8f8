"""Operations in flight: what each does is its own, also if it fails or runs functions."""

import contextlib

import pytest
import torch
from real_graphs import operations
from torch._higher_order_ops.scan import scan

import tbscope
from tbscope.sources.eager.record.operation import Operations
from tbscope.sources.torch.internals import storage_key
from tbscope.sources.torch.operations import kernel_facts

X = torch.rand(2, 3)


def running_sum(x):
    def step(carry, y):
        return carry + y, y.sin()

    return scan(step, x[0], x)


def test_a_function_that_runs_again_reads_nothing_of_its_last_run_unless_it_is_given():
    graph = tbscope.trace(running_sum, torch.rand(3, 2))
    adds = [node for node in graph.nodes if node.op == "add"]
    assert [[value.producer.op for value in node.inputs] for node in adds] == [
        ["getitem", "slice"],
        ["add", "slice"],
        ["add", "slice"],
    ]


def test_an_operation_reads_what_its_functions_gave():
    (node,) = (
        node for node in tbscope.trace(running_sum, torch.rand(3, 2)).nodes if node.op == "scan"
    )
    given = [value.producer.op for value in node.inputs]
    assert given == ["getitem", "input", "sin", "sin", "add", "sin"]


def test_a_function_inside_of_a_function_gives_to_the_operation_that_ran_it():
    def inner(x):
        return torch.cond(x.sum() > 0, torch.exp, torch.sin, (x,)).neg()

    graph = tbscope.trace(lambda x: torch.cond(x.sum() > 0, inner, torch.abs, (x,)), X)
    first, second = (node for node in graph.nodes if node.op == "cond")
    assert [value.producer.op for value in first.inputs] == ["gt", "input", "exp"]
    assert [value.producer.op for value in second.inputs] == ["gt", "input", "neg"]


@pytest.mark.parametrize("runs_a_function", [False, True])
def test_no_product_reads_a_copy_that_was_made_before_a_function_ran(runs_a_function):
    everything = Operations({}, keep_runs=False)
    operation = everything.begin()
    copy = operation.run(kernel_facts(torch.ops.aten.clone.default), (X,), {})
    if runs_a_function:
        # It may have given the memory of the copy to something else.
        with everything.function() as gave:
            gave(None)
    operation.run(kernel_facts(torch.ops.aten.mm.default), (copy, copy.T), {})
    (_, parts) = operation.work[0]
    read = storage_key(copy if runs_a_function else X)
    assert {key for _, keys in parts for key in keys} == {read}
    assert everything.running is operation


def test_a_function_without_a_name_is_printed_as_what_it_is():
    assert "<partial>" in str(tbscope.trace(running_sum, torch.rand(3, 2)))


def test_an_operation_that_fails_and_is_caught_leaves_nothing_behind():
    def run(x, fails):
        y = x.clone()
        with contextlib.suppress(IndexError):
            y.index_fill_(0, torch.tensor([9 if fails else 1]), 1.0)
        return y.exp()

    failed, filled = (operations(tbscope.trace(run, (X, fails))) for fails in (True, False))
    assert [node.op for node in failed] == ["clone", "tensor", "exp"]
    assert [node.op for node in filled] == ["clone", "tensor", "index_fill_", "exp"]
    assert [(node.writes, len(node.outputs)) for node in failed] == [((), 1)] * 3
    assert failed[-1].kernels == ["aten::exp"]


def test_what_is_computed_before_a_caught_failure_does_not_count():
    def run(x):
        with contextlib.suppress(RuntimeError):
            torch.nn.functional.linear(x, x)
        with contextlib.suppress(RuntimeError):
            torch.linalg.multi_dot([x, x.T, x, torch.rand(5, 5)])
        return x @ x.T

    *_, product = operations(tbscope.trace(run, X))
    assert product.flops == 2 * 2 * 3 * 2


@pytest.mark.parametrize("kernels", [False, True])
def test_kernels_are_kept_only_where_they_are_asked_for(kernels):
    *_, node = operations(tbscope.trace(lambda x: x.t().reshape(6), X, kernels=kernels))
    assert node.kernels == ["aten::clone", "aten::_unsafe_view"]
    assert (node.body is not None) is kernels
