"""Operations in flight: what each does is its own, also if it fails or runs functions."""

import contextlib

import pytest
import torch
from real_graphs import operations
from torch._higher_order_ops.scan import scan
from versions import needs_torch

import tbscope

X = torch.rand(2, 3)


runs_scan_once = needs_torch(2, 11, reason="scan runs its function once less, and no other views")


def running_sum(x):
    def step(carry, y):
        return carry + y, y.sin()

    return scan(step, x[0], x)


@runs_scan_once
def test_a_function_that_runs_again_reads_nothing_of_its_last_run_unless_it_is_given():
    graph = tbscope.trace(running_sum, torch.rand(3, 2))
    adds = [node for node in graph.nodes if node.op == "add"]
    assert [[value.producer.op for value in node.inputs] for node in adds] == [
        ["getitem", "slice"],
        ["add", "slice"],
        ["add", "slice"],
    ]


@runs_scan_once
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
