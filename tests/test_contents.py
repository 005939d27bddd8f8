"""What the page tells of tensors that are neither inputs nor parameters."""

import pytest
import torch

import tbscope
from tbscope.sources.torch.subclasses import content_of


@pytest.mark.parametrize(
    ("tensor", "content"),
    [
        (torch.tensor(3), {"value": 3}),
        (torch.tensor([[0.5, -1.0]], dtype=torch.bfloat16), {"value": [0.5, -1.0]}),
        (torch.tensor([True, False]), {"value": [True, False]}),
        (torch.arange(8), {"value": list(range(8))}),
        (torch.arange(9.0), {}),
        (torch.ones(0), {}),
        (torch.ones(9, device="meta"), {}),
        (torch.ones(2, dtype=torch.complex64), {}),
        (torch.eye(2).to_sparse(), {}),
    ],
)
def test_few_values_are_told_and_many_are_not(tensor, content):
    assert content_of(tensor) == content


def test_a_constant_tells_its_value_and_is_read_by_nobody_else():
    factor = torch.tensor([2.0, 3.0])
    graph = tbscope.trace(lambda x: x * factor, torch.ones(2))
    assert [node.kind for node in graph.nodes] == ["input", "constant", "op"]
    assert graph.nodes[1].attributes == {"value": [2.0, 3.0]}
    (constant,) = (node for node in tbscope.to_graph_def(graph).node if node.op == "Const")
    assert list(constant.attr["value"].list.f) == [2.0, 3.0]
