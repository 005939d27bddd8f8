"""Four micro batches of DistributedDataParallel, which reduces the gradients after the last.

torchrun --nproc-per-node 2 examples/distributed/accumulation.py
tensorboard --logdir runs/accumulation
"""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tbscope

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)))
optimizer = torch.optim.AdamW(model.parameters())
images, labels = torch.randn(32, 16), torch.randint(4, (32,))


def step():
    batches = [*zip(images.chunk(4), labels.chunk(4), strict=True)]
    for number, (x, y) in enumerate(batches, 1):
        with model.no_sync() if number < len(batches) else nullcontext():
            (nn.functional.cross_entropy(model(x), y) / len(batches)).backward()
    optimizer.step()
    optimizer.zero_grad()


for _ in range(2):
    step()  # The first steps arrange the buckets of gradients.
with tbscope.record(model) as recording:
    step()

writer = tbscope.SummaryWriter("runs/accumulation") if dist.get_rank() == 0 else None
tbscope.add_graph(writer, recording.graph, ranks="all")
if writer is not None:
    writer.close()
dist.destroy_process_group()
