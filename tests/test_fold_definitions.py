"""Folding by definitions: what the summary prints as one line are uses of one definition."""

from itertools import pairwise

import pytest
import torch
from real_graphs import KINDS, real_graph
from test_functions import Block, Stack
from torch import nn

import tbscope
from tbscope.analysis.collapse_repeats import equal_parts, lines_of
from tbscope.analysis.costs import Costs
from tbscope.analysis.summary import part_row
from tbscope.ir.module_tree import ModulePart, ModuleTree, walk

X = torch.ones(2, 4)


def cells(graph, depth=None):
    """Give name, class and output of the lines of numbered modules."""
    lines = str(graph.summary(depth=depth, columns=["class", "output", "flops"])).splitlines()
    rows = [line.split("  ") for line in lines]
    told = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    return [row for row in told if row and row[0][0].isdecimal()]


def drop(rate):
    return nn.Sequential(nn.ReLU(), nn.Dropout(rate))


def rows_below(root):
    return {part: part_row(part, Costs(), depth=0, all_parameters=0) for part in walk(root)}


@pytest.mark.parametrize("name", KINDS)
def test_lines_of_real_models_stand_for_uses_of_one_definition(name):
    graph = real_graph(name)
    root = ModuleTree(graph).top
    rows = rows_below(root)
    uses = graph.functions().uses
    used = {scope: use.definition for scope, use in uses.items()}
    lines = list(lines_of(root, None, equal_parts(root, rows, lambda: uses)))
    line_of = {part: at for at, line in enumerate(lines) for part in line.parts}
    for line in lines:
        assert len({tuple(used.get(scope) for scope in part.scopes) for part in line.parts}) == 1
    for part in rows:
        for first, second in pairwise(part.children):
            told = [
                [used[scope] for scope in one.scopes if scope in used] for one in (first, second)
            ]
            if [] not in told and _numbered(first) + 1 == _numbered(second):
                assert (line_of[first] == line_of[second]) == (told[0] == told[1]), first.name


def _numbered(part):
    return int(part.attribute) if part.attribute and part.attribute.isdecimal() else -9


@pytest.mark.parametrize(
    ("layers", "lines"),
    [
        ([drop(0.1), drop(0.1)], ["0-1"]),
        ([drop(0.1), drop(0.2)], ["0", "1"]),
        ([drop(0.1), nn.Sequential(nn.Dropout(0.1), nn.ReLU())], ["0", "1"]),
        ([drop(0.1), drop(0.1).eval()], ["0", "1"]),
        ([nn.Linear(4, 4), nn.Linear(4, 4)], ["0-1"]),
        ([nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)], ["0", "1"]),
        ([nn.Linear(4, 4), nn.Linear(4, 4, bias=False)], ["0", "1"]),
        ([Block(), Block(), Block(3)], ["0-1", "2"]),
    ],
)
def test_layers_are_one_line_where_they_share_a_definition(layers, lines):
    class Net(Stack):
        def forward(self, x):
            return [layer(x[:, : getattr(layer, "width", 4)]) for layer in self.layers]

    layers[-1].width = 3 if lines[-1] == "2" else 4
    graph = tbscope.trace(Net(*layers), X, training=None)
    assert [row[0] for row in cells(graph, depth=2)] == lines


def test_layers_that_make_modules_of_their_own_are_one_line():
    class Makes(nn.Module):
        def __init__(self, *kinds):
            super().__init__()
            self.kinds = kinds

        def forward(self, x):
            return [kind()(x) for kind in self.kinds][-1]

    relu, tanh = Makes(nn.ReLU, nn.Tanh), Makes(nn.Tanh, nn.ReLU)
    assert [row[0] for row in cells(tbscope.trace(Stack(relu, Makes(nn.ReLU, nn.Tanh)), X))] == [
        "0-1"
    ]
    assert [row[0] for row in cells(tbscope.trace(Stack(relu, tanh), X))] == ["0", "1"]


def test_parameters_of_other_sizes_and_types_are_arguments_and_fold():
    class Scale(nn.Module):
        def __init__(self, width, dtype):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(width, dtype=dtype))

        def forward(self, x):
            return x * self.scale

    model = Stack(Scale(4, torch.float32), Scale(1, torch.float64))
    (line,) = cells(tbscope.trace(model, X))
    assert line[:2] == ["0-1", "2 x Scale"]
    assert tbscope.trace(model, X).summary().totals["parameters"] == 5


def test_a_line_of_other_shapes_says_so():
    narrow, same = (
        tbscope.trace(Stack(*layers), X)
        for layers in ([nn.AvgPool1d(2), nn.AvgPool1d(2)], [nn.ReLU(), nn.ReLU()])
    )
    assert cells(narrow)[0][:3] == ["0-1", "2 x AvgPool1d", "(2, 2) ..."]
    assert cells(same)[0][:3] == ["0-1", "2 x ReLU", "(2, 4)"]


def test_definitions_are_asked_for_only_where_parts_are_numbered_on():
    def definitions():
        raise AssertionError("nothing is folded here")

    root = ModulePart("Net", kind="module")
    for attribute in ("0", "2", "a"):
        ModulePart("Linear", parent=root, kind="module", attribute=attribute)
    rows = rows_below(root)
    assert equal_parts(root, rows, definitions) == {}
    root.children[1].attribute = "1"
    with pytest.raises(AssertionError):
        equal_parts(root, rows, definitions)
