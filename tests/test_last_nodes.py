"""The last operation of each call of a program."""

import operator

import pytest
import torch

from tbscope.sources.programs.last_nodes import last_nodes

INNER = {"": ("", "Net"), "fc": ("fc", "Linear")}
OUTER = {"": ("", "Net")}


def program(*nodes):
    """Give a graph of nodes: what each calls, the modules around it, and what it gives."""
    graph = torch.fx.Graph()
    for target, stack, told in nodes:
        node = graph.call_function(target)
        node.meta = {"nn_module_stack": stack, "val": told}
    return graph


def test_what_runs_in_a_part_runs_in_what_is_around_it():
    graph = program((torch.relu, OUTER, torch.ones(1)), (torch.relu, INNER, torch.ones(1)))
    outer, inner = graph.nodes
    assert last_nodes(graph) == {("", "fc"): inner, ("",): inner, (): inner}
    assert outer not in last_nodes(graph).values()


def test_each_call_has_a_last_node_of_its_own():
    graph = program((torch.relu, INNER, torch.ones(1)), (torch.relu, OUTER, torch.ones(1)))
    inner, outer = graph.nodes
    assert last_nodes(graph) == {("", "fc"): inner, ("",): outer, (): outer}


@pytest.mark.parametrize(
    ("target", "told", "counts"),
    [
        (torch.relu, torch.ones(1), True),
        (torch.relu, (torch.ones(1), None), True),
        (operator.getitem, torch.ones(1), False),
        (torch.relu, 3, False),
        (torch.relu, None, False),
    ],
)
def test_only_what_computes_a_tensor_counts(target, told, counts):
    graph = program((torch.relu, OUTER, torch.ones(1)), (target, OUTER, told))
    assert (last_nodes(graph)[("",)] is list(graph.nodes)[1]) is counts
