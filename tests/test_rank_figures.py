"""What each rank has of the whole: its share of parameters, work, and bytes that move."""

import pytest
import torch
from build import GraphBuilder
from test_merge_ranks import Net, pipeline, plain
from torch import nn
from torch.distributed.fsdp import fully_shard

import tbscope
from tbscope.analysis.costs import local_flops
from tbscope.ir.graph import Module
from tbscope.ir.metadata import Sharding
from tbscope.overlays.overlay import make_overlay

HALF = ("Shard(0)",)


def sharded(rank, rows=4, layers=(0,)):
    """Give a net whose weights (2, 2) lie half on each of two ranks; biases are whole."""
    graph = Net(rank, layers=layers).graph()
    graph.world_size = 2
    graph.modules = []
    for call in graph.calls:
        call.parameters = tuple(
            one._replace(sharding=Sharding((1, 2), HALF, ("tp",)), size_bytes=16)
            if one.name == "weight"
            else one
            for one in call.parameters
        )
        name = call.scope.qualified_name
        graph.modules.append(Module(name, call.class_name, call.parameters))
    return graph


def figures(graph, *names):
    """Give these figures of each rank, in the order of the ranks."""
    parts = {rank: part for part in graph.parts for rank in part.ranks}
    return [tuple(parts[rank].figures.get(name, 0) for name in names) for rank in sorted(parts)]


def test_a_rank_has_its_share_where_a_model_is_sharded():
    both = tbscope.merge_ranks([sharded(0), sharded(1)])
    assert figures(both, "parameters", "parameter_bytes", "activation_bytes") == [(4, 16, 0)] * 2
    assert figures(both, "model_parameters") == [(6,)] * 2


def with_modules(graph):
    graph.modules = [
        Module(call.scope.qualified_name, call.class_name, call.parameters) for call in graph.calls
    ]
    return graph


def test_each_rank_has_all_where_nothing_is_sharded():
    graph = tbscope.merge_ranks([with_modules(plain(rank)) for rank in range(3)])
    assert figures(graph, "parameters", "model_parameters") == [(12, 12)] * 3


def test_stages_of_one_pipeline_hold_the_model_once_also_under_equal_names():
    graphs = [with_modules(graph) for graph in pipeline()]
    for graph in graphs:
        graph.modules = [one._replace(name="part") for one in graph.modules]
    merged = tbscope.merge_ranks(graphs)
    names = ("parameters", "parameter_bytes", "activation_bytes", "communication_bytes")
    assert figures(merged, *names)[0] == (6, 24, 0, 24)
    assert sum(count for (count,) in figures(merged, "parameters")) == 18
    assert sum(count for (count,) in figures(merged, "communication_bytes")) == 96
    assert figures(merged, "model_parameters")[0] == (18,)


@pytest.mark.parametrize(
    ("shardings", "flops"),
    [
        ((None, None, None), 48),
        # Columns of the weight, and so of the result.
        ((None, ((4, 1), "Shard(1)"), ((3, 1), "Shard(1)")), 24),
        # Rows of the result alone.
        ((None, None, ((3, 1), "Shard(1)")), 24),
        # What is summed up later.
        ((((3, 2), "Shard(1)"), ((2, 2), "Shard(0)"), ((3, 2), "Partial(sum)")), 24),
        ((((3, 4), "Replicate()"), None, ((3, 2), "Replicate()")), 48),
    ],
)
def test_a_rank_does_of_a_product_what_it_has_least_of(shardings, flops):
    build = GraphBuilder("Net")
    x, weight = build.input("x", (3, 4)), build.input("w", (4, 2))
    node = build.op("matmul", x, weight, shape=(3, 2), flops=48).producer
    for value, told in zip((x, weight, node.outputs[0]), shardings, strict=True):
        value.sharding = told and Sharding(told[0], (told[1],), ("tp",))
    assert local_flops(node) == flops


# -- overlays -------------------------------------------------------------------------------


def moving():
    net = Net(0).join("all_reduce", (0, 1), mesh="dp").join("all_gather", (0, 2), mesh="tp")
    return net.join("barrier", (0, 3)).graph()


def test_bytes_between_ranks_are_an_overlay_also_of_one_dimension_of_the_mesh():
    graph = moving()
    first, second, third = (node for node in graph.nodes if node.collective)
    (whole,) = make_overlay(graph, "communication_bytes")
    assert whole.numbers == {first: 24, second: 24, third: 24}
    (along,) = make_overlay(graph, "mine", "communication_bytes/tp")
    assert along.numbers == {second: 24}


@pytest.mark.parametrize(
    ("graph", "name", "why", "fix"),
    [
        (moving, "pp", "the dimensions of the device mesh are dp, tp", "communication_bytes/dp"),
        (
            lambda: plain(0),
            "dp",
            "the dimensions of the device mesh are none",
            "communication_bytes",
        ),
    ],
)
def test_a_dimension_along_which_nothing_moves_is_an_error(graph, name, why, fix):
    with pytest.raises(tbscope.ArgumentError) as caught:
        make_overlay(graph(), f"communication_bytes/{name}")
    assert str(caught.value) == (
        f"nothing in the graph of Net is moved along '{name}'\n  why: {why}\n  fix: {fix}"
    )


def test_overlays_tell_what_a_rank_holds_and_does():
    graph = sharded(0)
    for node in graph.nodes:
        if node.op == "linear":
            node.flops = 12
            node.inputs[1].sharding = Sharding((1, 2), HALF, ("tp",))
    (held,) = make_overlay(graph, "parameter_bytes_here")
    assert sorted(held.numbers.values()) == [8, 8]
    (done,) = make_overlay(graph, "flops_here")
    assert list(done.numbers.values()) == [6]


class Tied(nn.Module):
    """A tied weight and a frozen layer, whose rows no four ranks have equally many of."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(13, 6)
        self.frozen = nn.Linear(6, 7).requires_grad_(False)
        self.head = nn.Linear(7, 6)
        self.out = nn.Linear(6, 13, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, x):
        return self.out(self.head(self.frozen(self.embedding(x))))


def test_each_rank_holds_what_torch_gives_it_and_all_hold_the_model_once():
    held, x = [], torch.zeros(2, 3, dtype=torch.int64)

    def shard(model, mesh):
        for part in (model.frozen, model.head, model):
            fully_shard(part, mesh=mesh["dp"])
        held.append(sum(one.to_local().numel() for one in model.parameters()))

    run = {"mesh": {"dp": 4}, "parallelize": shard, "fake": True}
    graph = tbscope.merge_ranks([tbscope.trace(Tied(), x, rank=rank, **run) for rank in range(4)])
    assert figures(graph, "parameters") == [(count,) for count in held]
    assert len(set(held)) == 2
    whole = sum(one.numel() for one in Tied().parameters())
    assert sum(held) == whole == graph.parts[0].figures["model_parameters"]
