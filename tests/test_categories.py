"""Labels by which nodes are coloured."""

from collections import defaultdict

import pytest
import torch
from build import GraphBuilder
from torch import nn

import tbscope
from tbscope.drawing.categories import label_nodes
from tbscope.passes.collapse_leaves import collapse_leaves


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
        ("class", {"1": "Linear", "2": "ReLU", "3": "Linear", "4": "double"}),
        ("trainable", {"1": "frozen", "3": "trainable", "head.bias": "trainable"}),
        ("rank", {"4": "rank 0"}),
        ({"body": "stage 1", "Net/Linear[head]": "stage 2"}, {"2": "stage 1", "3": "stage 2"}),
        ({"": "all", "body": "some", "1": "one"}, {"1": "one", "2": "some", "4": "all"}),
        (lambda node: "op" if node.kind == "op" else None, {"4": "op"}),
    ],
)
def test_nodes_are_labelled_by(color_by, expected):
    found = labels(color_by)
    assert {name: found.get(name, "") for name in expected} == expected


def clusters(**options):
    """Give what the page colours each node of a drawing by, under "XLA cluster"."""
    graph = tbscope.to_graph_def(tbscope.trace(Net(), torch.ones(1, 2)), **options)
    told = {node.name: node.attr["_XlaCluster"].s.decode() for node in graph.node}
    return {name: label for name, label in told.items() if label}


def test_every_drawing_can_be_coloured_by_the_kinds_of_its_operations():
    assert clusters() == {"body/0": "linear", "body/1": "activation", "head": "linear"}


@pytest.mark.parametrize("nothing", [None, "none"])
def test_a_drawing_has_no_second_colours_if_none_are_wanted(nothing):
    assert clusters(color_by=nothing) == {}


def test_what_reads_no_parameter_is_neither_trainable_nor_frozen():
    assert not {"2", "4"} & set(labels("trainable"))


@pytest.mark.parametrize(
    ("color_by", "text"),
    [
        (
            "clas",
            "nodes cannot be coloured by 'clas'\n"
            "  why: color_by is one of 'class', 'kind', 'trainable', 'rank', 'stage', 'mesh', "
            "'difference', 'none', a mapping, or a function\n"
            "  fix: color_by='class'",
        ),
        (
            {"bodi": "a"},
            "color_by names nothing in the graph of Net, such as 'bodi'\n"
            "  why: its keys are names of nodes, or qualified names or paths of scopes\n"
            "  fix: did you mean 'body', 'body.1', 'body.0'?",
        ),
        (
            lambda node: 3,
            "the color_by function returned 3 for the node 'x'\n"
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


def test_the_rank_of_what_gives_nothing_is_that_of_what_it_reads():
    build = GraphBuilder("Net")
    x = build.input("x", (2,), device="rank 3 cuda:0")
    save = build.node("save", x)
    assert label_nodes(build.graph, "rank")[save] == "rank 3"


def test_a_run_of_torch_distributed_tells_its_rank(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    assert tbscope.trace(nn.ReLU(), torch.ones(1)).rank == 2


KINDS = {
    "convolution": (nn.Conv1d(1, 1, 1), (1, 1, 4)),
    "norm": (nn.BatchNorm1d(2), (3, 2)),
    "activation": (nn.GELU(), (2,)),
    "pooling": (nn.MaxPool2d(2), (1, 1, 4, 4)),
    "linear": (nn.Linear(2, 2), (2, 2)),
    "recurrent": (nn.GRU(2, 2), (3, 1, 2)),
    "dropout": (nn.Dropout(), (2,)),
    "shape": (nn.ZeroPad2d(1), (1, 1, 2, 2)),
    "attention": (lambda x: nn.functional.scaled_dot_product_attention(x, x, x), (1, 2, 3, 4)),
    "embedding": (lambda x: nn.functional.embedding(x.long(), x[None]), (3,)),
    "arithmetic": (lambda x: x * 2, (2,)),
    "reduction": (lambda x: x.mean(), (2,)),
    "loss": (lambda x: nn.functional.mse_loss(x, x + 1), (2,)),
    "other": (torch.linalg.det, (2, 2)),
}


def kinds_of(model, shape):
    """Give the kind of each operation of a model, as it is drawn."""
    graph = tbscope.trace(model, torch.rand(shape))
    drawn = tbscope.to_graph_def(graph, color_by="kind", templates=False)
    return {
        node.attr["_XlaCluster"].s.decode() for node in drawn.node if "_XlaCluster" in node.attr
    }


@pytest.mark.parametrize("kind", KINDS)
def test_an_operation_is_of_the_kind_of_its_kernels(kind):
    assert kind in kinds_of(*KINDS[kind])


def test_a_gradient_is_of_the_kind_of_the_operation_that_it_differentiates():
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh())
    with tbscope.record(net) as recording:
        net(torch.ones(2, 3)).exp().sum().backward()
    kinds = defaultdict(set)
    for node, kind in label_nodes(recording.graph, "kind").items():
        if node.phase == "backward":
            kinds[str(node.scope).rpartition("/")[2]].add(kind)
    # What begins the pass, and is the gradient of nothing, is of its own.
    assert kinds.pop("gradients") == {"reduction", "arithmetic", "other"}
    assert kinds == {"Linear[0]": {"linear"}, "LayerNorm[1]": {"norm"}, "Tanh[2]": {"activation"}}


def test_a_gradient_that_is_added_to_another_is_of_its_own_kind():
    net = nn.Linear(3, 4)
    with tbscope.record(net) as recording:
        net.weight.grad = torch.zeros(4, 3).exp()
        net(torch.ones(2, 3)).sum().backward()
    kinds = {node.op: kind for node, kind in label_nodes(recording.graph, "kind").items()}
    # The first one is what an operation of the script gave.
    assert (kinds["weight_grad"], kinds["exp"]) == ("linear", "arithmetic")


@pytest.mark.parametrize("kind", ["norm", "activation", "pooling", "linear", "dropout"])
def test_a_module_of_one_kind_has_no_other_one(kind):
    assert kinds_of(*KINDS[kind]) == {kind}


def test_a_module_of_any_class_has_the_kind_of_what_runs_in_it():
    class ConvNorm(nn.Module):
        def forward(self, x):
            return x.relu()

    assert kinds_of(ConvNorm(), (2,)) == {"activation"}


def test_what_reads_parameters_is_trainable_frozen_or_partly_frozen():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2), nn.ReLU())
    model[1].requires_grad_(requires_grad=False)
    model[2].bias.requires_grad_(requires_grad=False)
    graph = tbscope.trace(model, torch.rand(1, 2))
    found = {
        node.scope.qualified_name: label
        for node, label in label_nodes(graph, "trainable").items()
        if node.kind == "op"
    }
    assert found == {"0": "trainable", "1": "frozen", "2": "partly frozen"}


def test_a_function_sees_the_nodes_of_the_graph_themselves():
    graph = tbscope.trace(Net(), torch.ones(1, 2))
    seen = []
    tbscope.to_graph_def(graph, color_by=seen.append)
    assert seen
    assert all(any(node is one for one in graph.nodes) for node in seen)
    # So a label may be looked up by the node.
    # (The last operation of all is a cast, which is not drawn.)
    last = {[node for node in graph.nodes if node.op == "linear"][-1]: "last"}
    drawn = tbscope.to_graph_def(graph, color_by=last.get)
    labels = [node.attr["_XlaCluster"].s for node in drawn.node if "_XlaCluster" in node.attr]
    assert labels == [b"last"]
