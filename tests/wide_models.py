"""Models and graphs that are too wide, too long or too dense to be drawn as they are."""

from collections.abc import Iterator

import torch
from tensorboard.compat.proto.graph_pb2 import GraphDef
from torch import Tensor, nn
from torch.nn import functional


def long_list() -> nn.Module:
    """A list of 2,000 modules of two kinds."""
    return nn.Sequential(*(nn.Linear(2, 2) if at % 2 else nn.ReLU() for at in range(2000)))


class Unrolled(nn.Module):
    """One cell, called 5,000 times."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state = x
        for _ in range(5000):
            state = self.cell(x, state) if isinstance(self.cell, nn.GRUCell) else self.cell(state)
        return state


class Functional(nn.Module):
    """300 operations in one forward."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(100):
            x = x + torch.relu(x) * 0.5
        return x


class DenseLayer(nn.Module):
    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(width, 4 * growth, 1)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1)

    def forward(self, *features: Tensor) -> Tensor:
        x = self.conv1(torch.relu(self.norm1(torch.cat(features, 1))))
        return self.conv2(torch.relu(self.norm2(x)))


class DenseBlock(nn.ModuleDict):
    def __init__(self, count: int, width: int, growth: int) -> None:
        super().__init__()
        for at in range(count):
            self[f"denselayer{at + 1}"] = DenseLayer(width + at * growth, growth)

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.values():
            features.append(layer(*features))
        return torch.cat(features, 1)


class DenseNet(nn.Module):
    """A DenseNet of 121 layers, narrow."""

    def __init__(self, counts: tuple[int, ...] = (6, 12, 24, 16), growth: int = 4) -> None:
        super().__init__()
        width = 8
        self.features = nn.Sequential()
        self.features.add_module("conv0", nn.Conv2d(3, width, 3, padding=1))
        for number, count in enumerate(counts, 1):
            self.features.add_module(f"denseblock{number}", DenseBlock(count, width, growth))
            width += count * growth
            if number < len(counts):
                steps = nn.BatchNorm2d(width), nn.Conv2d(width, width // 2, 1), nn.AvgPool2d(2)
                self.features.add_module(f"transition{number}", nn.Sequential(*steps))
                width //= 2
        self.classifier = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.features(x))
        return self.classifier(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class FlatDense(nn.Module):
    """58 layers, each reading all before it, in one forward."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(at + 1, 1, 3, padding=1) for at in range(58))
        self.head = nn.Conv2d(59, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for conv in self.convs:
            features.append(torch.relu(conv(torch.cat(features, 1))))
        return self.head(torch.cat(features, 1))


class UNet(nn.Module):
    """Seven steps down and seven up, with a skip connection at each."""

    def __init__(self) -> None:
        super().__init__()
        for at in range(7):
            for side, width in (("down", 2), ("up", 4)):
                steps = nn.Conv2d(width, 2, 3, padding=1), nn.ReLU()
                self.add_module(f"{side}{at}", nn.Sequential(*steps))

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for at in range(7):
            x = self.get_submodule(f"down{at}")(x)
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        for at in reversed(range(7)):
            x = torch.cat([functional.interpolate(x, scale_factor=2.0), skips[at]], 1)
            x = self.get_submodule(f"up{at}")(x)
        return x


class MaskedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(4, 4)
        self.out = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        weights = torch.softmax(self.query(x) @ x.transpose(-1, -2) + mask, -1)
        return x + self.out(weights @ x)


class Masked(nn.Module):
    """40 layers on one level, all of which read one mask."""

    def __init__(self) -> None:
        super().__init__()
        for at in range(40):
            self.add_module(f"layer{at}", MaskedLayer())

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        mask = (1 - mask) * -1e4
        for layer in self.children():
            x = layer(x, mask)
        return x


class Heads(nn.Module):
    """40 heads on one level, that read one tensor and are joined."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        for at in range(40):
            self.add_module(f"head{at}", nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
        self.out = nn.Linear(160, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        heads = [self.get_submodule(f"head{at}")(x) for at in range(40)]
        return self.out(torch.cat(heads, -1))


class Cached(nn.Module):
    """24 layers that read and give a state each, beside what flows through them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.GRUCell(4, 4) for _ in range(24))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor, past: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, Tensor]]:
        states = {}
        for at, layer in enumerate(self.layers):
            states[f"state{at}"] = x = layer(x, past[at])
        return self.head(x), states


MODELS = {
    "a list of 2000": (long_list, (torch.ones(1, 2),)),
    "5000 steps": (lambda: Unrolled(nn.GRUCell(2, 2)), (torch.ones(1, 2),)),
    "5000 calls": (lambda: Unrolled(nn.Linear(2, 2)), (torch.ones(1, 2),)),
    "300 operations": (Functional, (torch.ones(1, 2),)),
    "densenet": (DenseNet, (torch.ones(1, 3, 32, 32),)),
    "flat dense": (FlatDense, (torch.ones(1, 1, 8, 8),)),
    "unet": (UNet, (torch.ones(1, 2, 128, 128),)),
    "masked": (Masked, (torch.ones(1, 5, 4), torch.ones(1, 5, 5))),
    "heads": (Heads, (torch.ones(1, 4),)),
    "cached": (Cached, (torch.ones(1, 4), tuple(torch.ones(1, 4) for _ in range(24)))),
}


def synthetic(stages: int) -> GraphDef:
    """Give a net of stages, each of 50 blocks of 10 operations: 500 nodes."""
    message = GraphDef()
    message.node.add(name="x", op="Input")
    last = "x"
    for name, op in _synthetic_nodes(stages):
        node = message.node.add(name=name, op=op, input=[last])
        shape = node.attr["_output_shapes"].list.shape.add()
        shape.dim.add(size=1)
        shape.dim.add(size=64)
        last = name
    message.node.add(name="out", op="Output", input=[last])
    return message


def _synthetic_nodes(stages: int) -> Iterator[tuple[str, str]]:
    ops = ("Linear", "relu", "add", "mul", "LayerNorm")
    for stage in range(stages):
        for block in range(50):
            for step in range(10):
                op = ops[step % 5]
                yield f"stage{stage}/{block}/{op}{'.2nd' if step > 4 else ''}", op
