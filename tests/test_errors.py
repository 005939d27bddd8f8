"""The error tree: its form, its families, and the whole text of each class."""

import pickle

import pytest
from build import GraphBuilder, chain

import tbscope.errors
from tbscope import errors
from tbscope.ir.scopes import Scope
from tbscope.ranks.gather import lost_error

FAMILIES = {
    errors.ArgumentError: (TypeError, ValueError),
    errors.InputError: (errors.ArgumentError, TypeError, ValueError),
    errors.WriterError: (errors.ArgumentError, TypeError, ValueError),
    errors.TraceError: (RuntimeError,),
    errors.ScopeError: (RuntimeError,),
    errors.RanksError: (RuntimeError,),
    errors.GraphError: (ValueError,),
    errors.ConversionError: (ValueError,),
    errors.NotFoundError: (LookupError,),
}


def test_the_table_of_families_holds_every_error():
    assert {*FAMILIES, errors.TbscopeError} == {
        getattr(tbscope.errors, name) for name in tbscope.errors.__all__
    }


@pytest.mark.parametrize("error", FAMILIES)
def test_an_error_is_caught_as_its_family_and_as_the_built_in(error):
    for family in (errors.TbscopeError, *FAMILIES[error]):
        with pytest.raises(family):
            raise error("what")


@pytest.mark.parametrize("error", [errors.TbscopeError, *FAMILIES])
def test_a_message_has_three_parts_each_on_a_line(error):
    raised = error(
        "the model raised while it was being traced, in Net/Encoder[enc]",
        why="RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x9 and 3x5)",
        fix="check input_to_model: Linear[enc.proj] takes (..., 3), got (1, 9)",
    )
    assert str(raised) == (
        "the model raised while it was being traced, in Net/Encoder[enc]\n"
        "  why: RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x9 and 3x5)\n"
        "  fix: check input_to_model: Linear[enc.proj] takes (..., 3), got (1, 9)"
    )


def test_a_part_that_is_not_given_takes_no_line():
    assert str(errors.TraceError("what")) == "what"
    assert str(errors.TraceError("what", why="why")) == "what\n  why: why"
    assert str(errors.TraceError("what", fix="fix")) == "what\n  fix: fix"


@pytest.mark.parametrize("error", [errors.TbscopeError, *FAMILIES])
def test_an_error_crosses_processes_whole(error):
    raised = error("what", why="why", fix="fix")
    copy = pickle.loads(pickle.dumps(raised))
    assert type(copy) is error
    assert (copy.what, copy.why, copy.fix, str(copy)) == ("what", "why", "fix", str(raised))


def test_an_argument_error_names_what_cannot_be_read():
    with pytest.raises(errors.ArgumentError) as caught:
        Scope.parse("Net/Linear[0")
    assert str(caught.value) == (
        "cannot read the scope path 'Net/Linear[0'\n"
        "  why: its step 'Linear[0' has not the form Label[attribute].index\n"
        "  fix: give a path as node.scope prints it, e.g. 'Net/Sequential[layer1]/Linear[0]'"
    )


def test_an_error_of_ranks_names_them_and_why_each_sent_nothing():
    why = "it sent no graph within 5 s"
    error = lost_error({3: why, 5: "RuntimeError: no", 4: why})
    assert str(error) == (
        "ranks 3-5 sent no graph\n"
        "  why: ranks 3-4 are not drawn: it sent no graph within 5 s; "
        "rank 5 is not drawn: RuntimeError: no\n"
        "  fix: ranks_timeout=... for ranks that are slow; on_error='warn' draws what came"
    )


def test_a_graph_error_names_what_is_broken_and_where():
    build = GraphBuilder("Net")
    x = build.input("x", (1, 2))
    build.op("relu", x, scope=build.call("Net/ReLU[act]"))
    build.graph.nodes[1].outputs[0].dtype = ""
    with pytest.raises(errors.GraphError) as caught:
        build.graph.verify()
    assert str(caught.value) == (
        "the graph of Net breaks the invariants of a graph in 1 place\n"
        "  why: types: %1 has no dtype\n"
        "  fix: print(graph) shows its content; an unchanged graph of tbscope.trace or "
        "tbscope.record never breaks one: report it as a bug"
    )


def test_a_not_found_error_tells_near_names():
    with pytest.raises(errors.NotFoundError) as caught:
        chain(1).find("0.wieght")
    assert str(caught.value) == (
        "the graph of Chain has nothing named '0.wieght'\n"
        "  why: no call, node or scope has that name in this run\n"
        "  fix: did you mean '0.weight', '0.bias'?"
    )


def test_a_not_found_error_without_near_names_says_where_to_look():
    with pytest.raises(errors.NotFoundError) as caught:
        chain(1).find("§§§§")
    assert str(caught.value) == (
        "the graph of Chain has nothing named '§§§§'\n"
        "  why: no call, node or scope has that name in this run\n"
        "  fix: see graph.calls and graph.nodes for what was recorded"
    )


@pytest.mark.parametrize("error", FAMILIES)
def test_each_part_of_a_message_is_cut_and_can_be_printed_anywhere(error):
    wild = "a\ud800" + "x" * 10**6
    raised = error(wild, why=wild, fix=wild)
    assert len(str(raised)) < 5_000
    for part in (raised.what, raised.why, raised.fix, str(raised)):
        assert "a\\ud800x" in part
        part.encode("utf-8")
