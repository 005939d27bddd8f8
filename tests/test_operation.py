"""Operations in flight: what each does is its own, also if it fails or runs functions."""

import contextlib

import pytest
import torch
from real_graphs import operations
from torch._higher_order_ops.scan import scan
from torch.nn import functional
from versions import needs_torch

import tbscope
from tbscope.sources.eager.record.operation import Operations
from tbscope.sources.torch.compat.tensors import storage_key
from tbscope.sources.torch.operations import kernel_info

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


@pytest.mark.parametrize("runs_a_function", [False, True])
def test_no_product_reads_a_copy_that_was_made_before_a_function_ran(runs_a_function):
    everything = Operations({}, keep_runs=False)
    operation = everything.begin()
    copy = operation.run(kernel_info(torch.ops.aten.clone.default), (X,), {})
    if runs_a_function:
        # It may have given the memory of the copy to something else.
        with everything.function() as gave:
            gave(None)
    operation.run(kernel_info(torch.ops.aten.mm.default), (copy, copy.T), {})
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


LIBRARY = torch.library.Library("tbscope_out", "FRAGMENT")
LIBRARY.define("mix(Tensor x, Tensor out) -> Tensor")
LIBRARY.impl("mix", lambda x, out: x * 2 + out, "CompositeExplicitAutograd")

LIBRARY.define("mark(Tensor(a!) x, Tensor? out=None) -> Tensor")
LIBRARY.impl("mark", lambda x, out=None: x.add_(1) * 2, "CompositeExplicitAutograd")

LIBRARY.define("fill_first(Tensor x, *, Tensor(a!) out) -> Tensor")
LIBRARY.impl(
    "fill_first", lambda x, out: (torch.add(x, 1, out=out), x * 2)[1], "CompositeImplicitAutograd"
)


def mix(x):
    other = x * 3
    return torch.ops.tbscope_out.mix(x, out=other)


def fill(x):
    other = x * 3
    return functional.normalize(x, out=other)


@pytest.mark.parametrize(("run", "reads"), [(mix, ["x", "mul"]), (fill, ["x"])])
def test_what_is_called_out_is_read_unless_it_is_filled(run, reads):
    graph = tbscope.trace(run, X)
    node = graph.outputs[0].value.producer
    assert [value.producer.op for value in node.inputs] == ["input", "mul"][: len(reads)]
    (drawn,) = (one for one in tbscope.to_graph_def(graph).node if one.name == node.op)
    assert list(drawn.input) == reads
    assert drawn.attr["out"].s.decode() == ("<out>" if len(reads) == 1 else "")


def test_the_kernel_that_fills_out_does_not_read_it_either():
    graph = tbscope.trace(fill, X, kernels=True)
    nodes = {node.name: node for node in tbscope.to_graph_def(graph, level="aten").node}
    assert list(nodes["normalize/div"].input) == ["x", "normalize/expand"]
    assert list(nodes["out"].input) == ["normalize/div"]


@pytest.mark.parametrize("level", ["op", "module"])
def test_an_out_that_is_none_is_told_as_none(level):
    graph = tbscope.trace(functional.normalize, X)
    assert "eps=1e-12, out=None)" in str(graph)
    (drawn,) = (n for n in tbscope.to_graph_def(graph, level=level).node if n.name == "normalize")
    assert drawn.attr["out"].s == b"None"


def test_an_out_that_is_none_is_none_where_something_else_is_written():
    graph = tbscope.trace(lambda x: torch.ops.tbscope_out.mark(x * 2, out=None), X)
    assert "mark(%1, out=None)" in str(graph)


def test_a_view_of_what_a_kernel_fills_waits_for_that_kernel():
    def run(x):
        other = x * 3
        view = other.view(-1)
        torch.ops.tbscope_out.fill_first(x, out=other)
        return view + 1

    graph = tbscope.trace(run, X, kernels=True)
    nodes = {node.name: node for node in tbscope.to_graph_def(graph, level="aten").node}
    assert list(nodes["add"].input) == ["view", "^fill_first/add"]


def test_an_operation_that_raises_reads_nothing_of_its_out_either():
    def run(x):
        return torch.add(x * 2, torch.ones(7), out=x * 3)

    graph = tbscope.trace(run, X, partial=True)
    assert "add(%1, %2, out=<out>), scope: run" in str(graph)
    assert "out=None" in str(
        tbscope.trace(lambda x: torch.add(x, torch.ones(7), out=None), X, partial=True)
    )
