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


def ops(model, *inputs):
    """Give the op type of each node that is no circle, by name."""
    message = tbscope.to_graph_def(tbscope.trace(model, inputs))
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


def test_the_calls_of_one_module_in_a_loop_may_be_folded():
    found = ops(Calls(times=7, cell=nn.Linear(2, 2)), torch.ones(1, 2))
    assert {found[f"cell.{number}"] for number in range(1, 7)} == {"Linear"}


def test_inputs_that_the_author_numbered_keep_apart():
    def add(x1, x2, x3, x4, x5):
        return x1 + x2 + x3 + x4 + x5

    found = ops(add, *(torch.ones(1) for _ in range(5)))
    assert [found[f"x{number}"] for number in (1, 5)] == ["Input[x1]", "Input[x5]"]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (lambda x: tuple(x + n for n in range(5)), {"Output[out.0]", "Output[out.4]"}),
        (lambda x: {"states": [x + n for n in range(5)]}, {"Output"}),
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
