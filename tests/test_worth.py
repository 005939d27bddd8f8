"""Worth: the order of a card, and how it tells large numbers."""

import pytest
import torch
from card_facts import facts
from torch import nn

import tbscope
from tbscope.analysis.units import number_by_worth
from tbscope.graphdef.attr_bytes import key_by_worth


class Net(nn.Module):
    """A convolution that stands as one node, and a box."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 3)
        self.head = nn.Sequential(nn.Linear(64, 300), nn.ReLU())

    def forward(self, x):
        x = self.conv(x).sum((2, 3), dtype=torch.float32)
        return self.head(torch.cat([x]) + torch.ones(64, device="cpu"))


def cards(**options):
    """Give the attributes of each node, in the order in which the page lists them."""
    graph_def = tbscope.to_graph_def(tbscope.trace(Net(), torch.rand(1, 3, 64, 64)), **options)
    return {node.name: sorted(node.attr, reverse=True) for node in graph_def.node}, graph_def


def test_a_card_tells_what_a_module_is_before_what_it_costs_and_that_before_where_it_is():
    # Two keys are the page's own: of the colour under "XLA cluster" nobody can choose the place.
    given = {"_output_shapes", "_XlaCluster"}
    conv = [key.strip() for key in cards()[0]["conv"] if key not in given]
    first = {"class", "dtype", "in_channels", "out_channels", "kernel_size", "stride", "padding"}
    first |= {"groups", "dilation"}
    assert set(conv[: len(first)]) == first
    rest = ["parameters", "parameter_count", "flops", "bytes"]
    assert conv[len(first) :][: len(rest)] == rest
    last = {"training", "source", "scope", "operation", "module", "kernels", "defined"}
    assert set(conv[len(first) + len(rest) :]) == last


def test_a_box_tells_arguments_and_results_before_what_it_costs():
    box = [key.strip() for key in cards()[0]["head/Sequential"]]
    assert box[:3] == ["results", "class", "arguments"]
    assert box[3:6] == ["parameter_count", "flops", "bytes"]
    assert {"training", "scope", "module", "defined"} == set(box[6:])


def test_what_scripts_read_keeps_its_name():
    for name in ("class", "kernel_size", "results", "arguments", "dtype", "dim", "value"):
        assert key_by_worth(name) == name
    assert key_by_worth("scope").lstrip(" ") == "scope" != key_by_worth("scope")


@pytest.mark.parametrize(
    ("name", "number", "told"),
    [
        ("flops", 4_338_130_944, "4.34 G (4,338,130,944)"),
        ("flops", 10_000, "10.0 k (10,000)"),
        ("flops", 9_999, 9_999),
        ("parameter_count", 25_557_032, "25.6 M (25,557,032)"),
        ("parameter_count", 7_000_000_000, "7.00 B (7,000,000,000)"),
        ("bytes", 102_228_128, "97.5 MiB (102,228,128)"),
        ("bytes", 0, 0),
        ("out_features", 50_257, 50_257),
    ],
)
def test_a_large_count_is_told_so_that_it_can_be_read_with_the_exact_one(name, number, told):
    assert number_by_worth(name, number) == told


def test_a_result_tells_its_type_and_no_argument_does_again():
    _, graph_def = cards(keep=["*"])
    told = {node.name: facts(node) for node in graph_def.node}
    assert "dtype_" not in told["sum"]
    assert "device" not in told["ones"]


def test_how_many_parameters_are_learnt_is_told_where_it_is_not_all():
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.ReLU())
    net[0].weight.requires_grad_(False)
    drawn = tbscope.to_graph_def(tbscope.trace(net, torch.rand(1, 2))).node
    keys = {node.name: {key.strip() for key in node.attr} for node in drawn}
    assert "trainable_parameter_count" in keys["0"]
    assert "trainable_parameter_count" not in keys["1"]


def test_a_number_of_the_same_value_is_told_in_the_form_of_its_own_name():
    class Wide(nn.Module):
        def forward(self, x):
            return x.expand(76_800)

    drawn = tbscope.to_graph_def(tbscope.trace(Wide(), torch.rand(1)), keep=["*"]).node
    assert any(value.i == 76_800 for node in drawn for value in node.attr.values())
