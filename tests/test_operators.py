"""What no Python function is around: kernels of scripts, and functions that an operator runs."""

import contextlib

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as map_rows

import tbscope
from tests.real_graphs import origins
from tests.versions import TORCH, needs_torch


def ops(graph):
    return [node.op for node in graph.nodes if node.kind == "op"]


def traced(run, *given, **options):
    graph = tbscope.trace(run, given, **options)
    graph.verify()
    return graph


@needs_torch(2, 8, reason="map runs the function itself, no graph that it makes of it first")
def test_a_function_that_runs_on_a_part_of_a_tensor_reads_a_slice_of_it():
    graph = traced(lambda x: map_rows(torch.tanh, x), torch.ones(1, 3))
    assert ops(graph)[:2] == ["slice", "tanh"]
    x, part, tanh, mapped = graph.nodes
    assert (part.inputs, tanh.inputs) == (x.outputs, part.outputs)
    # What the function gave is read by the operator that ran it.
    assert mapped.inputs == [*x.outputs, *tanh.outputs]


@pytest.mark.parametrize("closed", [True, False])
def test_a_scope_that_a_function_of_an_operator_opens_has_to_be_closed(closed):
    def body(row):
        tbscope.push_scope("left")
        row = row.tanh()
        if closed:
            tbscope.pop_scope("left")
        return row

    if closed:
        graph = traced(lambda x: map_rows(body, x), torch.ones(1, 3))
        assert any(str(node.scope or "").endswith("/left") for node in graph.nodes)
    else:
        with pytest.raises(tbscope.TbscopeError, match="left"):
            tbscope.trace(lambda x: map_rows(body, x), torch.ones(1, 3))


def test_of_operations_inside_of_each_other_the_innermost_is_told_to_have_raised():
    def body(row):
        return row @ torch.ones(7)

    graph = tbscope.trace(lambda x: map_rows(body, x), torch.ones(2, 3), partial=True)
    assert [node.op for node in graph.nodes if "error" in node.attributes] == ["matmul"]


@torch.library.custom_op("tbscope_tests::log", mutates_args=())
def log(x: torch.Tensor) -> None:
    """Give nothing, as a function that writes a log."""


@pytest.mark.parametrize("seen", [True, False], ids=["a function", "no function around it"])
def test_a_kernel_that_gives_nothing_is_drawn(seen):
    def run(x):
        with contextlib.nullcontext() if seen else torch._C.DisableTorchFunction():
            torch.ops.tbscope_tests.log(x)
        return x + 1

    assert ops(traced(run, torch.ones(2))) == ["log", "add"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("scripted", [True, False])
def test_a_kernel_of_a_script_tells_its_arguments_by_the_names_of_its_schema(scripted):
    class Clamping(nn.Module):
        def forward(self, x):
            return x.clamp(0.0, 2.0)

    net = torch.jit.script(Clamping()) if scripted else Clamping()
    graph_def = tbscope.to_graph_def(traced(nn.Sequential(net), torch.ones(2)), leaves="box")
    (clamp,) = (node for node in graph_def.node if node.op == "clamp")
    assert {name: clamp.attr[name].f for name in ("min", "max")} == {"min": 0, "max": 2}
    assert not {"arg1", "arg2"} & set(clamp.attr)


def test_the_first_operation_of_a_run_may_run_functions_with_no_function_around_it():
    def run(x):
        with torch._C.DisableTorchFunction():
            return map_rows(torch.tanh, x)

    assert "tanh" in ops(traced(run, torch.ones(1, 3)))
    assert "tanh" in ops(traced(lambda x: run(x * 2), torch.ones(1, 3)))


@torch.library.custom_op("tbscope_tests::fill_both", mutates_args=("x", "y"))
def fill_both(x: torch.Tensor, y: torch.Tensor) -> None:
    """Write into both."""
    x.fill_(1)
    y.fill_(1)


@pytest.mark.parametrize("apart", [True, False])
def test_what_is_written_twice_by_one_operation_holds_one_new_value(apart):
    def run(x):
        y, z = x * 2, x * 3
        torch.ops.tbscope_tests.fill_both(y, z if apart else y)
        return y + z

    graph = traced(run, torch.ones(2))
    (both,) = (node for node in graph.nodes if node.op == "fill_both")
    add = graph.outputs[0].value.producer
    assert len(both.outputs) == (2 if apart else 1)
    assert [value.producer.op for value in add.inputs] == [
        "fill_both",
        "fill_both" if apart else "mul",
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_a_script_detaches_still_comes_from_where_it_came():
    class Detaching(nn.Module):
        def forward(self, x):
            return x.detach() * 2

    graph = traced(nn.Sequential(torch.jit.script(Detaching())), torch.ones(2))
    # Up to 2.8 torch runs the kernel twice.
    assert ops(graph) == ["detach"] * (1 if TORCH >= (2, 9) else 2) + ["mul"]
    assert origins(graph) == {"out": {graph.inputs[0].name}}


def test_what_a_function_fills_is_told_and_not_read():
    y = torch.zeros(2)
    graph = traced(lambda x: torch.exp(x, out=y) * 2, torch.ones(2))
    exp = next(node for node in graph.nodes if node.op == "exp")
    assert str(exp.arguments[1].nest) == "<out>"
    assert exp.inputs == graph.inputs[0].outputs
