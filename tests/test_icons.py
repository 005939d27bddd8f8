"""Icons beside the nodes of leaf modules tell their sizes."""

import pytest
import torch
from torch import nn

import tbscope
from tbscope.drawing.icons import sizes_text
from tests.gallery_models import SIGHTS


class Wrapped(nn.Module):
    """A module that is alone in its box, as a list of dropouts often is."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Dropout(0.25)

    def forward(self, x):
        return self.inner(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, (3, 5), stride=2)
        self.relu = nn.ReLU()
        self.drop = nn.ModuleList([Wrapped()])
        self.norm = nn.LayerNorm(6)

    def forward(self, x):
        return self.norm(self.drop[0](self.relu(self.conv(x)))).relu()


def drawn(**options):
    return tbscope.to_graph_def(tbscope.trace(Net(), torch.ones(1, 3, 8, 15)), **options)


def icons(message):
    return {
        node.name: list(node.input) for node in message.node if node.op == "HyperparametersSummary"
    }


@pytest.mark.parametrize(
    ("hyperparameters", "text"),
    [
        (
            {"in_channels": 3, "out_channels": 64, "kernel_size": (7, 7), "stride": (2, 2)},
            "3-64_k7_s2",
        ),
        ({"in_features": 128, "out_features": 1, "bias": True}, "128-1"),
        ({"kernel_size": (3, 5), "padding": "same", "stride": (1, 1)}, "k3x5"),
        ({"p": 0.1, "inplace": False}, "p0.1"),
        ({"normalized_shape": (768,), "eps": 1e-5}, "n768"),
        ({"output_size": [None, 7]}, ""),
        ({"start_dim": 1, "end_dim": -1}, ""),
        ({"num_embeddings": 1_000_000, "embedding_dim": 64}, "n1000000_e64"),
        ({"threshold": 1e30}, ""),
        ({"in_channels": 65_536, "out_channels": 65_536, "kernel_size": 3}, "65536-65536_k3"),
        ({"in_channels": 65_536, "out_channels": 65_536, "kernel_size": 33}, "65536-65536"),
    ],
)
def test_sizes_are_told_in_few_characters(hyperparameters, text):
    assert sizes_text(hyperparameters) == text


def test_a_leaf_module_has_an_icon_unless_it_is_alone_in_its_box():
    assert icons(drawn(icons=True)) == {"conv/3-8_k3x5_s2": ["conv"], "norm/n6": ["norm"]}
    assert icons(drawn()) == {}


class Odd(nn.Module):
    """A module with a parameter that is called as its icon would be."""

    def __init__(self):
        super().__init__()
        self.n6 = nn.Parameter(torch.ones(6, 6))

    def forward(self, x):
        return x @ self.n6

    def extra_repr(self):
        return "n=6"


def test_no_icon_takes_the_name_of_a_parameter():
    model = nn.Sequential(Odd(), nn.Linear(6, 2))
    message = tbscope.to_graph_def(tbscope.trace(model, torch.ones(1, 6)), icons=True)
    assert icons(message) == {"1/6-2": ["1"]}


def test_icons_are_all_that_is_added():
    with_icons = drawn(icons=True)
    for node in [node for node in with_icons.node if node.op == "HyperparametersSummary"]:
        with_icons.node.remove(node)
    assert with_icons == drawn()


@pytest.mark.parametrize("options", [{"functions": True}, {"leaves": "box"}, {"style": "torch"}])
def test_drawings_of_any_kind_with_icons_break_no_rule(options):
    message = drawn(icons=True, **options)
    assert tbscope.lint(message) == []
    assert bool(icons(message)) == (options.get("leaves") != "box")


@pytest.mark.parametrize("sight", SIGHTS, ids=lambda sight: sight.name)
def test_models_of_the_gallery_with_icons_break_no_rule(sight):
    torch.manual_seed(0)
    model, given, _ = sight.make()
    message = tbscope.to_graph_def(tbscope.trace(model, given), icons=True)
    assert icons(message)
    assert tbscope.lint(message) == []
