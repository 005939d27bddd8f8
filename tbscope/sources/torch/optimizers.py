"""Optimizers, as torch's own and in objects around them, and the parameters that they change."""

import gc
from collections.abc import Iterable
from typing import Any

import torch

from tbscope.utils.validation import attribute_of, table_of

# Classes of attributes that an optimizer is searched in.
_CONTAINERS = torch.optim.Optimizer, list, tuple, dict


def parameters_of(optimizer: object) -> list[torch.Tensor]:
    """Return the parameters of an optimizer, or of the optimizers in a collection or an object.

    Wrappers of optimizers (of Accelerate, of apex) show the groups of the optimizer inside.
    """
    parameters: list[torch.Tensor] = []
    pending, seen = [optimizer], set[int]()
    while pending:
        each: Any = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        groups = attribute_of(each, "param_groups")
        if type(groups) is list:
            parameters += [parameter for group in groups for parameter in group["params"]]
        elif issubclass(type(each), list | tuple):
            pending += reversed([*each])
        else:
            entries = each if issubclass(type(each), dict) else table_of(each)
            # The table of a class is no dict.
            inside = dict.values(entries) if isinstance(entries, dict) else ()
            pending += [one for one in inside if issubclass(type(one), _CONTAINERS)][::-1]
    return parameters


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
