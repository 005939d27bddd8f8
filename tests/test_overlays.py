"""Numbers of one's own, and those that tbscope knows, become figures of a graph."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from card_facts import facts
from torch import nn
from torch.nn import functional

import tbscope
from tbscope.drawing.figures import to_figure
from tbscope.ir.graph import Node
from tbscope.overlays.overlay import BUILT_IN, make_overlay
from tbscope.pipeline import draw


class Tied(nn.Module):
    """Shares a weight, calls a module twice, reads one without a call, and leaves one out."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        self.head.weight = self.embed.weight
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.read, self.unused = nn.Linear(4, 4, bias=False), nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(4)
        self.norm.spare = nn.Linear(2, 2, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        x = self.blocks[1](self.blocks[0](self.blocks[0](x)))
        with tbscope.scope("tail"):
            x = functional.linear(self.norm(x), self.read.weight)
        return self.head(x)


SIZES = {"weight": 4 * 4, "bias": 4}


@pytest.fixture(scope="module")
def model():
    return Tied().eval()


@pytest.fixture(scope="module")
def graph(model):
    return tbscope.trace(model, torch.arange(3))


def numbers(graph, values, tag="own"):
    """Give the numbers of an overlay by the names of nodes and the paths of scopes."""
    (figure,) = make_overlay(graph, tag, values)
    assert figure.name == tag
    return {
        target.name if isinstance(target, Node) else target.path: number
        for target, number in figure.numbers.items()
    }


def total(graph, name):
    return sum(make_overlay(graph, name)[0].numbers.values())


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("embed.weight", "embed.weight"),
        ("head.weight", "embed.weight"),
        ("read.weight", "read.weight"),
        ("norm.running_mean", "norm.running_mean"),
        ("unused.weight", "Tied"),
        ("norm.spare.weight", "Tied/tail/BatchNorm1d[norm]"),
        ("ids", "ids"),
        ("", "Tied"),
        ("blocks.0", "Tied/ModuleList[blocks]/Linear[0]"),
        ("blocks", "Tied/ModuleList[blocks]"),
        ("Tied/ModuleList[blocks]/Linear[0].1", "Tied/ModuleList[blocks]/Linear[0].1"),
        ("Tied/tail", "Tied/tail"),
    ],
)
def test_a_name_means_what_its_user_knows_by_it(graph, name, place):
    assert numbers(graph, {name: 2}) == {place: 2}


def test_nodes_calls_and_scopes_are_as_good_as_their_names(graph):
    call = graph.find_calls("blocks.0")[1]
    node = next(node for node in graph.nodes if node.op == "embedding")
    given = {node: 1, call: 2, graph.calls[0].scope: 3}
    assert numbers(graph, given) == {node.name: 1, call.scope.path: 2, "Tied": 3}


def test_numbers_of_two_names_of_one_thing_are_added(graph):
    assert numbers(graph, {"embed.weight": 1, "head.weight": 2.5}) == {"embed.weight": 3.5}


def test_a_function_is_asked_for_every_node(graph):
    found = numbers(graph, lambda node: len(node.inputs) if node.op == "linear" else None)
    assert sorted(found.values()) == [2, 2, 3, 3, 3]


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (3, 3),
        (True, 1),
        (0.25, 0.25),
        (2.0, 2),
        (2**70, 2**70),
        (Fraction(1, 4), 0.25),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.array(7), 7),
        (torch.tensor(0.5), 0.5),
        (torch.tensor(2.0, dtype=torch.bfloat16, requires_grad=True), 2),
    ],
)
def test_a_number_is_anything_that_is_one(graph, value, number):
    (found,) = numbers(graph, {"embed": value}).values()
    assert (found, type(found)) == (number, type(number))


FINITE = "give a finite number from 0 on (abs(x), x - smallest), or None for no number"


@pytest.mark.parametrize(
    ("value", "text", "why"),
    [
        (math.nan, "nan", "the page cannot show what is not finite"),
        (torch.tensor(math.inf), "tensor(inf)", "the page cannot show what is not finite"),
        (10**400, f"1{'0' * 59}...", "the page cannot show what is not finite"),
        (-0.5, "-0.5", "the page cannot show numbers below 0"),
        ("3", "'3'", "a number is an int, a float, or a tensor without dimensions"),
        (2j, "2j", "a number is an int, a float, or a tensor without dimensions"),
        (
            torch.zeros(2),
            "tensor([0., 0.])",
            "a number is an int, a float, or a tensor without dimensions",
        ),
        (
            torch.zeros((), device="meta"),
            "tensor(..., device='meta', size=())",
            "it holds no number: RuntimeError: Tensor.item() cannot be called on meta tensors",
        ),
        (
            [0] * 99,
            f"{str([0] * 99)[:60]}...",
            "a number is an int, a float, or a tensor without dimensions",
        ),
    ],
)
def test_what_is_no_number_of_the_page_is_an_error(graph, value, text, why):
    with pytest.raises(tbscope.ArgumentError) as error:
        make_overlay(graph, "norm", {"embed.weight": value})
    assert str(error.value) == (
        f"the overlay 'norm' has {text} for 'embed.weight'\n  why: {why}\n  fix: {FINITE}"
    )


def test_a_number_that_a_function_gives_wrong_is_told_with_its_node(graph):
    with pytest.raises(tbscope.ArgumentError) as error:
        make_overlay(graph, "norm", lambda node: -1)
    assert str(error.value).startswith("the overlay 'norm' has -1 for %ids\n")


def test_a_name_that_the_graph_does_not_hold_is_an_error_with_near_ones(graph):
    with pytest.raises(tbscope.NotFoundError) as error:
        make_overlay(graph, "norm", {"embed.wieght": 1})
    assert str(error.value) == (
        "the graph of Tied has nothing named 'embed.wieght'\n"
        "  why: no call, node or scope has that name in this run\n"
        "  fix: did you mean 'embed.weight', 'read.weight', 'norm.weight'?"
    )


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            {},
            "the overlay 'norm' has no number\n"
            "  why: its values are empty, or None for every node\n"
            "  fix: give a number for at least one node",
        ),
        (
            None,
            "no overlay 'norm' is built in\n"
            f"  why: those are {', '.join(BUILT_IN)}\n"
            "  fix: give values: a mapping from names to numbers, or a function of a node",
        ),
        (
            "flop",
            "no overlay 'flop' is built in\n"
            f"  why: those are {', '.join(BUILT_IN)}\n"
            "  fix: values='flops'",
        ),
        (
            "time",
            "the graph of Tied has no times\n"
            "  why: nothing was measured when it ran\n"
            "  fix: graph = tbscope.trace(model, input, profile=True)",
        ),
        (
            [1, 2],
            "the values of the overlay 'norm' are [1, 2]\n"
            "  why: values are a mapping from names to numbers, a function of a node, or the "
            f"name of a built-in: {', '.join(BUILT_IN)}\n"
            "  fix: values={'layer1.0.weight': 0.5}, or values=lambda node: len(node.kernels)",
        ),
        (
            {3: 1},
            "the overlay 'norm' has a number for 3\n"
            "  why: a number is given for a name, a Node, a Call or a Scope\n"
            "  fix: use nodes and calls of this graph: graph.find, graph.nodes, graph.calls",
        ),
    ],
)
def test_values_that_mean_nothing_are_an_error(graph, values, text):
    with pytest.raises(tbscope.ArgumentError) as error:
        make_overlay(graph, "norm", values)
    assert str(error.value) == text


def test_a_node_of_another_graph_is_an_error(graph, model):
    other = tbscope.trace(model, torch.arange(3)).calls[0]
    with pytest.raises(tbscope.ArgumentError) as error:
        make_overlay(graph, "norm", {other: 1})
    assert "why: it is none of the graph of Tied\n" in str(error.value)


def test_a_parameter_that_nothing_reads_counts_at_the_first_call_of_its_module():
    class Spare(nn.Module):
        def __init__(self):
            super().__init__()
            self.unread = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x * 2

    spare = Spare()
    graph = tbscope.trace(nn.Sequential(spare, nn.ReLU(), spare), torch.ones(1))
    assert len(graph.find_calls("0")) == 2
    first = graph.find_calls("0")[0].scope.path
    (figure,) = make_overlay(graph, "parameters")
    assert {target.path: number for target, number in figure.numbers.items()} == {first: 3}


def test_parameters_are_counted_once_and_all_of_them(graph, model):
    assert total(graph, "parameters") == sum(one.numel() for one in model.parameters())
    assert total(graph, "parameter_bytes") == 4 * total(graph, "parameters")


def test_a_parameter_counts_where_it_is_read_or_else_where_it_is_owned(graph):
    found = numbers(graph, "parameters", "parameters")
    assert found == {
        "embed.weight": 9 * 4,
        **{f"blocks.{at}.{name}": size for at in (0, 1) for name, size in SIZES.items()},
        "read.weight": 4 * 4,
        "norm.weight": 4,
        "norm.bias": 4,
        "Tied/tail/BatchNorm1d[norm]": 2 * 2,
        "Tied": 3 * 3 + 3,
    }


def test_what_is_built_in_counts_what_ran(graph, model):
    operations = [node for node in graph.nodes if node.kind == "op"]
    assert total(graph, "operations") == len(operations)
    assert total(graph, "calls") == len(graph.calls) == 7
    # Four square products and one of 9 columns, for three rows.
    assert total(graph, "flops") == 2 * 3 * (4 * 4 * 4 + 4 * 9)
    assert total(graph, "backward_flops") == 2 * total(graph, "flops")
    written = sum(node.allocated_bytes for node in operations)
    assert total(graph, "activation_bytes") == written > 0
    assert total(graph, "moved_bytes") > written


def test_times_and_memory_are_those_that_were_measured(model):
    graph = tbscope.trace(model, torch.arange(3), profile=1)
    time, size, peak = make_overlay(graph, "speed", "time")
    assert (time.name, size.name, peak.name) == ("duration_us", "allocated_bytes", "peak_bytes")
    assert math.isclose(sum(time.numbers.values()), graph.profile.operations_us)


@pytest.mark.parametrize(
    ("given", "as_bytes", "as_us", "unit"),
    [
        ([0], 1, 1, "1 B is 1, 1 ms is 1000"),
        ([3, 4], 1, 1000**2, "1 B is 1, 1 ms is 0.001"),
        ([60_000, 1], 1, 1, "1 B is 1, 1 ms is 1000"),
        ([4_000_000_000], 1, 1e-3, "1 B is 1, 1 ms is 1e+06"),
        ([2**60], 1024**-2, 1e-12, "1 B is 1.04858e+06, 1 ms is 1e+15"),
        ([2.5, 0.003], 1024**3, 1000**2, "1 GB is 1, 1 ms is 0.001"),
        ([0.003], 1024**4, 1000**3, "1 TB is 1, 1 ms is 1e-06"),
        ([1e-20], 1024**10, 1000**9, "1 B is 7.88861e-31, 1 ms is 1e-24"),
    ],
)
def test_numbers_are_scaled_so_that_the_page_tells_them_apart(given, as_bytes, as_us, unit):
    figure = to_figure("norm", dict(zip(map(Node, "abc", "xyz"), given, strict=False)))
    assert math.isclose(figure.as_bytes, as_bytes)
    assert math.isclose(figure.as_us, as_us)
    assert figure.unit == unit


@pytest.mark.parametrize("number", [5e-324, 1e-300, 1e300, 2**990])
def test_no_number_is_too_small_or_too_large(number):
    nodes = [Node(name, "x") for name in "ab"]
    figure = to_figure("norm", dict.fromkeys(nodes, number))
    assert 0 <= round(number * figure.as_bytes) < 2**63
    assert 0 <= round(2 * number * figure.as_us) <= 60e6


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("tag", ["flops", "backward_flops"])
def test_what_has_no_formula_has_no_number_in_an_overlay_of_flops(tag, kernels):
    model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Flatten())
    graph = tbscope.trace(model, torch.rand(2, 3), kernels=kernels)
    drawn = draw(graph, make_overlay(graph, tag), level="aten" if kernels else "op")
    told = {node.name: facts(node)[tag] for node in drawn.graph_def.node if tag in facts(node)}
    assert not [name for name in told if name == "1" or "gelu" in name]
    assert told["2"].i == 0
    assert max(value.i for value in told.values()) == 48


def test_a_built_in_overlay_of_nothing_is_an_error():
    graph = tbscope.trace(nn.GELU(), torch.rand(2))
    with pytest.raises(tbscope.ArgumentError) as error:
        make_overlay(graph, "flops")
    assert str(error.value) == (
        "the overlay 'flops' has no number\n"
        "  why: nothing in the graph of GELU has one\n"
        "  fix: graph.summary() prints the numbers of the graph"
    )
