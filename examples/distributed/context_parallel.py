"""Context parallel: each rank has a part of the sequence, and keys and values go round in a ring.

torchrun --nproc-per-node 2 examples/distributed/context_parallel.py
tensorboard --logdir runs/context_parallel
"""

import torch
import torch.distributed as dist
from torch import nn

import tbscope


class RingAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def passed_on(self, tensor):
        rank, ranks, taken = dist.get_rank(), dist.get_world_size(), torch.empty_like(tensor)
        sent = dist.isend(tensor, (rank + 1) % ranks)
        dist.recv(taken, (rank - 1) % ranks)
        sent.wait()
        return taken

    def forward(self, x):
        query, key, value = self.qkv(x).chunk(3, -1)
        weights, total = 0, 0
        for step in range(dist.get_world_size()):
            if step:
                key, value = self.passed_on(torch.stack([key, value])).unbind()
            here = (query @ key.mT / x.shape[-1] ** 0.5).exp()
            weights, total = weights + here.sum(-1, keepdim=True), total + here @ value
        return x + self.out(total / weights)


dist.init_process_group("gloo")
torch.manual_seed(0)
here = torch.randn(1, 12, 16).chunk(dist.get_world_size(), 1)[dist.get_rank()]
writer = tbscope.SummaryWriter("runs/context_parallel") if dist.get_rank() == 0 else None
graph = tbscope.add_graph(writer, RingAttention(16), here, ranks="all")
if writer is not None:
    writer.close()
    print(graph.summary(depth=2))
dist.destroy_process_group()
