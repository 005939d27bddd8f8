"""The borders of a program: the names of its inputs and outputs, as paths in their nests.

A program holds a flat list of tensors, and a plan of the nest in which they were. That is
filled with tensors without content, and walked as the eager tracer walks a real one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tbscope.sources.fx.aliasing import Held, Slot, replaced
from tbscope.sources.torch.calling.pytree import result_leaves, tensor_leaves
from tbscope.sources.torch.compat.tensors import filled

__all__ = ["input_paths", "result_paths", "results_of"]


def input_paths(
    plan: Any, names: Sequence[str] | None, leaves: Sequence[Any], fallback: Sequence[str]
) -> tuple[list[str], list[tuple[str, Any]]]:
    """Return the path of each input of a program, and its arguments with their names.

    Args:
        plan: How the positional and the keyword arguments were nested; None where the program
            does not tell.
        names: The names of the parameters of forward, as far as they are known.
        leaves: What is known of each input: a slot for a tensor, else a constant.
        fallback: A name for each input that the nest does not name.
    """
    if plan is None:
        return list(fallback), list(zip(fallback, leaves, strict=True))
    marks = [_mark(leaf) for leaf in leaves]
    nest = _filled(plan, marks)
    if nest is None or len(nest) != 2 or not isinstance(nest[1], dict):
        return list(fallback), list(zip(fallback, leaves, strict=True))
    args, kwargs = nest
    order = list(names or ())
    named = [
        (order[at] if at < len(order) else f"args.{at}", given) for at, given in enumerate(args)
    ]
    named += sorted(
        kwargs.items(), key=lambda pair: order.index(pair[0]) if pair[0] in order else len(order)
    )
    paths: dict[int, str] = {}
    for name, given in named:
        for path, tensor in tensor_leaves(given, name, public=True):
            paths.setdefault(id(tensor), path)
    found = [paths.get(id(mark), other) for mark, other in zip(marks, fallback, strict=True)]
    held = {id(mark): leaf for mark, leaf in zip(marks, leaves, strict=True)}
    return found, [(name, _unmarked(given, held)) for name, given in named]


def results_of(plan: Any, leaves: Sequence[Any]) -> tuple[list[tuple[str, Slot]], Held]:
    """Return each tensor that a program gives with its path in the result, and the result.

    Args:
        plan: How it is nested; None where the program does not tell.
        leaves: What the program gives, flat.
    Returns:
        The tensors with their paths (`logits`, `out.0`), and all in its nest: flat where that is
        none of plain containers.
    """
    marks = [_mark(leaf) for leaf in leaves]
    nest = None if plan is None else _filled(plan, marks)
    result: Held = leaves[0] if len(leaves) == 1 else tuple(leaves)
    if nest is not None:
        held = {id(mark): leaf for mark, leaf in zip(marks, leaves, strict=True)}
        result = _unmarked(nest, held)
    found = result_paths(result)
    told = {id(slot) for _, slot in found}
    # A container of the user's may not show all that it has.
    found += [
        (f"out.{at}", leaf)
        for at, leaf in enumerate(leaves)
        if type(leaf) is Slot and id(leaf) not in told
    ]
    return found, result


def result_paths(held: Held, name: str = "", *, public: bool = True) -> list[tuple[str, Slot]]:
    """Return each slot of a nest with its path, as that of a result or of an input.

    Args:
        held: The nest.
        name: The path of an input; empty for a result.
        public: Whether the private attributes of an input are left out, as `tensor_leaves` does.
    """
    marks: dict[int, Slot] = {}
    kept: list[torch.Tensor] = []

    def mark(slot: Slot) -> torch.Tensor:
        kept.append(_mark(slot))
        marks[id(kept[-1])] = slot
        return kept[-1]

    nest = replaced(held, Slot, mark)
    leaves = tensor_leaves(nest, name, public=public) if name else result_leaves(nest)
    return [(path, marks[id(tensor)]) for path, tensor in leaves]


def _mark(leaf: Any) -> Any:
    """Return a tensor without content for a slot; a constant as it is."""
    if type(leaf) is not Slot:
        return leaf
    shape = leaf.type.shape or ()
    with torch.no_grad():
        return torch.empty([1 if size is None else size for size in shape], device="meta")


def _filled(plan: Any, marks: Sequence[Any]) -> Any:
    """Return the nest of a plan, filled; None where its classes cannot be made of these."""
    try:
        return filled(plan, marks)
    except Exception:  # noqa: BLE001 (containers of users are made by code of theirs)
        return None


def _unmarked(nest: Any, held: Mapping[int, Any]) -> Held:
    return replaced(nest, torch.Tensor, lambda tensor: held.get(id(tensor), tensor))
