"""What holds of every difference: nothing of equal graphs, all of it mirrored, a sound union."""

import warnings
from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from real_graphs import KINDS, real_graph
from test_diff import sides
from test_functions_laws import ALIKE, MUTATIONS, layers
from test_random_models import WIDTH, models

import tbscope
from tbscope.comparison.build_structure import OutlinedGraph
from tbscope.comparison.lock_file import outline_to_pin, pin_to_outline
from tbscope.ir.nodes import OPERATIONS
from tests.sweeps import sampled

ANY = settings(
    max_examples=30, deadline=None, suppress_health_check=[*HealthCheck], derandomize=True
)


def trace(model):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tbscope.trace(model, (torch.randn(4, WIDTH),))


def hold(one, other):
    """Hold what two graphs differ in against what holds of every difference."""
    there, back = tbscope.diff(one, other), tbscope.diff(other, one)
    assert Counter(map(str, map(sides, there.changes))) == Counter(
        str(sides(change, turned=True)) for change in back.changes
    )
    assert there.follows == back.follows
    union = there.graph
    union.verify()
    assert tbscope.to_graph_def(union, color_by="difference").node
    fates = Counter(node.attributes["difference"] for node in operations(union))
    assert len(operations(other)) == fates.total() - fates["removed"]
    assert bool(there) == (OutlinedGraph(one).outline.digest != OutlinedGraph(other).outline.digest)


def operations(graph):
    return [node for node in graph.nodes if node.kind in OPERATIONS]


@pytest.mark.parametrize("name", KINDS)
def test_a_real_model_does_not_differ_from_itself(name):
    graph = real_graph(name)
    difference = tbscope.diff(graph, graph.copy())
    assert not difference
    assert (difference.changes, difference.follows) == ([], 0)
    assert {node.attributes["difference"] for node in difference.graph.nodes} == {"same"}
    assert len(difference.graph.nodes) == len(graph.nodes)


@pytest.mark.parametrize("pair", sampled(pairwise(KINDS), [*pairwise(KINDS)][::2]), ids="-".join)
def test_of_two_real_models_all_is_told_and_mirrored(pair):
    hold(*map(real_graph, pair))


@ANY
@given(one=models, other=models)
def test_of_two_random_models_all_is_told_and_mirrored(one, other):
    hold(trace(one), trace(other))


@ANY
@given(model=models)
def test_a_random_model_does_not_differ_from_itself_nor_from_its_pin(model):
    one, other = trace(model), trace(model)
    assert not tbscope.diff(one, other)
    outline = OutlinedGraph(one).outline
    assert pin_to_outline(outline_to_pin(outline)).digest == outline.digest


@pytest.mark.parametrize("name", KINDS)
def test_a_pin_tells_of_a_real_model_what_its_graph_does(name):
    outline = OutlinedGraph(real_graph(name)).outline
    text = outline_to_pin(outline)
    read = pin_to_outline(text)
    assert outline_to_pin(read) == text
    assert (read.digest, read.totals) == (outline.digest, outline.totals)


# Whether an operation is a view follows from what it is, what waits for what from what is written,
# two constants print alike, and one class may be imported under two names.
UNTOLD = {
    *("role", "no role"),
    *("control edge", "control edge from elsewhere", "control edge from outside"),
    *("constant in a nest", "class", "class of an inner call"),
}


@pytest.mark.parametrize("name", [name for name in MUTATIONS if name not in UNTOLD])
def test_any_change_of_structure_is_told_where_it_is(name):
    before, after = layers(), layers().copy()
    MUTATIONS[name](after)
    changes = tbscope.diff(before, after).changes
    assert changes
    assert {change.name.split(".")[0] for change in changes} == {"1"}
    hold(before, after)


def test_the_file_in_which_a_class_stands_is_not_told():
    before, after = layers(), layers().copy()
    MUTATIONS["class"](after)
    MUTATIONS["constant"](after)
    told = [
        (change.name, *map(str, change.details)) for change in tbscope.diff(before, after).changes
    ]
    assert told == [("1.sub()", "alpha 1.0 -> 2.0")]


@pytest.mark.parametrize("name", ["what was measured, sources, kernels", "names"])
def test_what_is_of_one_run_is_not_told(name):
    before, after = layers(), layers()
    ALIKE[name](after)
    assert not tbscope.diff(before, after)
