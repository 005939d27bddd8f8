"""Experts on ranks of their own: tokens go there and come back, by all-to-all.

torchrun --nproc-per-node 2 examples/distributed/experts.py
tensorboard --logdir runs/experts
"""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn

import tbscope


class Experts(nn.Module):
    def __init__(self, ranks, rank):
        super().__init__()
        self.gate = nn.Linear(16, ranks)
        self.experts = nn.ModuleList([nn.Linear(16, 16) for _ in range(ranks)])
        self.ranks, self.rank = ranks, rank

    def forward(self, tokens):
        chosen = self.gate(tokens).argmax(-1)
        order = chosen.argsort(stable=True)
        counts = torch.full((self.ranks,), len(tokens) // self.ranks).tolist()
        there = functional.all_to_all_single(tokens[order], counts, counts, dist.group.WORLD)
        done = self.experts[self.rank](there)
        back = functional.all_to_all_single(done, counts, counts, dist.group.WORLD)
        return tokens + back[order.argsort()]


dist.init_process_group("gloo")
torch.manual_seed(0)
model = Experts(dist.get_world_size(), dist.get_rank())
writer = tbscope.SummaryWriter("runs/experts") if dist.get_rank() == 0 else None
graph = tbscope.add_graph(writer, model, torch.randn(8, 16), ranks="all")
if writer is not None:
    writer.close()
    print(graph.summary(depth=2))
dist.destroy_process_group()
