"""The loss at which a backward pass begins: what the user makes of a model's result."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from tbscope.checks import ask, check_truth
from tbscope.errors import ArgumentError
from tbscope.sources.torch.signatures import with_article
from tbscope.words import shown

__all__ = ["Loss", "check_loss", "loss_of"]

Loss: TypeAlias = Callable[[Any], Any]
"""Makes a loss of what a model gives."""


_FIX = "add_graph(model, x, backward=True, loss=lambda out: out.pow(2).mean())"


def check_loss(loss: object, backward: object) -> None:
    """Check the options of a training step, before anything has run for it.

    Args:
        loss: What makes a loss; None for nothing.
        backward: Whether a backward pass is run.
    Raises:
        ArgumentError: One is none.
    """
    check_truth("backward", backward)
    if loss is not None and not callable(loss):
        raise ArgumentError(
            f"loss={shown(loss)} cannot be called",
            why="loss is a function that makes a scalar of what the model gives",
            fix="loss=lambda out: torch.nn.functional.cross_entropy(out, target)",
        )


def loss_of(result: Any, loss: Loss | None, *, backward: bool) -> torch.Tensor:
    """Return the loss of what a model gave.

    Args:
        result: What the model gave.
        loss: What makes a loss of it; None where the model gives one itself: a scalar, or
            something with a scalar called `loss`.
        backward: Whether a backward pass is to begin at it.
    Raises:
        ArgumentError: That is no tensor, or nothing at which a backward pass could begin.
    """
    found: Any
    if loss is not None:
        said = f"loss={shown(loss)}"
        found = ask(*(loss, result), option="loss", place="the model's result", fix=_FIX)
    elif isinstance(result, Mapping):
        found, said = result.get("loss"), "the model's result"
    else:
        found, said = getattr(result, "loss", result), "the model's result"
    if not isinstance(found, torch.Tensor):
        raise ArgumentError(
            f"{said} is no loss: it is {with_article(found)}",
            why="a loss is a tensor",
            fix=_FIX,
        )
    if backward and found.numel() != 1:
        raise ArgumentError(
            f"no backward pass can begin at {said}: it is a tensor of shape {tuple(found.shape)}",
            why="a backward pass begins at a tensor of one element",
            fix=_FIX,
        )
    if backward and not found.requires_grad:
        raise ArgumentError(
            f"no backward pass can begin at {said}: nothing in it needs a gradient",
            why="no parameter that requires a gradient was used, or gradients were switched off",
            fix="have a parameter require a gradient, or leave backward=True out",
        )
    return found
