"""A list of models to try out, each with its inputs; made of one line each.

Whoever adds one to a file of such models adds it to every test that goes through `MODELS`.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

__all__ = ["MODELS", "Case", "Holder", "add", "adding", "adding_to_a_module"]


class Case(NamedTuple):
    """One model with its inputs.

    Attributes:
        model: What is called.
        inputs: With what.
        may: The inputs, parameters and buffers from which a path may lead where nothing changes,
            as an operation reads them in vain, or several tensors are one to whoever reads them.
    """

    model: Callable[..., Any]
    inputs: tuple[Any, ...]
    may: frozenset[str]


MODELS: dict[str, Callable[[], Case]] = {}
"""The models by name, each made anew by a call."""


class Holder(nn.Module):
    """A linear layer, a bare parameter, a buffer, and a forward that is given."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.rand(4) + 0.5)
        self.register_buffer("shift", torch.rand(4))
        self.run = run

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> Any:
        return self.run(self, x, *more)


def add(name: str, model: Any, *inputs: Any, may: Iterable[str] = ()) -> None:
    """Add a model to the list.

    Args:
        name: What it is called.
        model: A function; or a class of modules, of which one is made each time.
        inputs: With what it is called; a function among them gives an input when it is called.
        may: See `Case`.
    """
    assert name not in MODELS, name

    def make() -> Case:
        made = model() if isinstance(model, type | partial) else model
        given = tuple(each() if callable(each) else each for each in inputs)
        return Case(made, given, frozenset(may))

    MODELS[name] = make


def adding(name: str, *inputs: Any, may: Iterable[str] = ()) -> Callable[[Any], Any]:
    """Add the decorated function, or class of modules, to the list."""

    def decorate(model: Any) -> Any:
        add(name, model, *inputs, may=may)
        return model

    return decorate


def adding_to_a_module(name: str, *inputs: Any, may: Iterable[str] = ()) -> Callable[[Any], Any]:
    """Add a `Holder` whose forward is the decorated function."""

    def decorate(run: Any) -> Any:
        add(name, partial(Holder, run), *inputs, may=may)
        return run

    return decorate
