"""The table of sources: what can be drawn, and how it becomes a graph."""

import pytest
import torch
from build import chain

import tbscope
from tbscope.sources.registry import SOURCES, graph_of


def test_a_graph_is_drawn_as_it_is():
    graph = chain(2)
    assert graph_of(graph, None, {"kwargs": None, "profile": False, "training": False}) is graph


@pytest.mark.parametrize("model", [torch.nn.ReLU(), torch.exp, lambda x: x])
def test_a_callable_is_run_with_the_options_it_is_given(model):
    graph = graph_of(model, torch.rand(2), {"kernels": False, "fake": True})
    assert len(graph.outputs) == 1


@pytest.mark.parametrize(
    ("given", "run", "text"),
    [
        (torch.rand(2), {}, "inputs are given with the graph of Chain"),
        (None, {"kwargs": {"x": 1}}, "inputs are given with the graph of Chain"),
        (None, {"input_size": (1, 2)}, "inputs are given with the graph of Chain"),
        (None, {"profile": 3}, "profile=3 is given with the graph of Chain"),
        (None, {"training": True}, "training=True is given with the graph of Chain"),
        (None, {"training": None}, "training=None is given with the graph of Chain"),
        (None, {"grad": True}, "grad=True is given with the graph of Chain"),
        (None, {"fake": True}, "fake=True is given with the graph of Chain"),
        (None, {"partial": True}, "partial=True is given with the graph of Chain"),
    ],
)
def test_a_graph_takes_no_inputs_and_no_options_of_a_run(given, run, text):
    with pytest.raises(tbscope.ArgumentError, match=text):
        graph_of(chain(1), given, run)


def test_a_graph_that_was_measured_is_drawn_with_its_measures():
    graph = tbscope.trace(torch.nn.ReLU(), torch.rand(2), profile=1)
    assert graph_of(graph, None, {"profile": True}) is graph


def test_each_thing_is_of_the_first_kind_that_takes_it():
    kinds = [next(kind for kind in SOURCES if kind.takes(each)) for each in (chain(1), print, 3)]
    assert kinds == [SOURCES[0], SOURCES[-1], SOURCES[-1]]
    assert str(kinds[0]) == "a graph that is made already"


def test_what_cannot_be_run_is_refused():
    with pytest.raises(tbscope.ArgumentError):
        graph_of(3, None, {})
