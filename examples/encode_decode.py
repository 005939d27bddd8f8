"""Methods of a model, each as a graph of its own: encode, decode, and both after another."""

import torch
from torch import nn

import tbscope


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
        self.decoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64))

    def encode(self, pictures):
        return self.encoder(pictures.flatten(1))

    def decode(self, code):
        return self.decoder(code).sigmoid().unflatten(1, (8, 8))

    def forward(self, pictures):
        return self.decode(self.encode(pictures))


model, pictures = Autoencoder(), torch.rand(4, 8, 8)
with tbscope.SummaryWriter("runs/encode_decode") as writer:
    writer.add_graph(model, pictures)
    writer.add_graph(model.encode, pictures, tag="encode")
    writer.add_graph(model.decode, torch.rand(4, 8), tag="decode")
print("tensorboard --logdir runs/encode_decode")
