"""Notes on ranks: whose the notes of a merged graph are."""

from test_merge_ranks import Net, plain

import tbscope
from tbscope.ir.graph import Note


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
