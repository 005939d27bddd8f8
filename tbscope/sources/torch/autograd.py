"""Autograd's own graph: its running node, sequence numbers, saved tensors and gradients."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from tbscope.sources.torch.compat.tensors import (
    functorch_inner,
    gradient_types,
    outside_modes,
    running_node,
    sequence_number,
)
from tbscope.sources.torch.subclasses import PLAIN, type_names

__all__ = [
    "accumulates_into",
    "has_gradient",
    "kept_gradient",
    "needs_gradient",
    "operation_of",
    "output_types",
    "producer_of_saved",
    "reachable_nodes",
    "running_node",
    "sequence_number",
]

_SAVED = "_raw_saved_"
_RESULT = re.compile(f"{_SAVED}(?:result|output)([0-9]*)")
_BACKWARD = re.compile(r"Backward[0-9]*\Z")
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def operation_of(node: Any) -> str:
    """Return a name for an operation that only autograd has recorded: `mse_loss`.

    The name of the autograd node (`MseLossBackward0`), in snake case and without `Backward0`.
    """
    name = _BACKWARD.sub("", str(node.name()).rpartition("::")[2])
    return _WORD.sub("_", name).lower() or "operation"


def output_types(node: object) -> list[tuple[tuple[int, ...] | None, str, str]]:
    """Return shape, dtype and device of each output of the operation that created a node.

    The shape is None if one of its sizes is symbolic.
    """
    types = []
    for shape, dtype, device in gradient_types(node):
        sizes = tuple(shape)
        is_static = all(type(size) is int for size in sizes)
        types.append((sizes if is_static else None, *type_names(dtype, device)))
    return types


def producer_of_saved(node: object, saved: torch.Tensor) -> tuple[object, int] | None:
    """Return the autograd node that made a saved tensor, and the index among its outputs.

    The search runs none of the user's saved-tensor hooks.

    Args:
        node: The autograd node that saved the tensor.
        saved: The tensor as autograd's engine receives it.
    Returns:
        None if autograd has not recorded the producer.
    """
    for name in dir(node):
        tensor = getattr(getattr(node, name), "data", None) if name.startswith(_SAVED) else None
        if isinstance(tensor, torch.Tensor) and _unwrapped(tensor).is_set_to(_unwrapped(saved)):
            if tensor.grad_fn is not None:
                return tensor.grad_fn, tensor.output_nr
            result = _RESULT.fullmatch(name)
            return None if result is None else (node, int(result[1] or 0))
    return None


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor inside all wrappers of `grad`, `vmap` and `jvp`, which have no storage."""
    while (inner := functorch_inner(tensor)) is not None:
        tensor = inner
    return tensor


def needs_gradient(tensor: torch.Tensor) -> bool:
    """Whether autograd tracks a tensor, or the tensor inside its wrappers (`jvp`)."""
    return _unwrapped(tensor).requires_grad


def kept_gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the gradient of a tensor, or None if it retains none (torch would warn on `grad`)."""
    try:
        is_leaf = tensor.is_leaf
    except RuntimeError:
        # torch raises for a view, made without gradients, whose base was written in place since
        # (the replacement of a parameter in `forward_ad`): it has no gradient of its own.
        return None
    return tensor.grad if is_leaf or tensor.retains_grad else None


def has_gradient(leaf: torch.Tensor) -> bool:
    """Whether a leaf tensor has a gradient that is not all zeros, as far as this process knows."""
    with outside_modes():
        grad = kept_gradient(leaf)
        if grad is None or type(grad) not in PLAIN or grad.is_meta:
            # Reading the content of a tensor that is spread over ranks would need all ranks.
            return grad is not None
        return grad.layout is not torch.strided or bool(grad.any())


def accumulates_into(node: object) -> torch.Tensor | None:
    """Return the leaf tensor to whose gradient an autograd node adds, or None for other nodes."""
    leaf = getattr(node, "variable", None)
    return leaf if isinstance(leaf, torch.Tensor) else None


def reachable_nodes(roots: Iterable[torch.Tensor]) -> Iterator[object]:
    """Yield the autograd nodes that a backward pass from some tensors runs."""
    pending = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen = set(pending)
    while pending:
        node = pending.pop()
        yield node
        next_nodes = {
            function for function, _ in node.next_functions if function is not None
        } - seen
        seen |= next_nodes
        pending += next_nodes
