"""Optimizers, as torch's own and in objects around them, and the parameters that they change."""

import gc
from collections.abc import Iterable

import torch

__all__ = ["are_shared", "has_optimizer", "parameters_of", "reports_steps"]


def parameters_of(optimizer: object) -> list[torch.Tensor]:
    """Return the parameters of an optimizer, or of the optimizers in a collection or an object.

    Wrappers of optimizers (of Accelerate, of apex) show the groups of the optimizer inside.
    """
    groups = getattr(optimizer, "param_groups", None)
    if isinstance(groups, list):
        return [parameter for group in groups for parameter in group["params"]]
    if isinstance(optimizer, list | tuple):
        return [parameter for each in optimizer for parameter in parameters_of(each)]
    entries = optimizer if isinstance(optimizer, dict) else getattr(optimizer, "__dict__", {})
    optimizers = torch.optim.Optimizer, list, tuple, dict
    return parameters_of([each for each in entries.values() if isinstance(each, optimizers)])


def reports_steps(optimizer: object) -> bool:
    """Whether torch runs hooks at the steps of an optimizer, as at those of its own classes."""
    return bool(getattr(getattr(type(optimizer), "step", None), "hooked", False))


def has_optimizer(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether an optimizer for one of some tensors exists; torch has no list of the optimizers."""
    tensors = list(tensors)
    return bool(tensors) and any(
        issubclass(type(each), torch.optim.Optimizer) and are_shared(tensors, parameters_of(each))
        for each in gc.get_objects()
    )


def are_shared(tensors: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> bool:
    """Whether a tensor is among both of these."""
    return not set(map(id, tensors)).isdisjoint(map(id, others))
