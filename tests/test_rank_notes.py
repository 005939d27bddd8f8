"""Notes on ranks: who has more than others, and whose the notes of a merged graph are."""

from test_merge_ranks import Net, plain

import tbscope
from tbscope.ir.facts import Part
from tbscope.ir.graph import Note
from tbscope.ranks.shares import share_notes


def test_a_rank_with_more_than_its_share_is_named():
    parts = [
        Part((0,), figures={"flops": 30, "parameter_bytes": 11}),
        Part((1, 2), figures={"flops": 10, "parameter_bytes": 10}),
    ]
    assert [note.text for note in share_notes(parts)] == [
        "rank 0 has up to 1.8 times the mean of the FLOPs"
    ]


def test_of_several_ranks_with_more_the_largest_share_is_told():
    counts = {0: 40, 1: 30, 2: 10, 3: 10, 4: 10, 5: 10}
    parts = [Part((rank,), figures={"flops": count}) for rank, count in counts.items()]
    assert [note.text for note in share_notes(parts)] == [
        "ranks 0-1 have up to 2.2 times the mean of the FLOPs"
    ]


def test_ranks_with_exactly_the_most_that_is_usual_are_not_named():
    parts = [Part((0,), figures={"flops": 12}), Part((1,), figures={"flops": 8})]
    assert share_notes(parts) == []
    assert share_notes([]) == []


def test_notes_of_equal_ranks_stay_and_the_graph_of_one_rank_has_none():
    graph = plain(0)
    assert graph.notes == []
    graph.notes.append(Note("random numbers were drawn"))
    merged = tbscope.merge_ranks([graph])
    assert [note.text for note in merged.notes] == ["random numbers were drawn"]


def test_a_note_that_all_parts_have_is_told_once_and_of_any_other_whose_it_is():
    graphs = [plain(0), plain(1), Net(2).then("relu").graph()]
    for graph in graphs:
        graph.notes.append(Note("everybody has it"))
    for graph in graphs[:2]:
        graph.notes.append(Note("two have it"))
    merged = tbscope.merge_ranks(graphs)
    assert [note.text for note in merged.notes] == ["everybody has it", "ranks 0-1: two have it"]
