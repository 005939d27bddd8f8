"""The private parts of torch that tell of nests: of inputs and results, and of a program's own."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree

__all__ = ["filled", "flat", "is_guard", "is_registered", "map_leaves", "map_tensors", "plan_of"]


def map_tensors(change: Callable[[torch.Tensor], Any], nest: Any) -> Any:
    """Return a nest with something else for each tensor in its plain containers."""
    return _pytree.tree_map_only(torch.Tensor, change, nest)


def map_leaves(change: Callable[[Any], Any], nest: Any) -> Any:
    """Return a nest with something else for each entry of its plain containers."""
    return _pytree.tree_map(change, nest)


def filled(plan: Any, leaves: Sequence[Any]) -> Any:
    """Return the nest of a plan (a TreeSpec), filled with leaves."""
    return _pytree.tree_unflatten(leaves, plan)


def is_registered(cls: type) -> bool:
    """Whether torch's pytree flattens the instances of a class."""
    return cls in _pytree.SUPPORTED_NODES


def plan_of(module: torch.fx.GraphModule) -> tuple[Any, Any, list[str] | None]:
    """Return how the inputs and outputs of a graph module are nested, and the names of inputs.

    None for each that it does not tell: its nodes are then given what it is given.
    """
    info = getattr(getattr(module.graph, "_codegen", None), "pytree_info", None)
    if info is None:
        return None, None, None
    names = [name for name in getattr(info, "orig_args", ()) if name != "self"]
    return getattr(info, "in_spec", None), getattr(info, "out_spec", None), names


def flat(nest: Any) -> list[Any]:
    """Return the leaves of a nest, as `filled` takes them."""
    return list(_pytree.tree_leaves(nest))


def is_guard(module: torch.nn.Module) -> bool:
    """Tell whether a module is one by which an exported program checks its inputs."""
    return type(module).__name__ == "GuardsFn" and type(module).__module__.startswith("torch.")
