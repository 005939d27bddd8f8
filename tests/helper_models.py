"""Models that do their work in helper functions and in loops, as strangers write them."""

import contextlib
import functools

import torch
from torch import nn


def rotate(x, angle):
    """Rotate pairs, in six operations."""
    one, two = x.chunk(2, -1)
    sine, cosine = torch.sin(angle), torch.cos(angle)
    return torch.cat([one * cosine - two * sine, two * cosine + one * sine], -1)


def noted(function):
    """A decorator that runs an operation of its own."""

    @functools.wraps(function)
    def wrapper(x, *args):
        return function(x + 0.5, *args)

    return wrapper


def silent(function):
    """A decorator that runs nothing."""

    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


@silent
def squash(x):
    return torch.tanh(x) * torch.sigmoid(x)


class Scale:
    """An object that is called like a function."""

    def __call__(self, x):
        return (x * 2).exp() - 1


def pieces(x):
    """A generator: its operations run in turns with those of whoever asks it."""
    for at in range(3):
        yield torch.relu(x + at) * 2


@contextlib.contextmanager
def around():
    yield torch.ones(2).cumsum(0)


class Helped(nn.Module):
    """Sixty operations, most of them in helpers."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.scale = Scale()

    def turn(self, x):
        return rotate(x, x.sum()) + rotate(x, x.mean())

    def forward(self, x):
        x = self.fc(x)
        for _ in range(3):
            x = self.turn(x)
        x = squash(x) + squash(x - 1)
        above = lambda y: (y + 1).abs()
        return self.scale(x) + above(x)


class Decoder(nn.Module):
    """A decoder's loop as it is written by hand: the same modules in each step."""

    def __init__(self, steps=30, cells=2):
        super().__init__()
        self.steps = steps
        self.attn = nn.Sequential(nn.Linear(8, 4), nn.Tanh())
        self.cells = nn.ModuleList(nn.GRUCell(4, 4) for _ in range(cells))
        self.out = nn.Linear(4, 4)

    def forward(self, x):
        states, found = [x for _ in self.cells], []
        for _ in range(self.steps):
            x = self.attn(torch.cat([x, states[0]], -1))
            for at, cell in enumerate(self.cells):
                x = states[at] = cell(x, states[at])
            found.append(self.out(torch.tanh(x) * 2))
        return torch.stack(found)


class Seq2Seq(nn.Module):
    """A decoder in a model."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 4), Decoder()

    def forward(self, x):
        return self.decoder(self.encoder(x))


class TimeMix(nn.Module):
    """RWKV's form: a recurrence over time in a function, beside projections."""

    def __init__(self, width=4):
        super().__init__()
        self.key, self.value = nn.Linear(width, width), nn.Linear(width, width)
        self.decay = nn.Parameter(torch.rand(width))

    def recurrence(self, key, value):
        total, weight = torch.zeros_like(key[0]), torch.zeros_like(key[0])
        found = []
        for k, v in zip(key.unbind(), value.unbind(), strict=True):
            top = torch.maximum(weight - self.decay, k)
            total = torch.exp(weight - top) * total + torch.exp(k - top) * v
            weight = top
            found.append(total)
        return torch.stack(found)

    def forward(self, x):
        return self.recurrence(self.key(x), self.value(x)) * torch.sigmoid(x)


def decode_boxes(anchors, deltas):
    """Faster R-CNN's form: box arithmetic in a function, once for each level."""
    width, height = anchors[:, 2] - anchors[:, 0], anchors[:, 3] - anchors[:, 1]
    x, y = anchors[:, 0] + 0.5 * width, anchors[:, 1] + 0.5 * height
    x, y = deltas[:, 0] * width + x, deltas[:, 1] * height + y
    width, height = torch.exp(deltas[:, 2]) * width, torch.exp(deltas[:, 3]) * height
    sides = [x - 0.5 * width, y - 0.5 * height, x + 0.5 * width, y + 0.5 * height]
    return torch.stack(sides, -1)


class Detector(nn.Module):
    """A head that decodes the boxes of four levels and joins them, with many outputs."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(4, 4)
        self.heads = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def anchors(self, size):
        rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        corners = torch.stack([rows, columns, rows + 1, columns + 1], -1).reshape(-1, 4).float()
        return corners / size + 0.5 / size

    def forward(self, x):
        x = self.backbone(x)
        found = {}
        for at, head in enumerate(self.heads):
            found[f"boxes{at}"] = decode_boxes(self.anchors(3), head(x))
        return found | {"all": torch.cat(list(found.values()))}


def example(kind):
    """Give a model and its inputs."""
    torch.manual_seed(0)
    sizes = {TimeMix: (20, 2, 4), Detector: (9, 4)}
    return kind().eval(), torch.rand(sizes.get(kind, (2, 4)))
