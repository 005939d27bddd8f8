"""Stages: a run is cut so that the heaviest part is as light as can be."""

from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tbscope
from tbscope.drawing.stages import cut_evenly


def parts(weights, places):
    ends = [0, *places, len(weights)]
    return [sum(weights[start:end]) for start, end in pairwise(ends)]


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 5))
def test_no_other_cut_has_a_lighter_heaviest_part(weights, count):
    places = cut_evenly(weights, count)
    assert places == sorted(places)
    assert len(places) == count - 1
    ways = combinations([*range(len(weights) + 1)] * (count - 1), count - 1)
    least = min(max(parts(weights, sorted(way))) for way in ways)
    assert max(parts(weights, places)) == least


@pytest.mark.parametrize(
    ("weights", "count", "expected"),
    [
        ([1, 1, 1, 1], 2, [2, 2]),
        # What is left is shared evenly, and no part is empty.
        ([9, 1, 1, 1, 1], 3, [9, 2, 2]),
        ([3], 2, [0, 3]),
    ],
)
def test_parts_are_even_and_not_empty(weights, count, expected):
    assert parts(weights, cut_evenly(weights, count)) == expected


def test_what_weighs_nothing_stays_with_what_ran_before():
    assert cut_evenly([5, 0, 0, 5, 0], 2) == [3]


class Net(nn.Module):
    """Four layers of one weight, with an activation behind each."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x


def labels(model, color_by, *, name="x", **drawing):
    """Give the label of each node that has one, by its name in the GraphDef."""
    graph = tbscope.trace(model, torch.rand(2, 4), profile="profile" in drawing)
    drawing.pop("profile", None)
    message = tbscope.to_graph_def(graph, color_by=color_by, templates=False, **drawing)
    found = {node.name: node.attr["_XlaCluster"].s.decode() for node in message.node}
    return {name: label for name, label in found.items() if label}


def test_operations_are_coloured_by_the_stage_in_which_they_run():
    found = labels(Net(), tbscope.stages(2))
    first, second = "stage 1 (50 %)", "stage 2 (50 %)"
    assert [found[f"layers/{at}"] for at in range(4)] == [first, first, second, second]
    assert found["layers/relu.2nd"] == first
    assert found["relu"] == second
    assert found["layers/1/weight"] == first
    assert "x" not in found


def test_kernels_and_whole_modules_have_the_stage_of_what_ran():
    model = nn.Sequential(nn.Linear(4, 4), nn.TransformerEncoderLayer(4, 2, 8), nn.Linear(4, 4))
    graph = tbscope.trace(model, torch.rand(2, 4), kernels=True)
    for level in ("module", "op", "aten"):
        drawn = tbscope.to_graph_def(
            graph, color_by=tbscope.stages(3, by="bytes"), level=level, templates=False
        )
        bare = [
            node.name
            for node in drawn.node
            if "kernels" in "".join(node.attr) and not node.attr["_XlaCluster"].s
        ]
        assert not bare
        assert len({node.attr["_XlaCluster"].s for node in drawn.node} - {b""}) == 3


def test_a_module_that_calls_no_other_is_never_cut():
    class Leaf(nn.Module):
        def forward(self, x):
            return (x @ x.T) @ (x @ x.T) @ x

    model = nn.Sequential(Leaf(), nn.Linear(4, 4))
    found = labels(model, tbscope.stages(2), root=False)
    assert len({label for name, label in found.items() if name.startswith("0/")}) == 1


def test_a_parameter_weighs_where_it_is_read_first():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4, bias=False)

        def forward(self, x):
            return self.fc(self.fc(self.fc(x)))

    found = labels(Tied(), tbscope.stages(2, by="bytes"))
    # 64 bytes of the weight, and 32 of each result.
    assert found["fc"] == "stage 1 (60 %)"
    assert found["fc.1"] == found["fc.2"] == "stage 2 (40 %)"


def test_times_cut_where_they_were_measured_and_only_there():
    graph = tbscope.trace(Net(), torch.rand(2, 4), profile=1)
    message = tbscope.to_graph_def(graph, color_by=tbscope.stages(2, by="time"))
    found = {node.attr["_XlaCluster"].s[:7] for node in message.node} - {b""}
    assert found == {b"stage 1", b"stage 2"}
    with pytest.raises(tbscope.ArgumentError) as error:
        labels(Net(), tbscope.stages(2, by="time"))
    assert str(error.value) == (
        "the graph of Net cannot be cut into stages by 'time'\n"
        "  why: it has no times\n"
        "  fix: graph = tbscope.trace(model, input, profile=True)"
    )


def test_what_has_no_flops_cannot_be_cut_by_them():
    with pytest.raises(tbscope.ArgumentError) as error:
        labels(nn.ReLU(), tbscope.stages(2))
    assert str(error.value) == (
        "the graph of ReLU cannot be cut into stages by 'flops'\n"
        "  why: nothing in it has flops\n"
        "  fix: stages(4, by='bytes')"
    )
    assert labels(nn.ReLU(), tbscope.stages(2, by="bytes"))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            (0,),
            "a run cannot be cut into 0 stages\n"
            "  why: the number of stages is an int, from 1 to 1,000\n"
            "  fix: stages(4)",
        ),
        (
            (2, "flop"),
            "stages cannot be balanced by 'flop'\n"
            "  why: what weighs is one of 'flops', 'bytes', 'time'\n"
            "  fix: stages(4, by='flops')",
        ),
    ],
)
def test_what_is_no_number_of_stages_and_no_weight_is_an_error(given, text):
    with pytest.raises(tbscope.ArgumentError) as error:
        tbscope.stages(*given)
    assert str(error.value) == text
    assert tbscope.stages(1, "flops") == tbscope.stages(1)
    assert tbscope.stages(1000).count == 1000
    with pytest.raises(tbscope.ArgumentError):
        tbscope.stages(1001)
