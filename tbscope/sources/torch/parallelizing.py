"""A model as one rank of a run that does not exist would hold it: what is asked for, and its copy.

The user's model stays as it is: what spreads it over ranks is given a copy.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from math import prod
from typing import Any, TypeAlias

import torch

from tbscope.checks import entries_of
from tbscope.errors import ArgumentError
from tbscope.sources.torch.fake_world import fake_world
from tbscope.words import error_text, shown

__all__ = ["Parallelize", "parallelized", "size_of_world", "world_of"]

Parallelize: TypeAlias = Callable[[Any, Any], Any]
"""Spreads a model over a device mesh; gives what is run, None for the model that it was given."""

_FIX = "parallelize=lambda model, mesh: parallelize_module(model, mesh['tp'], plan)"


def world_of(
    world_size: Any, rank: Any, mesh: Any, parallelize: object
) -> AbstractContextManager[Any]:
    """Return the run in which a model is traced; it gives the device mesh.

    Args:
        world_size: How many ranks it has; None for as many as the mesh, or for no such run.
        rank: Which of them this process is.
        mesh: The sizes of the dimensions of its device mesh, by their names; None for no mesh.
        parallelize: What spreads the model over the ranks; None for nothing.
    Raises:
        ArgumentError: One is none, or there is a rank without a run.
    """
    if parallelize is not None and not callable(parallelize):
        raise ArgumentError(
            f"parallelize={shown(parallelize)} cannot be called",
            why="it is a function of the model and the device mesh, which spreads the model",
            fix=_FIX,
        )
    size = size_of_world(world_size, mesh)
    if size is not None:
        return fake_world(size, rank=rank, mesh=mesh)
    given = {"rank": rank} if type(rank) is not int or rank else {}
    given |= {} if parallelize is None else {"parallelize": parallelize}
    for name, value in given.items():
        raise ArgumentError(
            f"{name}={shown(value)} is given without a run",
            why="it is for a run that does not exist, and no size of one is told",
            fix=f"world_size=8, {name}=..., or mesh={{'dp': 4, 'tp': 2}}",
        )
    return nullcontext()


def size_of_world(world_size: Any, mesh: Any) -> Any:
    """Return how many ranks a run has that does not exist; None where none is asked for.

    Args:
        world_size: What is told, whatever it is; None for as many as the mesh has.
        mesh: The sizes of the dimensions of a device mesh by their names.
    """
    if world_size is not None or mesh is None:
        return world_size
    if not isinstance(mesh, Mapping):
        return 1
    sizes = list(entries_of(mesh, option="mesh").values())
    # What is no mesh is refused with it.
    return prod(sizes) if all(type(size) is int and size > 0 for size in sizes) else 1


def parallelized(model: Any, parallelize: Parallelize, mesh: Any, *, fake: bool) -> Any:
    """Return what a rank runs in the place of a model: a copy of it that was spread over ranks.

    Args:
        model: The model, which stays as it is.
        parallelize: What spreads it.
        mesh: The device mesh; None for none.
        fake: Whether the copy holds no contents, and takes no memory for them.
    Raises:
        ArgumentError: The model cannot be copied, or the function raises, or gives what cannot
            be called.
    """
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(
            f"parallelize is given with {shown(model)}",
            why="it is a torch.nn.Module that is copied, and spread over ranks",
            fix="give the module, and let parallelize return what is called",
        )
    try:
        copy = deepcopy(model, _without_contents(model) if fake else None)
    except Exception as error:
        raise ArgumentError(
            f"{type(model).__name__} cannot be copied",
            why=f"parallelize is given a copy of it: {error_text(error)}",
            fix="with tbscope.fake_world(...) as mesh: make it, spread it and trace it there",
        ) from error
    try:
        result = parallelize(copy, mesh)
    except Exception as error:
        raise ArgumentError(
            "the function given as parallelize raised", why=error_text(error), fix=_FIX
        ) from error
    if result is not None and not callable(result):
        raise ArgumentError(
            f"the function given as parallelize gave {shown(result)}",
            why="it gives what is run on this rank, or None for the model that it was given",
            fix=_FIX,
        )
    spread = copy if result is None else result
    if fake:
        for one in (copy, spread):
            if isinstance(one, torch.nn.Module):
                _fill(one)
    return spread


def _without_contents(model: torch.nn.Module) -> dict[int, Any]:
    """Return for each tensor of a model the one that stands for it in a copy, by its identity."""
    empty: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        if torch.nn.parameter.is_lazy(tensor):
            continue
        made = torch.empty_like(tensor, device="meta")
        if isinstance(tensor, torch.nn.Parameter):
            made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
        empty[id(tensor)] = made
    return empty


def _fill(model: torch.nn.Module) -> None:
    """Give all tensors of a model memory, into which nobody writes: none of it is taken.

    `fully_shard` runs with no parameters on the device `meta`. What was one parameter under two
    names stays one, which `to_empty` alone would not leave so.
    """
    places: dict[int, list[tuple[dict[str, Any], str]]] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None and tensor.is_meta:
                    places.setdefault(id(tensor), []).append((held, name))
    if places:
        model.to_empty(device="cpu")
    for (first, of_first), *others in places.values():
        for held, name in others:
            held[name] = first[of_first]
