"""The backward pass of modules that ranks share: each gradient stands in the module it is of."""

import pytest
import torch
from parallel_models import ON_TWO, TENSOR_PLAN, Net
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module

import tbscope

pytestmark = pytest.mark.filterwarnings("ignore")


def by_both(ranks):
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("dp", "tp"))
    model = Net()
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], TENSOR_PLAN)
        fully_shard(block, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


MODELS = {**ON_TWO, "by both": by_both}


def recorded(name, ranks):
    with tbscope.fake_world(ranks):
        model = MODELS[name](ranks)
        with tbscope.record(model) as recording:
            model(torch.ones(2, 2, 8)).square().sum().backward()
    return recording.graph


@pytest.mark.parametrize(
    ("name", "ranks", "own"),
    [
        ("by tensor", 2, set()),
        ("by both", 4, set()),
        ("sharded", 2, set()),
        # What leaves the module that is called is no part of it.
        ("by sequence", 2, {"local_tensor"}),
    ],
)
def test_the_backward_pass_stands_in_the_modules_and_in_no_circle(name, ranks, own):
    graph = recorded(name, ranks)
    graph.verify()
    after = [node for node in graph.nodes if str(node.scope).startswith("gradients")]
    assert {node.phase for node in after} == {"backward"}
    at_top = {node.op for node in after if node.scope.path == "gradients"}
    assert at_top - own == {"ones_like", "expand", "pow", "mul"}
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []


def test_gradients_are_scattered_in_the_module_whose_parameters_they_are_of():
    graph = recorded("by both", 4)
    scattered = [node for node in graph.nodes if node.op == "reduce_scatter_single"]
    blocks = "gradients/FSDPNet/ModuleList[blocks]/FSDPBlock"
    assert [node.scope.path for node in scattered] == [
        f"{blocks}[1]/reduce_scatter",
        "gradients/FSDPNet/reduce_scatter",
        f"{blocks}[0]/reduce_scatter",
    ]
