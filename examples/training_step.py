"""The whole training step: model, gradients and optimizer, three boxes in a row.

python examples/training_step.py
tensorboard --logdir runs/training_step
"""

import torch
from torch import nn

import tbscope

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 26 * 26, 10)
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
images, labels = torch.randn(4, 1, 28, 28), torch.randint(0, 10, (4,))

with tbscope.record(model) as recording:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

with tbscope.SummaryWriter("runs/training_step") as writer:
    writer.add_graph(recording.graph)
    writer.add_overlay("saved_bytes", recording.graph)

print(recording.graph.summary(columns=["flops", "backward_flops", "saved_bytes"]))
