"""A fine-tuning loop: frozen layers, a new head, and the step of the training that runs, drawn.

python examples/fine_tuning.py
tensorboard --logdir runs/fine_tuning
"""

import torch
from torch import nn

import tbscope

torch.manual_seed(0)
backbone = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU())
model = nn.Sequential(backbone.requires_grad_(False), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model[1].parameters(), lr=1e-2)
inputs, labels = torch.randn(64, 16), torch.randint(0, 4, (64,))

with tbscope.SummaryWriter("runs/fine_tuning") as writer:
    # Nothing in the loop knows of it: the first step is drawn, and the loop goes on.
    watched = writer.watch(model)
    for batch, targets in zip(inputs.split(16), labels.split(16), strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), targets).backward()
        optimizer.step()
    norms = {
        node.attributes["gradient_of"]: node.attributes["gradient_norm"]
        for node in watched.graph.nodes
        if "gradient_norm" in node.attributes
    }
    writer.add_overlay("gradient_norm", watched.graph, norms)

learnt = {
    node.attributes["gradient_of"]
    for node in watched.graph.nodes
    if "gradient_of" in node.attributes
}
print("gradients of:", ", ".join(sorted(learnt)))
print("tensorboard --logdir runs/fine_tuning")
