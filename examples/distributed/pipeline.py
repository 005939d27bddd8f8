"""A pipeline of torch.distributed.pipelining: stages side by side, joined by what they send.

torchrun --nproc-per-node 2 examples/distributed/pipeline.py
tensorboard --logdir runs/pipeline
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import tbscope

dist.init_process_group("gloo")
torch.manual_seed(0)
rank, stages = dist.get_rank(), dist.get_world_size()
part = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
stage = PipelineStage(part, rank, stages, torch.device("cpu"))
schedule = Schedule1F1B(stage, n_microbatches=2, loss_fn=nn.MSELoss())
data = torch.randn(8, 16)


def step():
    schedule.step(*([data] if stage.is_first else []), target=data if stage.is_last else None)


step()  # The first one finds out shapes, which the ranks tell each other.
with tbscope.record(part) as recording:
    step()

writer = tbscope.SummaryWriter("runs/pipeline") if rank == 0 else None
graph = tbscope.add_graph(writer, recording.graph, ranks="all", color_by="stage")
if writer is not None:
    writer.close()
    print(graph.summary(depth=2))
dist.destroy_process_group()
