"""A step of experts on ranks of their own: tokens go to the rank of their expert, and come back.

torchrun --nproc-per-node 2 examples/distributed/experts.py
tensorboard --logdir runs/experts
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd

import tbscope


class Experts(nn.Module):
    def __init__(self, ranks, rank):
        super().__init__()
        self.gate, self.ranks, self.rank = nn.Linear(16, ranks), ranks, rank
        self.experts = nn.ModuleList([nn.Linear(16, 16) for _ in range(ranks)])

    def forward(self, tokens):
        weight, chosen = self.gate(tokens).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        counts = [len(tokens) // self.ranks] * self.ranks
        there = all_to_all_single_autograd(tokens[order], counts, counts, dist.group.WORLD)
        there = self.experts[self.rank](there)
        back = all_to_all_single_autograd(there, counts, counts, dist.group.WORLD)
        return tokens + weight[:, None] * back[order.argsort()]


dist.init_process_group("gloo")
torch.manual_seed(0)
model = Experts(dist.get_world_size(), dist.get_rank())
optimizer = torch.optim.AdamW([*model.gate.parameters(), *model.experts[model.rank].parameters()])
with tbscope.record(model) as recording:
    model(torch.randn(8, 16)).square().mean().backward()
    for weight in model.gate.parameters():
        dist.all_reduce(weight.grad)
    optimizer.step()
writer = tbscope.SummaryWriter("runs/experts") if dist.get_rank() == 0 else None
graph = tbscope.add_graph(writer, recording.graph, ranks="all")
if writer is not None:
    writer.close()
    print(graph.summary(depth=2))
dist.destroy_process_group()
