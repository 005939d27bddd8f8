"""Gradients and optimizer cut by hand, as DeepSpeed does it: each rank updates a part, in float32.

torchrun --nproc-per-node 2 examples/distributed/zero_by_hand.py
tensorboard --logdir runs/zero_by_hand
"""

import torch
import torch.distributed as dist
from torch import nn

import tbscope

dist.init_process_group("gloo")
torch.manual_seed(0)
rank, ranks = dist.get_rank(), dist.get_world_size()
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)).bfloat16()
parameters = [*model.parameters()]
flat = torch.cat([each.detach().flatten() for each in parameters])
for each, values in zip(parameters, flat.split([one.numel() for one in parameters]), strict=True):
    each.data = values.view_as(each)
part = flat.chunk(ranks)[rank]
master = nn.Parameter(part.float())
optimizer = torch.optim.AdamW([master])
x = torch.randn(8, 16, dtype=torch.bfloat16)


def step():
    model(x).square().mean().backward()
    gradients = torch.cat([each.grad.flatten() for each in parameters])
    gradient = torch.empty_like(part)
    dist.reduce_scatter_tensor(gradient, gradients)
    master.grad = gradient.float() / ranks
    torch.nn.utils.clip_grad_norm_([master], 1.0)
    optimizer.step()
    part.copy_(master.detach())
    dist.all_gather_into_tensor(flat, part)
    model.zero_grad()


step()
with tbscope.record(model) as recording:
    step()
writer = tbscope.SummaryWriter("runs/zero_by_hand") if rank == 0 else None
tbscope.add_graph(writer, recording.graph, ranks="all")
dist.destroy_process_group()
