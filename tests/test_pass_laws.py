"""What holds after every pass, on traced graphs, at every level and with every option."""

import itertools
import warnings

import pytest
import torch
from build import values_in
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from real_graphs import operations, origins, real_graph
from sweeps import counted
from test_random_models import WIDTH, models

import tbscope
from tbscope.errors import ArgumentError
from tbscope.passes.collapse_leaves import collapse_leaves
from tbscope.passes.dead_code import mark_dead
from tbscope.passes.detail_level import set_level
from tbscope.passes.hide_views import hide_plumbing
from tbscope.passes.tied_parameters import copy_shared_parameters

LEVELS = ("overview", "module", "op", "aten")
OPTIONS = list(itertools.product(LEVELS, ("keep", "drop"), ((), ("*",)), (False, True)))
KINDS = (
    *("BertModel", "MixtralForCausalLM", "MambaModel"),
    "ResNetForImageClassification",
)


def hold(graph, before):
    """Hold a graph against what every pass keeps; `before` tells what its outputs depend on."""
    graph.verify()
    nodes = set(graph.nodes)
    assert {note.node for note in graph.notes} - {None} <= nodes
    for node in graph.nodes:
        for argument in node.arguments:
            assert {value.producer for value in values_in(argument.nest)} <= nodes
    if before is not None:
        after = origins(graph)
        assert after.keys() == before.keys()
        assert all(names <= after[output] for output, names in before.items())


def passed(traced, level, dead, keep, hide):
    """Take a graph through every pass, as the pipeline does, and hold it after each."""
    graph, before = traced.copy(), origins(traced)
    hold(graph, before)
    set_level(graph, level)
    hold(graph, before)
    mark_dead(graph, dead)
    hold(graph, before)
    for pattern in sorted({node.op for node in operations(graph)}) if hide else []:
        try:
            # What is hidden may have read a parameter, on which nothing depends then.
            before = None
            hide_plumbing(graph, keep=("*",), hide=[pattern])
        except ArgumentError:
            continue
        hold(graph, before)
    hide_plumbing(graph, keep=keep)
    hold(graph, before)
    collapse_leaves(graph)
    copy_shared_parameters(graph)
    hold(graph, before)


@pytest.mark.parametrize("name", KINDS)
def test_every_pass_keeps_the_invariants_of_a_real_model(name):
    graph = real_graph(name)
    text = str(graph)
    for options in OPTIONS:
        passed(graph, *options)
    assert str(graph) == text


@settings(
    max_examples=counted(30, 12),
    deadline=None,
    suppress_health_check=[*HealthCheck],
    derandomize=True,
)
@given(model=models, training=st.booleans(), options=st.sampled_from(OPTIONS))
def test_every_pass_keeps_the_invariants_of_a_random_model(model, training, options):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = tbscope.trace(model, (torch.randn(4, WIDTH),), training=training, kernels=True)
    passed(graph, *options)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("leaves", ["node", "box"])
def test_a_real_model_is_drawn_with_every_option(level, leaves):
    graph = real_graph("ResNetForImageClassification")
    for dead, keep in itertools.product(("keep", "drop"), ((), ("*",))):
        drawing = {"level": level, "leaves": leaves, "dead": dead, "keep": keep}
        message = tbscope.to_graph_def(graph, **drawing)
        names = {node.name for node in message.node}
        read = {text.removeprefix("^").partition(":")[0] for n in message.node for text in n.input}
        assert read - {""} <= names
