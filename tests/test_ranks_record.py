"""What each rank records of a step that real processes make together."""

import parallel_models
import pytest
from parallel_models import ON_TWO
from processes import on_ranks

from tbscope.formats.json import graph_from_json
from tbscope.ir.invariants import verify

IN_PLACE = frozenset({"c10d::allreduce_", "c10d::broadcast_"})


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Give what each of two ranks tells of each model."""
    return on_ranks(parallel_models.all_told, 2, tmp_path_factory.mktemp("two"), list(ON_TWO))


def graphs_of(ranks, name):
    return [graph_from_json(rank[name]["graph"]) for rank in ranks]


def joined(graph):
    return [node for node in graph.nodes if node.collective is not None]


@pytest.mark.parametrize("name", ON_TWO)
def test_a_watched_step_trains_to_the_same_bits(two, name):
    assert [rank[name]["same"] for rank in two] == [True, True]


def moved(node):
    """Give the kind of a collective, and the bytes of all tensors that its kernel is told of."""
    told = node.collective
    in_place = not IN_PLACE.isdisjoint(node.kernels)
    return told.kind, told.output_bytes if in_place else told.input_bytes + told.output_bytes


@pytest.mark.parametrize("name", ON_TWO)
def test_collectives_are_those_that_torch_counts_with_the_bytes_that_it_sees(two, name):
    for rank, graph in zip(two, graphs_of(two, name), strict=True):
        seen = rank[name]["seen"]
        assert sorted(map(moved, joined(graph))) == sorted(seen) != []
        assert rank[name]["counts"] in (None, len(seen))


@pytest.mark.parametrize("name", ON_TWO)
def test_each_collective_stands_in_a_module(two, name):
    for graph in graphs_of(two, name):
        verify(graph)
        calls = {call.scope.path for call in graph.calls}
        for node in joined(graph):
            assert node.scope is not None
            path = node.scope.path.partition("gradients")[2].partition("/")[2] or node.scope.path
            assert path in calls, node


@pytest.mark.parametrize("name", ON_TWO)
def test_ranks_number_what_they_do_together_alike(two, name):
    one, other = ([node.collective for node in joined(graph)] for graph in graphs_of(two, name))
    alike = [
        [(each.kind, each.ranks, each.mesh, each.group, each.sequence) for each in rank]
        for rank in (one, other)
        if all(each.peer is None for each in rank)
    ]
    assert len(alike) == 0 or alike[0] == alike[1]
    sent = sorted((each.group, each.sequence) for each in one if each.kind == "send")
    assert sent == sorted((each.group, each.sequence) for each in other if each.kind == "recv")
