"""Autograd's own graph: which of its nodes runs, which number it has, and what it tells."""

import re
from typing import Any

import torch

from tbscope.sources.torch.internals import gradient_types, running_node, sequence_number

__all__ = ["accumulates_into", "gave_of", "operation_of", "running_node", "sequence_number"]

_BACKWARD = re.compile(r"Backward[0-9]*\Z")
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def operation_of(node: Any) -> str:
    """Return what an operation may be called of which autograd alone tells: `mse_loss`."""
    name = _BACKWARD.sub("", str(node.name()).rpartition("::")[2])
    return _WORD.sub("_", name).lower() or "operation"


def gave_of(node: Any) -> list[tuple[tuple[int, ...] | None, str, str]]:
    """Return shape, dtype and device of what the operation gave that has made a node."""
    types = []
    for shape, dtype, device in gradient_types(node):
        sizes = tuple(shape)
        known = all(type(size) is int for size in sizes)
        types.append((sizes if known else None, str(dtype).removeprefix("torch."), str(device)))
    return types


def accumulates_into(node: Any) -> torch.Tensor | None:
    """Return the leaf tensor whose gradient a node of autograd's graph adds to; None if none."""
    leaf = getattr(node, "variable", None)
    return leaf if isinstance(leaf, torch.Tensor) else None
