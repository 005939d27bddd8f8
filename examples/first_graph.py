"""A first graph: a model of your own, drawn as you wrote it."""

import torch
from torch import nn

import tbscope


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Classifier(nn.Module):
    def __init__(self, width=32, blocks=3, classes=10):
        super().__init__()
        self.embed = nn.Embedding(100, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, classes)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return {"scores": self.head(x.mean(dim=1))}


with tbscope.SummaryWriter("runs/first_graph") as writer:
    graph = writer.add_graph(Classifier(), torch.randint(0, 100, (2, 16)))

print(graph)
print("tensorboard --logdir runs/first_graph")
