"""DistributedDataParallel: a whole training step of all ranks, with the all-reduce of gradients.

torchrun --nproc-per-node 2 examples/distributed/data_parallel.py
tensorboard --logdir runs/data_parallel
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tbscope

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(8, 16) + dist.get_rank()

with tbscope.record(model) as recording:
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()

writer = tbscope.SummaryWriter("runs/data_parallel") if dist.get_rank() == 0 else None
graph = tbscope.add_graph(writer, recording.graph, ranks="all")
if writer is not None:
    writer.add_overlay("communication_bytes", graph)
    writer.close()
    print(graph.summary(depth=2))
dist.destroy_process_group()
