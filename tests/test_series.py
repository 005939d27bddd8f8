"""Series: what TensorBoard would fold into one node, and must not."""

import pytest
import torch
from torch import nn

import tbscope


class Calls(nn.Module):
    """Calls its modules one after the other, a given number of times."""

    def __init__(self, times=1, **modules):
        super().__init__()
        self.times = times
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x):
        for module in list(self.children()) * self.times:
            x = module(x)
        return x


def ops(model, *inputs, **how):
    """Give the op type of each node that is no circle, by name."""
    message = tbscope.to_graph_def(tbscope.trace(model, inputs), **how)
    return {node.name: node.op for node in message.node if "Const" not in node.op}


def test_layers_that_the_author_numbered_by_hand_keep_apart():
    layers = {f"fc{number}": nn.Linear(2, 2) for number in range(1, 6)}
    found = ops(Calls(**layers), torch.ones(1, 2))
    assert [found[f"fc{number}"] for number in range(1, 6)] == [
        "Linear[fc1]",
        "Linear[fc2]",
        "Linear[fc3]",
        "Linear[fc4]",
        "Linear[fc5]",
    ]


@pytest.mark.parametrize(("stem", "apart"), [("fc", True), ("fc2d", False)])
def test_only_where_no_digit_stands_before_the_number_would_the_page_fold(stem, apart):
    layers = {f"{stem}{number}": nn.Linear(2, 2) for number in range(1, 6)}
    found = ops(Calls(block7=Calls(**layers), act=nn.ReLU()), torch.ones(1, 2))
    assert found[f"block7/{stem}1"] == (f"Linear[{stem}1]" if apart else "Linear")


def test_four_of_them_are_never_folded():
    layers = {f"fc{number}": nn.Linear(2, 2) for number in range(1, 5)}
    assert ops(Calls(**layers), torch.ones(1, 2))["fc1"] == "Linear"


def test_equal_layers_of_a_list_may_be_folded():
    found = ops(nn.Sequential(*(nn.Linear(2, 2) for _ in range(6))), torch.ones(1, 2))
    assert {found[str(number)] for number in range(6)} == {"Linear"}


def test_a_layer_of_a_list_that_differs_keeps_apart():
    layers = [*(nn.Linear(2, 2) for _ in range(5)), nn.Linear(2, 3)]
    found = ops(nn.Sequential(*layers), torch.ones(1, 2))
    assert [found[str(number)] for number in range(6)] == [*["Linear"] * 5, "Linear[5]"]


def test_two_series_side_by_side_do_not_become_one():
    wide, narrow = [nn.Linear(3, 3) for _ in range(5)], [nn.Linear(3, 3, False) for _ in range(5)]
    found = ops(nn.Sequential(*wide, *narrow), torch.ones(1, 3))
    assert [found[str(number)] for number in range(4, 7)] == ["Linear", "Linear[5]", "Linear[6]"]


def test_the_calls_of_one_module_in_a_loop_may_be_folded_in_style_torch():
    found = ops(Calls(times=7, cell=nn.Linear(2, 2)), torch.ones(1, 2), style="torch")
    assert {found[f"Calls/Linear[cell].{number}"] for number in range(1, 7)} == {"Linear"}


def test_inputs_that_the_author_numbered_keep_apart():
    def add(x1, x2, x3, x4, x5):
        return x1 + x2 + x3 + x4 + x5

    found = ops(add, *(torch.ones(1) for _ in range(5)))
    assert [found[f"x{number}"] for number in (1, 5)] == ["Input[x1]", "Input[x5]"]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (lambda x: tuple(x + n for n in range(5)), {"Output[out.0]", "Output[out.4]"}),
        (lambda x: {"states": [x + n for n in range(5)]}, {"Output[states]"}),
        (
            lambda x: {"states": [x[:n] for n in range(5)]},
            {"Output[states.0]", "Output[states.4]"},
        ),
    ],
)
def test_results_of_different_kinds_keep_apart_and_a_list_of_equal_ones_may_be_folded(
    result, expected
):
    found = ops(result, torch.ones(9))
    assert {op for name, op in found.items() if name.endswith(("0", "4"))} == expected


class Scaled(nn.Module):
    """Multiplies by each of its parameters, or buffers: in a list, a dict or attributes."""

    def __init__(self, held, columns):
        super().__init__()
        tensors = [nn.Parameter(torch.rand(4, count)) for count in columns]
        if held == "list":
            self.w = nn.ParameterList(tensors)
        elif held == "dict":
            self.w = nn.ParameterDict({str(at): one for at, one in enumerate(tensors)})
        for at, one in enumerate(tensors):
            if held == "attributes":
                self.register_parameter(f"w{at}", one)
            elif held == "buffers":
                self.register_buffer(f"w{at}", one.detach())
        stem = "w." if held in ("list", "dict") else "w"
        self.names = [f"{stem}{at}" for at in range(len(columns))]

    def forward(self, x):
        owned = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        for name in self.names:
            x = x * owned[name]
        return x


LONE = {"leaves": "box"}


@pytest.mark.parametrize("style", ["tf", "torch"])
@pytest.mark.parametrize("held", ["list", "dict", "attributes", "buffers"])
def test_parameters_and_buffers_that_are_not_alike_keep_apart(held, style):
    graph = tbscope.trace(Scaled(held, [4, 1, 4, 1, 4, 1]), torch.rand(4, 4))
    message = tbscope.to_graph_def(graph, **LONE, style=style)
    owned = [node.op for node in message.node if node.op.startswith(("Parameter", "Buffer"))]
    assert len(set(owned)) == 6
    assert tbscope.lint(message) == []


def test_equal_parameters_of_a_list_may_be_folded_and_those_of_attributes_keep_apart():
    listed = ops(Scaled("list", [4] * 6), torch.rand(4, 4), **LONE)
    assert {op for name, op in listed.items() if name.startswith("w/")} == {"Parameter", "mul"}
    numbered = ops(Scaled("attributes", [4] * 6), torch.rand(4, 4), **LONE)
    assert [numbered[f"w{at}"] for at in (0, 5)] == ["Parameter[w0]", "Parameter[w5]"]


def test_a_frozen_parameter_that_is_called_by_a_number_keeps_apart():
    class Joined(nn.Module):
        def __init__(self):
            super().__init__()
            for number in range(6):
                learnt = number < 5
                self.register_parameter(str(number), nn.Parameter(torch.rand(2), learnt))

        def forward(self, x):
            return torch.cat([x, *self.parameters()])

    found = ops(Calls(join=Joined(), act=nn.ReLU()), torch.rand(2), **LONE)
    assert [found[f"join/{at}"] for at in (0, 4, 5)] == [
        "Parameter",
        "Parameter",
        "Parameter[join.5]",
    ]


def test_four_parameters_are_never_folded():
    assert ops(Scaled("attributes", [4, 1, 4, 1]), torch.rand(4, 4), **LONE)["w0"] == "Parameter"


def test_circles_are_never_folded_and_keep_their_op_type():
    message = tbscope.to_graph_def(tbscope.trace(Scaled("list", [4, 1] * 3), torch.rand(4, 4)))
    assert {node.op for node in message.node if node.name.startswith("w/")} == {"ParameterConst"}


@pytest.mark.parametrize("apart", [False, True])
def test_calls_of_modules_that_nobody_registers_are_folded_only_if_they_are_alike(apart):
    class Scale(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def extra_repr(self):
            return f"factor={self.factor}"

        def forward(self, x):
            return x * self.factor

    def scaled(x):
        for factor in range(1, 8):
            x = Scale(factor if apart else 2)(x)
        return x

    graph = tbscope.trace(scaled, torch.rand(3))
    assert tbscope.lint(tbscope.to_graph_def(graph, level="module")) == []
    found = ops(scaled, torch.rand(3), level="module", style="torch")
    kinds = {found[f"scaled/Scale.{number}"] for number in range(1, 7)}
    assert len(kinds) == (6 if apart else 1)


def test_what_keeps_apart_is_read_back_as_what_it_is():
    def add(x1, x2, x3, x4, x5):
        return x1 + x2 + x3 + x4 + x5

    def back(model, *inputs):
        return tbscope.from_graph_def(tbscope.to_graph_def(tbscope.trace(model, inputs), **LONE))

    read = back(add, *(torch.rand(1) for _ in range(5)))
    assert [node.name for node in read.inputs] == [f"x{number}" for number in range(1, 6)]
    kinds = [node.kind for node in back(Scaled("attributes", [4, 1] * 3), torch.rand(4, 4)).nodes]
    assert kinds.count("parameter") == 6
