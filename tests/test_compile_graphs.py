"""What torch.compile captures: the graphs tell what an eager call of the model tells."""

import pytest
import torch

import tbscope
from tests.agreement import check_whole, disagreements
from tests.program_models import MODELS, TRANSFORMERS, example

pytestmark = pytest.mark.filterwarnings("ignore")


# What the compiler leaves to Python, unless it is told otherwise.
WHOLE = [name for name in MODELS if name != "lstm"]


@pytest.mark.parametrize("name", WHOLE)
def test_a_captured_model_tells_what_an_eager_call_tells(name):
    model, args, kwargs, eager = example(name)

    graphs = tbscope.compile_graphs(model, *args, training=None, **kwargs)

    (graph,) = graphs.values()
    check_whole(graph)
    assert disagreements(eager, graph) == {}
    assert {node.name for node in graph.inputs} == {node.name for node in eager.inputs}
    assert [each.name for each in graph.outputs] == [each.name for each in eager.outputs]
    assert tbscope.graph_costs(graph).flops == tbscope.graph_costs(eager).flops
    assert graphs.breaks == ()
    assert str(graphs.overview) == str(graph)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_real_model_tells_what_an_eager_call_tells(name):
    model, args, kwargs, eager = example(name)

    graphs = tbscope.compile_graphs(model, *args, training=None, **kwargs)
    print(graphs)
    (graph,) = graphs.values()
    check_whole(graph)
    assert disagreements(eager, graph) == {}
