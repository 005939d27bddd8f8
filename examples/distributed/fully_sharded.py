"""FSDP2: parameters are gathered before each block, and their gradients reduced and scattered.

torchrun --nproc-per-node 2 examples/distributed/fully_sharded.py
tensorboard --logdir runs/fully_sharded
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import tbscope

dist.init_process_group("gloo")
torch.manual_seed(0)
blocks = [nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True) for _ in range(2)]
model = nn.Sequential(*blocks, nn.Linear(32, 8))
mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
for block in blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)

with tbscope.record(model) as recording:
    model(torch.randn(2, 10, 32)).square().mean().backward()

writer = tbscope.SummaryWriter("runs/fully_sharded") if dist.get_rank() == 0 else None
graph = tbscope.add_graph(writer, recording.graph, ranks="all")
if writer is not None:
    writer.add_overlay("communication_bytes/dp", graph)
    writer.close()
    print(graph.summary(depth=2))
dist.destroy_process_group()
