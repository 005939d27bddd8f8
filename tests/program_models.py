"""Models of every kind that a program holds: small, with inputs."""

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import tbscope
from tests.sweeps import sampled
from tests.zoo.models import build, catalogue

__all__ = ["MODELS", "TRANSFORMERS", "Case", "example", "exported"]


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.act = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.skip = nn.Identity()

    def forward(self, x):
        y = self.act(self.bn1(self.conv1(x)))
        return self.act(self.conv2(y) + self.skip(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.layers = nn.Sequential(Residual(4), Residual(4))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(4, 5)

    def forward(self, x):
        return self.fc(torch.flatten(self.pool(self.layers(self.stem(x))), 1))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)])
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.out = nn.Conv2d(8, 3, 1)

    def forward(self, image):
        first = self.down[0](image).relu()
        second = self.down[1](self.pool(first)).relu()
        return self.out(torch.cat([self.up(second), first], dim=1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 7, batch_first=True)
        self.head = nn.Linear(7, 2)

    def forward(self, tokens):
        states, (hidden, cell) = self.lstm(self.embed(tokens))
        return self.head(states), hidden + cell


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x).relu()


class Twice(nn.Module):
    """Calls a block twice, and a layer of another block once more from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.other = Block()

    def forward(self, x):
        return self.other(self.block(self.block(x))) + self.other.fc(x)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 9, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens)))


class Keywords(nn.Module):
    """Takes a nest of tensors, by position and by name, and gives one."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x, past, *, scale=1.0, mask=None):
        y = self.fc(x) * scale + past["keys"][0] - past["keys"][1]
        y = y if mask is None else y * mask
        return {"logits": y, "past": (y.sin(), [y.cos(), 3])}


@dataclass
class Result:
    loss: torch.Tensor
    hidden: tuple[torch.Tensor, torch.Tensor]


with warnings.catch_warnings():
    # torch 2.6 calls what it has deprecated itself.
    warnings.simplefilter("ignore", FutureWarning)
    torch.export.register_dataclass(Result, serialized_type_name="tests.Result")


class GivesDataclass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x):
        y = self.fc(x)
        return Result(y.sum(), (y, y.relu()))


class Counting(nn.Module):
    """Writes into buffers, one of them of a part, and into its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.fc = nn.Linear(4, 4)
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x):
        self.steps.add_(1)
        return self.fc(self.norm(x)) * self.steps


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        y = self.fc(x)
        return torch.cond(y.sum() > 0, lambda t: t.sin() + 1, lambda t: t.cos(), (y,))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.query = nn.Linear(8, 8)
        self.both = nn.Linear(8, 16)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        y = self.norm(x)
        key, value = self.both(y).chunk(2, dim=-1)
        attend = torch.nn.functional.scaled_dot_product_attention
        return x + self.drop(attend(self.query(y), key, value))


class Quiet(nn.Module):
    """Runs a part without gradients, and a constant of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)
        self.shift = torch.tensor([1.0, 2.0])

    def forward(self, x):
        with torch.no_grad():
            y = self.fc(x)
        return self.head(y) + self.shift


@dataclass
class Case:
    """A model with its inputs.

    Attributes:
        make: Makes the model.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        training: Whether it is exported in training mode.
    """

    make: Callable[[], nn.Module]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    training: bool = False


def _case(make: Callable[[], nn.Module], *args: Any, training: bool = False, **kwargs: Any) -> Case:
    return Case(make, args, kwargs, training)


_image = torch.linspace(0, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
_tokens = torch.arange(10).reshape(2, 5) % 9
_past = {"keys": [torch.ones(2, 3), torch.zeros(2, 3)]}

MODELS = {
    "resnet": _case(ResNet, _image),
    "resnet in training": _case(ResNet, _image, training=True),
    "unet": _case(UNet, _image),
    "lstm": _case(Recurrent, _tokens),
    "called twice": _case(Twice, torch.ones(2, 4)),
    "tied weights": _case(Tied, _tokens),
    "keywords": _case(Keywords, torch.ones(2, 3), _past, mask=torch.ones(2, 3)),
    "dataclass": _case(GivesDataclass, torch.ones(2, 3)),
    "buffers": _case(Counting, torch.ones(2, 4), training=True),
    "branches": _case(Branching, torch.ones(2, 4)),
    "attention": _case(Attention, torch.ones(2, 5, 8)),
    "without gradients": _case(Quiet, torch.ones(2, 4)),
}

_EVERY = (
    *("BertModel", "ResNetForImageClassification", "SwinForImageClassification", "CLIPModel"),
    *("SegformerForSemanticSegmentation", "DebertaV2Model", "XLNetModel", "ModernBertModel"),
)
TRANSFORMERS = tuple(
    sampled(
        _EVERY,
        [
            *("BertModel", "ResNetForImageClassification", "SegformerForSemanticSegmentation"),
            "XLNetModel",
        ],
    )
)


@functools.cache
def example(name: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], tbscope.Graph]:
    """Give a model, its arguments by position and by name, and its graph of an eager call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name in MODELS:
            case = MODELS[name]
            torch.manual_seed(0)
            model, args, kwargs = case.make().train(case.training), case.args, case.kwargs
        else:
            made = build(next(entry for entry in catalogue() if entry.name == name))
            model, args, kwargs = made.model.eval(), (), made.inputs
        return model, args, kwargs, tbscope.trace(model, args, kwargs=kwargs, training=None)


@functools.cache
def exported(name: str, *, decomposed: bool = False) -> Any:
    """Give the program of a model; in torch's core operators, where it is to be decomposed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if decomposed:
            return exported(name).run_decompositions()
        model, args, kwargs, _ = example(name)
        return torch.export.export(model, args, kwargs, strict=False)
