"""ZeRO-1: each rank keeps the optimizer state of its part of the parameters, and sends its updates.

torchrun --nproc-per-node 2 examples/distributed/zero_optimizer.py
tensorboard --logdir runs/zero_optimizer
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import tbscope

dist.init_process_group("gloo")
torch.manual_seed(0)
blocks = [nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True) for _ in range(2)]
model = DistributedDataParallel(nn.Sequential(*blocks, nn.Linear(32, 8)))
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.001)


def train(x):
    model(x).square().mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


train(torch.randn(2, 10, 32))
with tbscope.record(model) as recording:
    train(torch.randn(2, 10, 32))

writer = tbscope.SummaryWriter("runs/zero_optimizer") if dist.get_rank() == 0 else None
graph = tbscope.add_graph(writer, recording.graph, ranks="all")
if writer is not None:
    writer.close()
    print(graph.summary(depth=2))
dist.destroy_process_group()
