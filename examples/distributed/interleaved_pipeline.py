"""A Llama in four stages, two on each rank, with a schedule that interleaves eight micro batches.

torchrun --nproc-per-node 2 examples/distributed/interleaved_pipeline.py
tensorboard --logdir runs/interleaved_pipeline
"""

import torch
import torch.distributed as dist
from simulated.llama import LENGTH, VOCABULARY, Llama
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

import tbscope


def stage(index):
    model = Llama(layers=1)
    if index > 0:
        model.embeddings = None
    if index < 3:
        model.norm = model.output = None
    return model


def loss_of(logits, tokens):
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


dist.init_process_group("gloo")
rank = dist.get_rank()
parts = [stage(index) for index in (rank, rank + 2)]
stages = [PipelineStage(parts[k], rank + 2 * k, 4, torch.device("cpu")) for k in range(2)]
schedule = ScheduleInterleaved1F1B(stages, n_microbatches=8, loss_fn=loss_of)
optimizer = torch.optim.AdamW([each for part in parts for each in part.parameters()])
tokens = torch.randint(VOCABULARY, (16, LENGTH))
given = [tokens] if rank == 0 else []
schedule.step(*given, target=tokens)  # Finds out shapes, which the ranks tell each other.
optimizer.zero_grad()
with tbscope.record(*parts) as recording:
    schedule.step(*given, target=tokens)
    optimizer.step()
    optimizer.zero_grad()
writer = tbscope.SummaryWriter("runs/interleaved_pipeline") if rank == 0 else None
tbscope.add_graph(writer, recording.graph, ranks="all", color_by="stage")
dist.destroy_process_group()
