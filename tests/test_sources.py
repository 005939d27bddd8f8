"""The table of sources: what can be drawn, and how it becomes a graph."""

import functools

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
        (torch.rand(2), {}, r"input_to_model=tensor\(.*\) is given with the graph of Chain"),
        (None, {"kwargs": {"x": 1}}, "kwargs={'x': 1} is given with the graph of Chain"),
        (None, {"input_size": (1, 2)}, r"input_size=\(1, 2\) is given with the graph of Chain"),
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


def test_a_path_without_a_graph_is_no_model():
    with pytest.raises(tbscope.ArgumentError) as raised:
        graph_of("missing.pt2", None, {})
    assert str(raised.value) == (
        "'missing.pt2' contains no graph\n"
        "  why: there is no such file\n"
        "  fix: give the path of a file that is there, or the model itself"
    )


class Sum(torch.nn.Module):
    def forward(self, x, y):
        return x.exp() + y


def saved_script(folder):
    torch.jit.script(Sum()).save(folder / "sum.pt")
    return folder / "sum.pt"


DOORS = {
    "trace": lambda folder: functools.partial(tbscope.trace, Sum()),
    "compile_graphs": lambda folder: (
        lambda *args, **inputs: tbscope.compile_graphs(Sum(), *args, **inputs).overview
    ),
    "from_fx": lambda folder: functools.partial(tbscope.from_fx, torch.fx.symbolic_trace(Sum())),
    "from_torchscript": lambda folder: functools.partial(
        tbscope.from_torchscript, torch.jit.script(Sum())
    ),
    "a file": lambda folder: functools.partial(tbscope.from_torchscript, saved_script(folder)),
}
X, Y = torch.ones(2, 3), torch.ones(3)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.filterwarnings("ignore")
def test_all_doors_take_inputs_alike(door, tmp_path):
    read = DOORS[door](tmp_path)

    graphs = [
        read((X, Y)),
        read([X, Y]),
        read({"y": Y, "x": X}),
        read(X, kwargs={"y": Y}),
        read(kwargs={"y": Y, "x": X}),
        read(input_size=[(2, 3), (3,)]),
        read(input_size={"x": (2, 3)}, dtypes="float32", kwargs={"y": Y}),
    ]

    for graph in graphs:
        typed = [(node.name, node.outputs[0].shape) for node in graph.inputs]
        assert typed == [("x", (2, 3)), ("y", (3,))]
        assert graph.outputs[0].value.shape == (2, 3)
    with pytest.raises(tbscope.InputError, match="cannot be called: missing a required argument"):
        read(X)
