"""A step of HSDP as one of 8 simulated ranks: shards on each of 2 machines, which sum gradients.

python examples/distributed/simulated/hybrid_sharded.py
tensorboard --logdir runs/hybrid_sharded
"""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import tbscope


def parallelize(mesh):
    blocks = [nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True) for _ in range(2)]
    model = nn.Sequential(*blocks, nn.Linear(32, 8))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(model, optimizer, x):
    model(x).square().mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


if __name__ == "__main__":
    with tbscope.fake_world(8, mesh={"machine": 2, "gpu": 4}) as mesh:
        model = parallelize(mesh)
        optimizer = torch.optim.AdamW(model.parameters())
        train(model, optimizer, torch.randn(2, 10, 32))
        with tbscope.record(model) as recording:
            train(model, optimizer, torch.randn(2, 10, 32))
    with tbscope.SummaryWriter("runs/hybrid_sharded") as writer:
        writer.add_graph(recording.graph, color_by="mesh")
    print(recording.graph.summary(depth=2))
