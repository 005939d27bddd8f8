"""Accelerate: its TensorBoard tracker is a writer; the next training step is drawn."""

import torch
from accelerate import Accelerator

import tbscope

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.DataLoader(torch.rand(32, 8), batch_size=8)

accelerator = Accelerator(log_with="tensorboard", project_dir="runs")
accelerator.init_trackers("accelerate")
model, optimizer, data = accelerator.prepare(model, optimizer, data)

# Only the first process has a writer, and only there is anything drawn.
watched = tbscope.watch(accelerator.get_tracker("tensorboard"), model)
for points in data:
    optimizer.zero_grad()
    accelerator.backward(model(points).pow(2).mean())
    optimizer.step()
accelerator.end_training()

if watched.graph is not None:
    print(watched.graph.summary(depth=1))
