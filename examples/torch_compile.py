"""What torch.compile makes of a model: its graphs, and the break between them."""

import torch
from torch import nn

import tbscope


class Clipped(nn.Module):
    """Scales what is too large, by a number that Python reads."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32))
        self.decode = nn.Linear(32, 4)

    def forward(self, x):
        x = self.encode(x)
        if x.abs().max() > 3:
            x = x / 3
        return self.decode(x).softmax(-1)


model, x = Clipped(), torch.randn(8, 16)
graphs = tbscope.compile_graphs(model, x)
print(graphs)
with tbscope.SummaryWriter("runs/torch_compile") as writer:
    writer.add_graph(graphs)
print("tensorboard --logdir runs/torch_compile")
