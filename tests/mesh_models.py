"""Models that lie on device meshes of two and three dimensions, for real ranks."""

import runpy
from pathlib import Path

from parallel_models import (
    TENSOR_PLAN,
    WIDTH,
    Block,
    Experts,
    Net,
    RingAttention,
    Stage,
    by_both,
)
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module

EXAMPLES = Path(__file__).parents[1] / "examples" / "distributed"
LLAMA = runpy.run_path(str(EXAMPLES / "simulated" / "llama.py"))


def mesh_of(**sizes):
    """Give a mesh with these dimensions."""
    return init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def hybrid(ranks):
    """Sharded along one dimension, and replicated along the other one."""
    mesh = mesh_of(dp=2, shard=ranks // 2)
    model = Net()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def staged(ranks):
    """A pipeline of two stages, each of which is sharded over several ranks."""
    mesh = mesh_of(pp=2, dp=ranks // 2)
    part = fully_shard(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()), mesh=mesh["dp"])
    return Stage(mesh["pp"], "1F1B", part)


def of_sharded_experts(ranks):
    """Experts on ranks of their own, with what all have in common sharded."""
    # Of meshes whose parts are called the same, torch holds one to be the other.
    mesh = mesh_of(fsdp=2, ep=ranks // 2)
    model = nn.Sequential(Experts(mesh.get_group("ep")), nn.Linear(WIDTH, WIDTH))
    fully_shard(model[1], mesh=mesh["fsdp"])
    return model


def by_three(ranks):
    """Sharded, by tensor, and in stages."""
    mesh = mesh_of(pp=2, dp=2, tp=ranks // 4)
    part = parallelize_module(Block(), mesh["tp"], TENSOR_PLAN)
    return Stage(mesh["pp"], "GPipe", fully_shard(part, mesh=mesh["dp"]))


def by_context(ranks):
    """Sharded, by tensor, and with a sequence that goes round."""
    mesh = mesh_of(dp=2, cp=2, tp=ranks // 4)
    block = parallelize_module(Block(), mesh["tp"], TENSOR_PLAN)
    model = nn.Sequential(RingAttention(mesh.get_group("cp")), block)
    for part in model:
        fully_shard(part, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


class Tokens(nn.Module):
    """A Llama in the way of torchtitan, whose tokens are made of numbers."""

    clipped = True

    def __init__(self, mesh):
        super().__init__()
        self.llama = LLAMA["parallelize"](LLAMA["Llama"](layers=1), mesh)

    def forward(self, x):
        return self.llama((x.abs() * 10).long().flatten(1)).float()


def as_torchtitan(ranks):
    return Tokens(mesh_of(dp=2, tp=ranks // 2))


ON_FOUR = {
    "by both": by_both,
    "hybrid": hybrid,
    "staged": staged,
    "of sharded experts": of_sharded_experts,
    "as torchtitan": as_torchtitan,
}
ON_EIGHT = {"by three": by_three, "by context": by_context}
