"""A model that does something else for long inputs: a graph for each input shape."""

import torch
from torch import nn

import tbscope


class Reader(nn.Module):
    """Pools a long text before it reads it."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.pool = nn.AvgPool1d(4)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)

    def forward(self, ids):
        x = self.embed(ids)
        while x.shape[1] > 64:
            x = self.pool(x.transpose(1, 2)).transpose(1, 2)
        return self.layer(x).mean(1)


model = Reader()
with tbscope.SummaryWriter("runs/graph_per_input_shape") as writer:
    for length in (32, 256, 1024):
        # Numbers in tags are put in order as numbers: 32, 256, 1024.
        graph = writer.add_graph(model, torch.zeros(1, length).long(), tag=f"{length} tokens")
        writer.add_overlay(f"{length} tokens, FLOPs", graph, "flops")
print("tensorboard --logdir runs/graph_per_input_shape")
