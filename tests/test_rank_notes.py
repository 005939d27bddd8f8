"""Notes on ranks: whose the notes of a merged graph are."""

from test_merge_ranks import Net, pipeline, plain

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
    assert [note.text for note in merged.notes][1:] == [
        "everybody has it",
        "ranks 0-1: two have it",
    ]


def test_a_note_tells_which_rank_ran_what_else_and_from_where_on():
    graphs = [plain(0), plain(1), Net(2).then("relu").then("tanh").graph(), plain(3)]
    merged = tbscope.merge_ranks(graphs)
    (note,) = merged.notes
    told = "rank 2 differs from ranks 0-1,3 from relu in Net on: ran relu in Net, tanh in Net"
    assert note.text == told
    assert (note.node.op, note.node in merged.nodes) == ("relu", True)


def test_a_rank_that_lacks_operations_is_told_of_too():
    merged = tbscope.merge_ranks([Net(0).then("relu").graph(), Net(1).graph()])
    (note,) = merged.notes
    assert note.text.startswith("rank 1 differs from rank 0 after linear in Net/Linear[1]: ran no")
    assert note.node is None


def test_equal_ranks_side_by_side_and_stages_have_no_such_note():
    assert tbscope.merge_ranks([plain(0), plain(1)], unfolded=True).notes == []
    assert tbscope.merge_ranks(pipeline(lanes=2)).notes == []


def test_a_note_of_one_stage_names_it():
    graphs = pipeline()
    graphs[1].notes.append(Note("random numbers were drawn"))
    assert [note.text for note in tbscope.merge_ranks(graphs).notes] == [
        "stage 1 rank 1: random numbers were drawn"
    ]
