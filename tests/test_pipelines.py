"""Pipelines whose ranks have several stages: what they record, and how it is drawn together."""

from collections import Counter

import pytest
from once import made_once
from parallel_models import VIRTUAL, all_told, interleaved_and_sharded
from processes import on_ranks

import tbscope
from tbscope.formats.json import graph_from_json, graph_to_json
from tbscope.ir.scopes import self_and_ancestors
from tbscope.page.glyphs import Box
from tbscope.page.hierarchy import Hierarchy
from tbscope.utils.components import find_cycles
from tests.sweeps import is_sweep, sampled

MODELS = sampled(VIRTUAL, ["interleaved", "in a V"])


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Give what each of two ranks tells of each model."""
    models = {name: VIRTUAL[name] for name in MODELS}
    return made_once(
        tmp_path_factory, "pipelines", lambda folder: on_ranks(all_told, 2, folder, models)
    )


@pytest.fixture(params=MODELS)
def graphs(ranks, request):
    """Give what each of two ranks has recorded of one model."""
    return [graph_from_json(rank[request.param]["graph"]) for rank in ranks]


def test_a_recorded_step_trains_to_the_same_bits_and_has_all_messages(ranks):
    for rank in ranks:
        for told in rank.values():
            assert told["same"]
            graph = graph_from_json(told["graph"])
            kinds = Counter(node.collective.kind for node in graph.nodes if node.collective)
            assert kinds == Counter(kind for kind, _ in told["seen"])


def boxes_of(hierarchy, above=""):
    box = hierarchy.boxes[above] if above else hierarchy.root
    return {
        child.label
        for child in box.children.values()
        if isinstance(child, Box) and not child.label.startswith("__")
    }


def test_each_stage_is_a_box_of_its_own_in_which_the_micro_batches_are_one(graphs):
    is_drawn_by_stages(graphs, ["rank_0", "rank_1"])


@pytest.mark.skipif(not is_sweep(), reason="in processes of its own")
def test_stages_that_are_sharded_gather_their_parameters_for_all_micro_batches(tmp_path):
    ranks = on_ranks(all_told, 4, tmp_path, {"": interleaved_and_sharded})
    assert all(rank[""]["same"] for rank in ranks)
    is_drawn_by_stages(
        [graph_from_json(rank[""]["graph"]) for rank in ranks], ["ranks_0-1", "ranks_2-3"]
    )


def is_drawn_by_stages(graphs, optimizers):
    merged = tbscope.merge_ranks(graphs)
    merged.verify()
    drawn = Hierarchy.of(tbscope.to_graph_def(merged, color_by="stage", templates=False))
    stages = {f"stage_{number}" for number in range(4)}
    assert boxes_of(drawn) >= {*stages, "gradients", "optimizer"}
    assert len(drawn.root.children) <= 20
    assert boxes_of(drawn, "gradients") == stages
    assert boxes_of(drawn, "optimizer") == set(optimizers)
    for stage in stages:
        for above in (stage, f"gradients/{stage}"):
            calls = boxes_of(drawn, f"{above}/VirtualStages/parts")
            assert calls in ({"0_x_4"}, {"1_x_4"})
    for box in (drawn.root, *drawn.boxes.values()):
        assert not find_cycles(drawn.links(box))


def test_stages_send_to_the_next_and_gradients_to_the_one_before(graphs):
    merged = tbscope.merge_ranks(graphs)
    steps = {"forward": set(), "backward": set()}
    for node in merged.nodes:
        if node.collective is not None and node.collective.kind == "recv":
            (sender,) = (value.producer for value in node.inputs if value.producer.collective)
            steps[node.phase].add((stage_of(sender), stage_of(node)))
    assert {after - before for before, after in steps["forward"]} == {1}
    assert {after - before for before, after in steps["backward"]} == {-1}


def stage_of(node):
    box = next(scope for scope in self_and_ancestors(node.scope) if scope.kind == "rank")
    return int(box.part.label.removeprefix("stage "))


def test_a_merged_graph_has_all_that_its_ranks_have_run(graphs):
    merged = tbscope.merge_ranks(graphs)
    assert kernels(merged) == kernels(graphs[0]) + kernels(graphs[1])
    assert graph_to_json(graph_from_json(graph_to_json(merged))) == graph_to_json(merged)


def kernels(graph):
    return Counter(kernel for node in graph.nodes for kernel in node.kernels)


def test_a_rank_has_its_passes_in_one_box(graphs):
    for graph in graphs:
        tops = {scope.path for scope in graph.scopes() if scope.parent is None}
        assert {top for top in tops if top.startswith("gradients")} == {"gradients"}
