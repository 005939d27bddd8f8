"""Training steps of real ranks, merged: what is drawn once, what is joined, and its numbers."""

import itertools
from collections import Counter

import pytest
from parallel_models import ON_TWO
from rank_parts import rows_of
from same_graph import differences
from test_ranks_record import told_by_two

import tbscope
from tbscope.formats.json import graph_from_json, graph_to_json
from tbscope.ir.scopes import self_and_ancestors
from tbscope.overlays.overlay import make_overlay
from tests.sweeps import sampled

PIPELINES = ("1F1B", "GPipe")
# What each of the two ranks holds of how many numbers.
HELD = {
    "replicated": (664, 664),
    "sharded": (332, 664),
    "halved": (332, 664),
    "by tensor": (392, 664),
    "by sequence": (160, 296),
}
# Boxes of ranks that do something together read each other by turns; stages send one way.
TOLD = {False: set(), True: {"box-cycle"}}
DRAWN = list(itertools.product(ON_TWO, ["overview", "module", "op"]))


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """Give what each of two ranks records of each model."""
    ranks = told_by_two(tmp_path_factory)
    return {name: [graph_from_json(rank[name]["graph"]) for rank in ranks] for name in ON_TWO}


def rank_of(node):
    """Give the name of the box of ranks in which a node stands."""
    return next(str(one.part) for one in self_and_ancestors(node.scope) if one.kind == "rank")


def joined(graph):
    return Counter(node.collective.kind for node in graph.nodes if node.collective)


@pytest.mark.parametrize("name", ON_TWO)
def test_ranks_of_one_program_are_one_picture_and_stages_stand_side_by_side(graphs, name):
    merged = tbscope.merge_ranks(graphs[name])
    merged.verify()
    assert [part.scope for part in merged.parts] == (
        ["stage 0", "stage 1"] if name in PIPELINES else [""]
    )
    assert joined(merged) == sum(map(joined, graphs[name][: len(merged.parts)]), Counter())


@pytest.mark.parametrize(
    ("name", "level"), sampled(DRAWN, [drawn for at, drawn in enumerate(DRAWN) if at % 4 == 0])
)
def test_a_merged_graph_is_drawn_at_each_level_and_kept_in_files(graphs, name, level):
    for unfolded in (False, True):
        merged = tbscope.merge_ranks(graphs[name], unfolded=unfolded)
        drawn = tbscope.to_graph_def(merged, level=level, color_by="rank")
        assert {finding.rule for finding in tbscope.lint(drawn)} <= TOLD[unfolded]
        assert differences(merged, graph_from_json(graph_to_json(merged))) == []


@pytest.mark.parametrize("name", sorted(set(ON_TWO) - set(PIPELINES) - {"in a ring"}))
def test_unfolded_ranks_share_each_collective(graphs, name):
    merged = tbscope.merge_ranks(graphs[name], unfolded=True)
    merged.verify()
    assert joined(merged) == joined(graphs[name][0])
    for node in merged.nodes:
        if node.collective:
            assert {value.device for value in node.outputs} == {"ranks 0-1 cpu"}
            begin = None if node.scope is None else node.scope.path.split("/")[0]
            assert (begin is None) == (node.phase == "forward")


@pytest.mark.parametrize("name", PIPELINES)
def test_what_a_stage_receives_is_what_the_other_one_sends(graphs, name):
    merged = tbscope.merge_ranks(graphs[name])
    received = [node for node in merged.nodes if node.collective and node.collective.kind == "recv"]
    assert len(received) == 4
    for node in received:
        (sender,) = (v.producer for v in node.inputs if v.producer.collective)
        assert sender.collective.kind == "send"
        assert {rank_of(sender), rank_of(node)} == {"stage 0", "stage 1"}


@pytest.mark.parametrize("name", PIPELINES)
def test_stages_stand_in_a_row_with_their_gradients_behind_them(graphs, name):
    merged = tbscope.merge_ranks(graphs[name])
    begins = {scope.path.split("/")[0]: scope.phase for scope in merged.scopes()}
    assert list(begins.items())[:2] == [("stage 0", "forward"), ("stage 1", "forward")]
    assert {begin for begin, phase in begins.items() if phase != "forward"} >= {
        "gradients",
        "optimizer",
    }
    for node in merged.nodes:
        if node.phase != "forward":
            assert rank_of(node) in ("stage 0", "stage 1")
            assert node.scope.path.split("/")[0] not in ("stage 0", "stage 1")
    drawn = tbscope.to_graph_def(merged, color_by="stage", templates=False)
    inside = [
        node for node in drawn.node if "/stage_1/" in node.name and "_XlaCluster" in node.attr
    ]
    assert {node.name.partition("/")[0] for node in inside} >= {"gradients", "optimizer"}
    assert {node.attr["_XlaCluster"].s for node in inside} == {b"stage 1"}


def test_in_a_ring_each_rank_receives_what_the_one_before_sends(graphs):
    merged = tbscope.merge_ranks(graphs["in a ring"], unfolded=True)
    boxes = {}
    for node in merged.nodes:
        if node.collective and node.collective.kind == "recv":
            (sender,) = (v.producer for v in node.inputs if v.producer.collective)
            boxes.setdefault(rank_of(node), set()).add(rank_of(sender))
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
