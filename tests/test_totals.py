"""What modules own together, against torch's own count."""

import pytest
import torch
from build import GraphBuilder
from torch import nn

import tbscope
from tbscope.figures.totals import Totals, parameter_totals
from tbscope.ir.graph import Parameter


class Tied(nn.Module):
    """Two layers of one weight, one of them called twice, and a frozen one."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.body = nn.ModuleList([nn.Linear(4, 4), nn.BatchNorm1d(4)])
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight
        self.body[0].weight.requires_grad_(False)

    def forward(self, x):
        y = self.body[0](self.body[0](self.embed(x)))
        return self.head(self.body[1](y))


@pytest.fixture(scope="module")
def tied():
    net = Tied()
    return net, tbscope.trace(net, torch.tensor([1, 2]))


def counted(module):
    """Count what torch says that a module holds."""
    parameters, buffers = list(module.parameters()), list(module.buffers())
    return Totals(
        sum(p.numel() for p in parameters),
        sum(p.numel() for p in parameters if p.requires_grad),
        sum(p.numel() * p.element_size() for p in (*parameters, *buffers)),
    )


def test_the_root_owns_everything_once(tied):
    net, graph = tied
    assert parameter_totals(graph)[graph.find("Tied").scope] == counted(net)


def test_each_scope_owns_what_its_module_holds(tied):
    net, graph = tied
    totals = parameter_totals(graph)
    for scope in graph.scopes():
        assert totals[scope] == counted(net.get_submodule(scope.qualified_name or "")), scope


def test_what_is_not_initialised_counts_nothing():
    net = nn.LazyLinear(3)
    graph = tbscope.trace(lambda x: (x, net)[0] * 1, torch.ones(2))
    assert parameter_totals(graph) == {}


def test_parameters_without_a_number_are_told_by_the_name_of_their_module():
    build = GraphBuilder()
    weight = Parameter("weight", "parameter", (3,), "float32", 12, True)
    for path, name in (
        ("Net/A[a]", "a"),
        ("Net/A[a].1", "a"),
        ("Net/B[b]", "b"),
        ("Net/B[b].1", None),
    ):
        build.call(path, qualified_name=name, parameters=(weight,))
    totals = parameter_totals(build.graph)
    assert totals[build.scope("Net")].parameters == 9
