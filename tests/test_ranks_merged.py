"""Training steps of real ranks, merged: what is drawn once, what is joined, and its numbers."""

from collections import Counter

import parallel_models
import pytest
from parallel_models import ON_TWO
from processes import on_ranks
from rank_parts import rows_of
from same_graph import differences

import tbscope
from tbscope.formats.json import graph_from_json, graph_to_json
from tbscope.ir.invariants import verify
from tbscope.overlays.make import make_overlay

PIPELINES = ("1F1B", "GPipe")
# What each of the two ranks holds of how many numbers.
HELD = {
    "replicated": (664, 664),
    "sharded": (332, 664),
    "halved": (332, 664),
    "by tensor": (392, 664),
    "by sequence": (160, 296),
}
# Boxes of ranks that do something together read each other by turns.
TOLD = {"box-cycle"}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """Give what each of two ranks records of each model."""
    ranks = on_ranks(parallel_models.all_told, 2, tmp_path_factory.mktemp("merged"), ON_TWO)
    return {name: [graph_from_json(rank[name]["graph"]) for rank in ranks] for name in ON_TWO}


def joined(graph):
    return Counter(node.collective.kind for node in graph.nodes if node.collective)


@pytest.mark.parametrize("name", ON_TWO)
def test_ranks_of_one_program_are_one_picture_and_stages_stand_side_by_side(graphs, name):
    merged = tbscope.merge_ranks(graphs[name])
    verify(merged)
    assert [part.scope for part in merged.parts] == (
        ["stage 0", "stage 1"] if name in PIPELINES else [""]
    )
    assert joined(merged) == sum(map(joined, graphs[name][: len(merged.parts)]), Counter())


@pytest.mark.parametrize("name", ON_TWO)
@pytest.mark.parametrize("level", ["overview", "module", "op"])
def test_a_merged_graph_is_drawn_at_each_level_and_kept_in_files(graphs, name, level):
    for unfolded in (False, True):
        merged = tbscope.merge_ranks(graphs[name], unfolded=unfolded)
        drawn = tbscope.to_graph_def(merged, level=level, color_by="rank")
        assert {finding.rule for finding in tbscope.lint(drawn)} <= TOLD
        assert differences(merged, graph_from_json(graph_to_json(merged))) == []


@pytest.mark.parametrize("name", sorted(set(ON_TWO) - set(PIPELINES) - {"in a ring"}))
def test_unfolded_ranks_share_each_collective(graphs, name):
    merged = tbscope.merge_ranks(graphs[name], unfolded=True)
    verify(merged)
    assert joined(merged) == joined(graphs[name][0])
    for node in merged.nodes:
        if node.collective:
            assert {value.device for value in node.outputs} == {"ranks 0-1 cpu"}


@pytest.mark.parametrize("name", PIPELINES)
def test_what_a_stage_receives_is_what_the_other_one_sends(graphs, name):
    merged = tbscope.merge_ranks(graphs[name])
    received = [node for node in merged.nodes if node.collective and node.collective.kind == "recv"]
    assert len(received) == 4
    for node in received:
        (sender,) = (v.producer for v in node.inputs if v.producer.collective)
        assert sender.collective.kind == "send"
        assert sender.scope.path.split("/")[0] != node.scope.path.split("/")[0]


def test_in_a_ring_each_rank_receives_what_the_one_before_sends(graphs):
    merged = tbscope.merge_ranks(graphs["in a ring"], unfolded=True)
    boxes = {}
    for node in merged.nodes:
        if node.collective and node.collective.kind == "recv":
            (sender,) = (v.producer for v in node.inputs if v.producer.collective)
            boxes.setdefault(node.scope.path.split("/")[0], set()).add(sender.scope.path[:6])
    assert boxes == {"rank 0": {"rank 1"}, "rank 1": {"rank 0"}}


@pytest.mark.parametrize("name", ON_TWO)
@pytest.mark.parametrize("unfolded", [False, True])
def test_each_part_is_what_its_rank_recorded(graphs, name, unfolded):
    merged = tbscope.merge_ranks(graphs[name], unfolded=unfolded)
    for part in merged.parts:
        rank = part.ranks[0]
        assert rows_of(merged, part.scope) == rows_of(graphs[name][rank], "")


@pytest.mark.parametrize("name", HELD)
def test_each_rank_holds_its_share_of_the_whole_model(graphs, name):
    merged = tbscope.merge_ranks(graphs[name])
    (part,) = merged.parts
    assert (part.figures["parameters"], part.figures["model_parameters"]) == HELD[name]
    (moved,) = make_overlay(merged, "communication_bytes")
    assert sum(moved.numbers.values()) == part.figures["communication_bytes"] > 0
