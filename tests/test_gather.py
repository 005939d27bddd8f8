"""Graphs of several processes, gathered by one: real processes, and ranks that fail."""

import json
from pathlib import Path

import pytest
from once import made_once
from same_graph import differences

from tbscope.formats.json import graph_from_json
from tbscope.ranks.merge import merge_ranks
from tests.warm import run_warm

ROOT = Path(__file__).parents[1]
PROGRAMS = (
    *("same", "uneven", "some", "unfolded", "twice", "raises", "raises_first", "is_slow"),
    *("is_killed", "is_killed_inside", "leaves_what_came", "has_no_writer"),
)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Give what each rank told of each program."""
    return made_once(tmp_path_factory, "gather", run_programs)


def run_programs(_folder):
    done = run_warm("-m", "tests.rank_processes", "tests.rank_programs", *PROGRAMS, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    # A rank that raises has no result, and its traceback is on standard error.
    assert all(results[0] for results in found.values()), done.stderr
    return found


def read(text):
    """Give a graph without the lines of the program, which drew it at one and traced at another."""
    graph = graph_from_json(text)
    for one in (*graph.nodes, *graph.calls):
        one.source = None
    return graph


def merged(told):
    return read(told[0]["graph"])


def owns(told):
    graphs = [read(one["own"]) for one in told]
    for rank, graph in enumerate(graphs):
        graph.rank, graph.world_size = rank, 3
    return graphs


@pytest.mark.parametrize("name", ["same", "uneven"])
def test_the_first_rank_draws_what_all_record(told, name):
    ranks = told[name]
    assert differences(merged(ranks), merge_ranks(owns(ranks))) == []
    assert [one["drawn"] for one in ranks] == [1, 0, 0]
    assert [one["warned"] for one in ranks] == [[], [], []]


def test_another_rank_is_given_the_graph_of_its_own(told):
    for one, own in zip(told["same"][1:], owns(told["same"])[1:], strict=True):
        assert differences(read(one["graph"]), own) == []


def test_what_differs_in_size_is_drawn_once_and_told(told):
    graph = merged(told["uneven"])
    assert [str(part) for part in graph.parts] == ["ranks 0-1", "rank 2"]
    assert graph.nodes[3].attributes["shapes_by_rank"] == "(3, 4) on ranks 0-1; (2, 4) on rank 2"


def test_ranks_that_are_not_asked_for_are_not_drawn(told):
    assert [part.ranks for part in merged(told["some"]).parts] == [(0, 2)]
    assert all(one["graph"] for one in told["some"])


def test_unfolded_ranks_have_a_box_each(told):
    graph = merged(told["unfolded"])
    assert [part.scope for part in graph.parts] == ["rank 0", "rank 1", "rank 2"]


def test_a_second_drawing_gathers_anew(told):
    assert merged(told["twice"]).inputs[0].outputs[0].shape == (5, 4)


def test_what_a_rank_raises_is_told_and_the_others_are_drawn(told):
    first, second, third = told["raises"]
    graph = graph_from_json(first["graph"])
    assert [part.ranks for part in graph.parts] == [(0, 2)]
    assert graph.notes[0].text.startswith("rank 1 is not drawn: TraceError: the model raised")
    assert first["warned"] == [f"tbscope: {graph.notes[0].text}"]
    assert "mat1 and mat2" in second["warned"][0]
    assert third["warned"] == []


def test_the_rank_that_draws_may_itself_have_raised(told):
    graph = merged(told["raises_first"])
    assert [part.ranks for part in graph.parts] == [(1, 2)]
    assert graph.notes[0].text.startswith("rank 0 is not drawn: TraceError")


def test_a_slow_rank_is_named_and_told_itself(told):
    first, second, _ = told["is_slow"]
    assert first["warned"] == ["tbscope: rank 1 is not drawn: it sent no graph within 6 s"]
    assert [part.ranks for part in graph_from_json(first["graph"]).parts] == [(0, 2)]
    assert second["warned"][0].startswith(
        "tbscope drew no graph: the graph of rank 1 came too late"
    )


def test_a_rank_that_is_gone_is_an_error_that_names_it(told):
    first, second, third = told["is_killed"]
    assert first["error"].startswith(
        "rank 1 sent no graph\n  why: rank 1 is not drawn: it sent no graph within 6 s\n"
    )
    assert (first["drawn"], second) == (0, None)
    assert third["error"] == ""


def test_what_is_left_of_a_run_is_drawn_without_the_rank_that_is_gone(told):
    first, second, third = told["leaves_what_came"]
    assert first["warned"] == ["tbscope: rank 1 is not drawn: it sent no graph within 6 s"]
    assert [part.ranks for part in graph_from_json(first["graph"]).parts] == [(0, 2)]
    assert (first["drawn"], second, third["warned"]) == (1, None, [])


def test_ranks_that_wait_in_the_model_for_one_that_is_gone_say_so_and_go_on(told):
    first, second, third = told["is_killed_inside"]
    for rank in (first, third):
        (text,) = rank["warned"]
        assert "the model raised while it was being traced, in Meeting" in text
        assert (rank["drawn"], rank["error"], rank["goes on"]) == (0, "", 1)
    assert second is None


def test_the_rank_that_draws_needs_a_writer_and_no_other_does(told):
    errors = [one["error"] for one in told["has_no_writer"]]
    assert errors[0].startswith("cannot write a graph to None")
    assert errors[1:] == ["", ""]
