"""Edges of gradients: what reads one on its way to the parameter reads it first, as `Assign`."""

import pytest
import torch
from torch import nn
from training_steps import POINTS, Net, recorded, squares

import tbscope

ASSIGNS = {"Assign", "AssignAdd"}


def drawn(step, **named):
    """Give the nodes that are drawn of a step, by name."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    message = tbscope.to_graph_def(recorded(model, step), **named)
    assert tbscope.lint(message) == []
    return {node.name: node for node in message.node}


def trained(model, clipped=False, **options):
    optimizer = torch.optim.Adam(model.parameters(), **options)
    squares(model)
    if clipped:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def assigned(nodes):
    return {name for name, node in nodes.items() if node.op in ASSIGNS}


def test_a_gradient_reaches_its_parameter_by_an_edge_of_references():
    nodes = drawn(squares)
    given = nodes["gradients/Linear/weight_grad"]
    assert (given.op, given.attr["op"].s) == ("Assign", b"weight_grad")
    assert assigned(nodes) == {f"gradients/Linear/{name}_grad" for name in ("weight", "bias")}


def test_a_gradient_that_is_added_to_reads_the_new_one_first():
    def twice(model):
        squares(model)
        squares(model)

    nodes = drawn(twice)
    once, again = nodes["gradients/Linear/bias_grad"], nodes["gradients.1/Linear.1/bias_grad"]
    assert (once.op, again.op) == ("Assign", "AssignAdd")
    assert again.input[0].startswith("gradients.1/Linear.1/")
    assert again.input[1] == once.name


@pytest.mark.parametrize("foreach", [True, False])
def test_an_optimizer_reads_gradients_first(foreach):
    nodes = drawn(lambda model: trained(model, foreach=foreach))
    readers = [nodes[name] for name in assigned(nodes) if name.startswith("optimizer")]
    assert readers
    assert all("_grad" in node.input[0] for node in readers)
    # What reads none keeps its own name.
    assert any("addcdiv" in node.op for node in nodes.values())


def test_a_gradient_that_is_clipped_is_one_still():
    nodes = drawn(lambda model: trained(model, clipped=True, foreach=False))
    readers = [nodes[name] for name in assigned(nodes) if name.startswith("optimizer")]
    assert readers
    assert all(node.input[0].startswith("clip_grad_norm_") for node in readers)


def test_a_graph_without_gradients_has_no_such_edge():
    graph = tbscope.trace(Net(), POINTS)
    assert not {node.op for node in tbscope.to_graph_def(graph).node} & ASSIGNS
