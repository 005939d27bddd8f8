"""Tensors that no operation gave: under which names they are known, and of what they are made."""

import pytest
import torch
from composite_models import Two
from torch import nn

import tbscope

X = torch.ones(3, 4)


def test_a_tensor_given_three_times_is_one_input_with_all_names():
    row = torch.ones(4)
    graph = tbscope.trace(lambda x, y, z: x + y + z, (row, row, row))
    assert [node.name for node in graph.inputs] == ["x"]
    assert graph.inputs[0].attributes["also"] == "y, z"


class Given:
    """Shows one tensor, and hides another one under two names."""

    def __init__(self):
        self._first = self._second = torch.ones(4)
        self.shown = torch.ones(4)


@pytest.mark.parametrize(("name", "inputs"), [("_second", ["_first"]), ("shown", [])])
def test_what_an_input_hides_is_an_input_where_it_is_read_by_the_first_of_its_names(name, inputs):
    graph = tbscope.trace(lambda x, given: x + getattr(given, name), (X, Given()))
    assert [node.name for node in graph.inputs] == ["x", "given.shown"] + [
        f"given.{each}" for each in inputs
    ]


def test_what_an_argument_hides_in_a_recording_is_an_input_under_its_path():
    class Reading(nn.Module):
        def forward(self, x, given):
            return x + given._first

    given = Given()
    with tbscope.record() as recording:
        Reading()(X, given)
    names = [node.name for node in recording.graph.inputs]
    assert names == ["x", "given.shown", "given._first"]


@pytest.mark.parametrize("same", [True, False])
def test_a_tensor_that_is_made_of_another_one_twice_reads_it_once(same):
    graph = tbscope.trace(lambda x, y: Two(x, x if same else y) * 2, (X, X + 1))
    (made,) = (node for node in graph.nodes if node.op == "Two")
    assert [value.producer.name for value in made.inputs] == (["x"] if same else ["x", "y"])


class Quantised(nn.Module):
    """Holds a parameter that is made of a buffer of its own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.ones(4))
        self.weight = nn.Parameter(Two(self.codes, torch.ones(4)), requires_grad=False)
        self.weight.a = self.codes

    def forward(self, x, like):
        rows = torch.vmap(torch.sin)(x)
        made = Two(self.codes, like) if like is not None else self.weight
        return rows + (made * 2).b


@pytest.mark.parametrize("like", [None, torch.ones(4)])
def test_a_parameter_is_itself_though_what_it_is_made_of_is_known_too(like):
    graph = tbscope.trace(Quantised(), (X, like))
    (product,) = (node for node in graph.nodes if node.op == "mul")
    gave = product.inputs[0].producer
    assert (gave.name if like is None else gave.op) == ("weight" if like is None else "Two")


class Registers(nn.Module):
    """Registers a buffer amid its first run, which is a tensor from before, or does not."""

    def __init__(self, *, registers):
        super().__init__()
        self.table, self.registers = [torch.ones(4)], registers

    def forward(self, x):
        if self.registers and not hasattr(self, "late"):
            self.register_buffer("late", self.table[0])
        return x + self.table[0]


@pytest.mark.parametrize(("registers", "kind"), [(True, "buffer"), (False, "constant")])
def test_what_a_module_registers_amid_its_run_is_known_by_its_name(registers, kind):
    graph = tbscope.trace(Registers(registers=registers), X)
    held = [(node.kind, node.name) for node in graph.nodes if node.kind in ("buffer", "constant")]
    assert held == [(kind, "late" if registers else held[0][1])]


class Rows(torch.autograd.Function):
    """Doubles, row by row, in both directions."""

    @staticmethod
    def forward(ctx, x):
        return torch.vmap(lambda row: row * 2)(x)

    @staticmethod
    def backward(ctx, gradient):
        return torch.vmap(lambda row: row * 2)(gradient)


def test_what_happens_between_the_operations_of_a_backward_pass_is_a_part_of_it():
    with tbscope.record() as recording:
        Rows.apply(X.clone().requires_grad_()).sum().backward()
    phases = [node.phase for node in recording.graph.nodes if node.op == "add_batch_dim"]
    assert phases == ["forward", "backward"]
