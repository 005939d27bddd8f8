"""Labels by which nodes are coloured."""

import pytest
import torch
from torch import nn

import tbscope
from tbscope.drawing.categories import label_nodes
from tbscope.passes.leaves import collapse_leaves


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.head = nn.Linear(2, 1)
        self.body.requires_grad_(False)

    def forward(self, x):
        return self.head(self.body(x)).double()


def labels(color_by):
    """Give the label of each node that has one, by its op."""
    graph = tbscope.trace(Net(), torch.ones(1, 2)).copy()
    collapse_leaves(graph)
    return {node.name: label for node, label in label_nodes(graph, color_by).items()}


@pytest.mark.parametrize(
    ("color_by", "expected"),
    [
        ("class", {"1": "Linear", "2": "ReLU", "3": "Linear", "4": "Net"}),
        ("dtype", {"x": "float32", "3": "float32", "4": "float64"}),
        ("device", {"x": "cpu", "4": "cpu"}),
        ("trainable", {"1": "frozen", "3": "trainable", "head.bias": "trainable"}),
        ("source file", {"4": "test_categories.py"}),
        ("rank", {"4": "rank 0"}),
        ({"body": "stage 1", "Net/Linear[head]": "stage 2"}, {"2": "stage 1", "3": "stage 2"}),
        ({"": "all", "body": "some", "1": "one"}, {"1": "one", "2": "some", "4": "all"}),
        (lambda node: "op" if node.kind == "op" else None, {"4": "op"}),
    ],
)
def test_nodes_are_labelled_by(color_by, expected):
    found = labels(color_by)
    assert {name: found.get(name, "").rpartition("/")[2] for name in expected} == expected


def test_what_reads_no_parameter_is_neither_trainable_nor_frozen():
    assert not {"2", "4"} & set(labels("trainable"))


@pytest.mark.parametrize(
    ("color_by", "text"),
    [
        (
            "clas",
            "nodes cannot be coloured by 'clas'\n"
            "  why: color_by is one of 'class', 'dtype', 'trainable', 'device', 'source file', "
            "'rank', a mapping, or a function\n"
            "  fix: color_by='class'",
        ),
        (
            {"bodi": "a"},
            "color_by names nothing that the graph of Net holds, such as 'bodi'\n"
            "  why: its keys are names of nodes, or qualified names or paths of scopes\n"
            "  fix: did you mean 'body', 'body.1', 'body.0'?",
        ),
        (
            lambda node: 3,
            "the color_by function gave 3 for the node 'x'\n"
            "  why: a label is a str, or None for no colour; this is int\n"
            "  fix: give str(...) of it",
        ),
    ],
)
def test_what_nothing_can_be_coloured_by_is_an_error(color_by, text):
    with pytest.raises(tbscope.ArgumentError) as error:
        labels(color_by)
    assert str(error.value) == text


def test_the_rank_is_that_of_the_run():
    graph = tbscope.trace(Net(), torch.ones(1, 2))
    assert graph.rank == 0
    graph.rank = 3
    assert set(label_nodes(graph.copy(), "rank").values()) == {"rank 3"}


def test_a_run_of_torch_distributed_tells_its_rank(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 2)
    assert tbscope.trace(nn.ReLU(), torch.ones(1)).rank == 2
