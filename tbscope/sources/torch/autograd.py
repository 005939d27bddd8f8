"""Autograd's own graph: which of its nodes runs, which number it has, and what it tells."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from tbscope.sources.torch.compat.tensors import (
    functorch_inner,
    gradient_types,
    running_node,
    sequence_number,
)
from tbscope.sources.torch.subclasses import type_names

__all__ = [
    "accumulates_into",
    "functions_of",
    "gave_of",
    "kept_gradient",
    "needs_gradient",
    "leads_to",
    "maker_of_saved",
    "operation_of",
    "running_node",
    "sequence_number",
]

_SAVED = "_raw_saved_"
_RESULT = re.compile(f"{_SAVED}(?:result|output)([0-9]*)")
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
        types.append((sizes if known else None, *type_names(dtype, device)))
    return types


def maker_of_saved(node: Any, saved: torch.Tensor) -> tuple[Any, int] | None:
    """Return the node of autograd's graph that gave what another one has saved, and its place.

    None where autograd does not know it. Hooks of the user's are not run to find it.

    Args:
        node: Who has saved it.
        saved: What autograd's engine is given of that.
    """
    for name in dir(node):
        held = getattr(getattr(node, name), "data", None) if name.startswith(_SAVED) else None
        if isinstance(held, torch.Tensor) and _unwrapped(held).is_set_to(_unwrapped(saved)):
            if held.grad_fn is not None:
                return held.grad_fn, held.output_nr
            own = _RESULT.fullmatch(name)
            return None if own is None else (node, int(own[1] or 0))
    return None


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return what is inside of all wrappers of `grad`, `vmap` and `jvp`: they have no memory."""
    while (inner := functorch_inner(tensor)) is not None:
        tensor = inner
    return tensor


def needs_gradient(tensor: torch.Tensor) -> bool:
    """Tell whether autograd follows a tensor, or the one inside of wrappers (`jvp`)."""
    return _unwrapped(tensor).requires_grad


def kept_gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the gradient of a tensor; None where autograd keeps none, and torch would warn."""
    try:
        is_leaf = tensor.is_leaf
    except RuntimeError:
        # So torch tells of a view, made without gradients, whose base was written into since
        # (what stood in for a parameter in `forward_ad`): it has no gradient of its own.
        return None
    return tensor.grad if is_leaf or tensor.retains_grad else None


def accumulates_into(node: Any) -> torch.Tensor | None:
    """Return the leaf tensor whose gradient a node of autograd's graph adds to; None if none."""
    leaf = getattr(node, "variable", None)
    return leaf if isinstance(leaf, torch.Tensor) else None


def leads_to(roots: Iterable[torch.Tensor], ends: Iterable[torch.Tensor]) -> bool:
    """Tell whether a backward pass from some tensors comes by one of others."""
    leaves, made = set[int](), set[Any]()
    for tensor in ends:
        if tensor.grad_fn is None:
            leaves.add(id(tensor))
        else:
            made.add(tensor.grad_fn)
    return any(node in made or id(accumulates_into(node)) in leaves for node in functions_of(roots))


def functions_of(roots: Iterable[torch.Tensor]) -> Iterator[Any]:
    """Return the nodes of autograd's graph by which a backward pass from some tensors comes."""
    pending = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen = set(pending)
    while pending:
        node = pending.pop()
        yield node
        before = {each for each, _ in node.next_functions if each is not None} - seen
        seen |= before
        pending += before
