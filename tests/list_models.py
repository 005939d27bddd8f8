"""Models whose lists and dicts of modules are never called: their parents work between them."""

import torch
from torch import nn


class Block(nn.Module):
    """A residual block of two layers."""

    def __init__(self, width=8):
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x, *others):
        return x + self.fc(self.norm(sum(others, x))).relu()


class Embedding(nn.Module):
    """nanoGPT's form: all but the head is in one dict, and the parent adds in between."""

    def __init__(self, layers=3, width=8):
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(10, width),
                "wpe": nn.Embedding(16, width),
                "drop": nn.Dropout(0.1),
                "h": nn.ModuleList([Block(width) for _ in range(layers)]),
                "ln_f": nn.LayerNorm(width),
            }
        )
        self.head = nn.Linear(width, 10)

    def forward(self, idx):
        stack = self.transformer
        places = torch.arange(idx.shape[1])
        x = stack.drop(stack.wte(idx) + stack.wpe(places))
        for block in stack.h:
            x = block(x)
        return self.head(stack.ln_f(x))


class Turns(nn.Module):
    """diffusers' form: the members of two lists of boxes are called by turns."""

    def __init__(self, times=3):
        super().__init__()
        self.resnets = nn.ModuleList([Block() for _ in range(times)])
        self.attentions = nn.ModuleList([Block() for _ in range(times)])
        self.last = nn.Linear(8, 8)

    def forward(self, x):
        for resnet, attention in zip(self.resnets, self.attentions, strict=True):
            x = attention(resnet(x))
        return self.last(x)


class Leaves(nn.Module):
    """Two lists of leaf modules, called by turns."""

    def __init__(self, times=3):
        super().__init__()
        self.convs = nn.ModuleList([nn.Linear(8, 8) for _ in range(times)])
        self.norms = nn.ModuleList([nn.LayerNorm(8) for _ in range(times)])

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(conv(x)).relu()
        return x


class Shared(nn.Module):
    """One activation without parameters between the layers of one list."""

    def __init__(self):
        super().__init__()
        self.act = nn.ReLU()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

    def forward(self, x):
        for layer in self.layers:
            x = self.act(layer(x))
        return x


class Skips(nn.Module):
    """A U-Net with lists in lists: the parent joins skips between and inside of them."""

    def __init__(self, depth=2):
        super().__init__()

        def stage():
            return nn.ModuleList([Block(), Block(), nn.Linear(8, 8)])

        self.downs = nn.ModuleList([stage() for _ in range(depth)])
        self.mid = Block()
        self.ups = nn.ModuleList([stage() for _ in range(depth)])

    def forward(self, x):
        skips = []
        for first, second, down in self.downs:
            x = second(first(x))
            skips.append(x)
            x = down(x)
        x = self.mid(x)
        for first, second, up in self.ups:
            x = up(second(first(x + skips.pop()).neg()))
        return x


class Detector(nn.Module):
    """RT-DETR's form: a decoder whose heads are lists of its parent's, called by turns."""

    def __init__(self, layers=3):
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(layers)])
        self.heads = nn.ModuleList(
            [nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(layers)]
        )
        self.scores = nn.ModuleList([nn.Linear(8, 4) for _ in range(layers)])
        self.query = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x, points):
        scores = []
        for layer, head, score in zip(self.layers, self.heads, self.scores, strict=True):
            x = layer(x, self.query(points))
            points = (head(x) + points).sigmoid().detach()
            scores.append(score(x))
        return torch.stack(scores), points


class Borrower(nn.Module):
    """Calls a part of one module from outside of it, on what another one made of its result."""

    def __init__(self):
        super().__init__()
        self.encoder = _Encoder()
        self.decoder = Block()

    def forward(self, x):
        return self.encoder.out(self.decoder(self.encoder(x)))


class _Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.out = Block(), nn.Linear(8, 8)

    def forward(self, x):
        return self.block(x)


INPUTS = {
    Embedding: lambda: torch.zeros(1, 4, dtype=torch.long),
    Detector: lambda: (torch.rand(2, 8), torch.rand(2, 8)),
}
"""What those take that take something else than one vector of eight."""


def example(kind):
    """Give a model of a kind, and what it takes."""
    return kind(), INPUTS.get(kind, lambda: torch.rand(2, 8))()
