"""The loss at which a backward pass begins: what the user makes of a model's result."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from tbscope.checks import check_truth
from tbscope.errors import ArgumentError
from tbscope.sources.torch.misfits import with_article
from tbscope.words import shown

__all__ = ["Loss", "check_loss", "loss_of"]

Loss: TypeAlias = Callable[[Any], Any]
"""Makes a loss of what a model gives."""


def check_loss(loss: object, backward: object, *, profile: object) -> None:
    """Check the options of a training step, before anything has run for it.

    Raises:
        ArgumentError: One is none, or does not go with another.
    """
    check_truth("backward", backward)
    if loss is not None and not callable(loss):
        raise ArgumentError(
            f"loss={shown(loss)} cannot be called",
            why="loss is a function that makes a scalar of what the model gives",
            fix="loss=lambda out: torch.nn.functional.cross_entropy(out, target)",
        )
    if profile and (loss is not None or backward):
        raise ArgumentError(
            f"profile={shown(profile)} measures no loss and no backward pass",
            why="further runs of the model alone are measured",
            fix="leave one of them out",
        )


def loss_of(result: Any, loss: Loss | None) -> torch.Tensor:
    """Return the scalar at which a backward pass of a model begins.

    Args:
        result: What the model gave.
        loss: What makes a loss of it; None where the model gives one itself: a scalar, or
            something with a scalar called `loss`.
    Raises:
        ArgumentError: That is no scalar with a gradient.
    """
    found: Any
    if loss is not None:
        found, said = loss(result), "loss=..."
    elif isinstance(result, Mapping):
        found, said = result.get("loss"), "the model's result"
    else:
        found, said = getattr(result, "loss", result), "the model's result"
    if not isinstance(found, torch.Tensor) or found.numel() != 1:
        text = (
            f"a tensor of shape {tuple(found.shape)}"
            if isinstance(found, torch.Tensor)
            else with_article(found)
        )
        raise ArgumentError(
            f"no backward pass can begin at {said}: it gave {text}",
            why="a backward pass begins at a tensor of one element",
            fix="add_graph(model, x, backward=True, loss=lambda out: out.pow(2).mean())",
        )
    if not found.requires_grad:
        raise ArgumentError(
            f"no backward pass can begin at {said}: nothing in it needs a gradient",
            why="no parameter that requires a gradient was used, or gradients were switched off",
            fix="have a parameter require a gradient, or leave backward=True out",
        )
    return found
