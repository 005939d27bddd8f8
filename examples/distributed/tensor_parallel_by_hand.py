"""Linear layers cut by hand, as Megatron cuts them: two functions join what the ranks compute.

torchrun --nproc-per-node 2 examples/distributed/tensor_parallel_by_hand.py
tensorboard --logdir runs/tensor_parallel_by_hand
"""

import torch
import torch.distributed as dist
from torch import nn

import tbscope


def summed(ctx, x):
    dist.all_reduce(x := x.clone())
    return x


class Share(torch.autograd.Function):
    forward, backward = staticmethod(lambda ctx, x: x.view_as(x)), staticmethod(summed)


class Sum(torch.autograd.Function):
    forward, backward = staticmethod(summed), staticmethod(lambda ctx, gradient: gradient)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(16), nn.Linear(16, 32)
        self.down = nn.Linear(32, 16, bias=False)

    def forward(self, x):
        return x + Sum.apply(self.down(self.up(Share.apply(self.norm(x))).relu()))


dist.init_process_group("gloo")
model = nn.Sequential(*[Block() for _ in range(4)])
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
with tbscope.record(model) as recording:
    model(torch.ones(8, 16)).square().mean().backward()
    optimizer.step()
writer = tbscope.SummaryWriter("runs/tensor_parallel_by_hand") if dist.get_rank() == 0 else None
tbscope.add_graph(writer, recording.graph, ranks="all")
dist.destroy_process_group()
