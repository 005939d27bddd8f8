"""Names of the inputs and outputs of a program: their paths in the model's pytrees.

A program has a flat list of tensors, and the spec of the pytree in which they were. The spec is
filled with meta tensors, and the pytree is walked as the eager tracer walks a real one.
"""

from collections.abc import Sequence
from typing import Any

import torch

from tbscope.sources.fx.aliasing import Content, Slot, tree_replace
from tbscope.sources.torch.calling.pytree import result_leaves, tensor_leaves
from tbscope.sources.torch.compat.tensors import filled

__all__ = ["input_paths", "result_paths", "results_of"]


def input_paths(
    plan: object, names: Sequence[str] | None, leaves: Sequence[object], fallback: list[str]
) -> tuple[list[str], list[tuple[str, Content]]]:
    """Return the path of each input of a program, and its arguments with their names.

    Args:
        plan: The pytree spec of the positional and keyword arguments, or None if the program has
            none.
        names: The names of the parameters of forward, as far as the program records them.
        leaves: For each input a slot for a tensor, else a constant.
        fallback: A name for each input that has no path in the pytree.
    """
    marks = [_mark(leaf) for leaf in leaves]
    tree = _filled(plan, marks)
    if tree is None or len(tree) != 2 or not isinstance(tree[1], dict):
        return fallback, list(zip(fallback, leaves, strict=True))
    args, kwargs = tree
    order = list(names or ())
    named = [
        (order[index] if index < len(order) else f"args.{index}", argument)
        for index, argument in enumerate(args)
    ]
    named += sorted(
        kwargs.items(), key=lambda pair: order.index(pair[0]) if pair[0] in order else len(order)
    )
    paths: dict[int, str] = {}
    for name, argument in named:
        for path, tensor in tensor_leaves(argument, name, public=True):
            paths.setdefault(id(tensor), path)
    flat_paths = [
        paths.get(id(mark), default) for mark, default in zip(marks, fallback, strict=True)
    ]
    return flat_paths, [(name, _unmarked(argument, marks, leaves)) for name, argument in named]


def results_of(plan: object, leaves: Sequence[object]) -> tuple[list[tuple[str, Slot]], Content]:
    """Return each tensor in the result of a program with its path, and the result.

    Args:
        plan: The pytree spec of the result, or None if the program has none.
        leaves: The outputs of the program, flat.
    Returns:
        The tensors with their paths (`logits`, `out.0`), and the result as a pytree: flat if its
        containers cannot be rebuilt.
    """
    marks = [_mark(leaf) for leaf in leaves]
    tree = _filled(plan, marks)
    result: Content = leaves[0] if len(leaves) == 1 else tuple(leaves)
    if tree is not None:
        result = _unmarked(tree, marks, leaves)
    named_slots = result_paths(result)
    listed = {id(slot) for _, slot in named_slots}
    # A container of the user's may hide tensors from the walk.
    named_slots += [
        (f"out.{index}", leaf)
        for index, leaf in enumerate(leaves)
        if type(leaf) is Slot and id(leaf) not in listed
    ]
    return named_slots, result


def result_paths(
    content: Content, name: str = "", *, public: bool = True
) -> list[tuple[str, Slot]]:
    """Return each slot in a pytree with its path in a result or in an input.

    Args:
        content: The pytree.
        name: The path of an input; empty for a result.
        public: Whether private attributes of an input are left out, as in `tensor_leaves`.
    """
    marks: dict[torch.Tensor, Slot] = {}

    def mark(slot: Slot) -> object:
        tensor = _mark(slot)
        marks[tensor] = slot
        return tensor

    tree = tree_replace(content, Slot, mark)
    leaves = tensor_leaves(tree, name, public=public) if name else result_leaves(tree)
    return [(path, marks[tensor]) for path, tensor in leaves]


def _mark(leaf: object) -> Any:
    """Return a meta tensor for a slot; return a constant unchanged."""
    if type(leaf) is not Slot:
        return leaf
    shape = leaf.type.shape or ()
    with torch.no_grad():
        return torch.empty([1 if size is None else size for size in shape], device="meta")


def _filled(plan: object, marks: Sequence[object]) -> Content:
    """Return the pytree of a spec with these leaves; None without a spec that can be rebuilt."""
    try:
        return filled(plan, marks)
    except Exception:  # noqa: BLE001 (code of the user rebuilds a container of the user's)
        return None


def _unmarked(nest: object, marks: Sequence[object], leaves: Sequence[object]) -> Content:
    leaf_of = dict(zip(map(id, marks), leaves, strict=True))
    return tree_replace(nest, torch.Tensor, lambda tensor: leaf_of.get(id(tensor), tensor))
