"""Tensor parallel by parallelize_module: each rank has some columns and rows of the weights.

torchrun --nproc-per-node 2 examples/distributed/tensor_parallel.py
tensorboard --logdir runs/tensor_parallel
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tbscope


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(FeedForward(), FeedForward())
mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
for block in model:
    parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

writer = tbscope.SummaryWriter("runs/tensor_parallel") if dist.get_rank() == 0 else None
graph = tbscope.add_graph(writer, model, torch.randn(4, 16), ranks="all", color_by="mesh")
if writer is not None:
    writer.close()
    print(graph.summary(depth=2))
dist.destroy_process_group()
