"""Models on meshes of two and three dimensions, in four and in eight processes."""

from collections import Counter

import pytest
from mesh_models import ON_EIGHT, ON_FOUR
from once import made_once
from parallel_models import all_told
from processes import on_ranks
from rank_parts import rows_of
from test_ranks_record import graphs_of, joined, module_of, moved

import tbscope

MODELS = {**dict.fromkeys(ON_FOUR, 4), **dict.fromkeys(ON_EIGHT, 8)}
# The sizes of the meshes, by the names of their dimensions.
MESHES = {
    "by both": {"dp": 2, "tp": 2},
    "hybrid": {"dp": 2, "shard": 2},
    "staged": {"pp": 2, "dp": 2},
    "of sharded experts": {"fsdp": 2, "ep": 2},
    "as torchtitan": {"dp": 2, "tp": 2},
    "by three": {"pp": 2, "dp": 2, "tp": 2},
    "by context": {"dp": 2, "cp": 2, "tp": 2},
}
BOXES = {"staged": ["stage 0", "stage 1"], "by three": ["stage 0", "stage 1"]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Give what each of four ranks tells of each model, and each of eight."""
    return {
        count: made_once(
            tmp_path_factory,
            f"meshes{count}",
            lambda folder, count=count, models=models: on_ranks(all_told, count, folder, models),
        )
        for count, models in ((4, ON_FOUR), (8, ON_EIGHT))
    }


@pytest.fixture(params=MODELS)
def run(runs, request):
    """Give the name of a model, and what each of its ranks tells of it."""
    return request.param, runs[MODELS[request.param]]


def test_a_watched_step_trains_to_the_same_bits_on_every_rank(run):
    name, ranks = run
    assert all(rank[name]["same"] for rank in ranks)


def test_collectives_are_those_that_torch_counts_with_the_bytes_that_it_sees(run):
    name, ranks = run
    for rank, graph in zip(ranks, graphs_of(ranks, name), strict=True):
        assert sorted(map(moved, joined(graph))) == sorted(rank[name]["seen"]) != []


def test_each_collective_is_along_one_dimension_and_stands_in_a_module(run):
    name, ranks = run
    for graph in graphs_of(ranks, name):
        graph.verify()
        assert {one.name: one.size for one in graph.mesh} == MESHES[name]
        calls = {call.scope.path for call in graph.calls}
        for node in joined(graph):
            pair = sorted(rank for rank in node.collective.ranks)
            assert pair == along(node.collective.mesh, graph.rank, MESHES[name])
            path = node.scope.path
            if path.startswith("gradients/") and not path.startswith("gradients/recomputed"):
                path = path.split("/", 1)[1]
            assert module_of(path) in {*calls, "clip_grad_norm_"}


def along(dimension, rank, sizes):
    """Give the ranks that differ from one in their place along a dimension alone."""
    stride = 1
    for name in reversed(sizes):
        if name == dimension:
            place = rank // stride % sizes[name]
            return [rank + (other - place) * stride for other in range(sizes[name])]
        stride *= sizes[name]
    raise AssertionError(dimension)


def test_ranks_of_one_program_are_one_picture_and_stages_stand_side_by_side(run):
    name, ranks = run
    graphs = graphs_of(ranks, name)
    merged = tbscope.merge_ranks(graphs)
    merged.verify()
    parts = [graphs[part.ranks[0]] for part in merged.parts]
    assert [part.scope for part in merged.parts] == BOXES.get(name, [""])
    assert sorted(rank for part in merged.parts for rank in part.ranks) == [*range(len(ranks))]
    assert kinds(merged) == sum(map(kinds, parts), Counter())


def kinds(graph):
    return Counter(node.collective.kind for node in joined(graph))


@pytest.mark.parametrize("unfolded", [False, True])
def test_each_part_is_what_its_rank_recorded(run, unfolded):
    name, ranks = run
    graphs = graphs_of(ranks, name)
    merged = tbscope.merge_ranks(graphs, unfolded=unfolded)
    assert len(merged.parts) == (len(ranks) if unfolded else len(BOXES.get(name, [""])))
    for part in merged.parts:
        assert rows_of(merged, part.scope) == rows_of(graphs[part.ranks[0]], "")
