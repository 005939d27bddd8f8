"""A distributed run without its machines: this process as one rank of many, on torch's fake group.

Collectives of the fake group return at once, with whatever stands in the memory that they should
fill. Shapes, groups and bytes are right; values are not. What spreads a model over the ranks is
given a copy: the user's model stays as it is.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from math import prod
from typing import Any, TypeAlias

import torch

from tbscope.errors import ArgumentError
from tbscope.messages import error_text, shown
from tbscope.sources.torch.distributed import fake_store, forget_plans, is_distributed
from tbscope.utils.validation import entries_of, is_text

__all__ = ["Parallelize", "fake_world", "parallelized", "size_of_world", "world_of"]

_MOST_RANKS = 2**31


@contextmanager
def fake_world(
    world_size: int, *, rank: int = 0, mesh: Mapping[str, int] | None = None
) -> Iterator[Any]:
    """Have this process be one rank of a distributed run that does not exist, during a block.

    What a program does on that rank runs in the block, and can be traced: `fully_shard`,
    `parallelize_module`, pipelines, collectives of its own. Nothing is sent: what other ranks
    would hand in is whatever stands in memory, so that values mean nothing, and shapes, groups
    and bytes are right. With `fake=True` nothing is computed either.

        with tbscope.fake_world(64, mesh={"dp": 8, "tp": 8}) as mesh:
            model = fully_shard(model, mesh=mesh["dp"])
            graph = tbscope.trace(model, x, fake=True)

    Args:
        world_size: How many ranks the run has.
        rank: Which of them this process is.
        mesh: The dimensions of a device mesh over all ranks, outermost first, with their sizes.
    Returns:
        The device mesh, of the CPU; None where no mesh is asked for.
    Raises:
        ArgumentError: This process has process groups already, or a value is none that a run can
            have.
    """
    if type(world_size) is not int or not 1 <= world_size < _MOST_RANKS:
        raise ArgumentError(
            f"a run cannot have {shown(world_size)} ranks",
            why="world_size is how many processes would run: a number from 1 up",
            fix="world_size=8",
        )
    if type(rank) is not int or not 0 <= rank < world_size:
        raise ArgumentError(
            f"a run of {world_size} has no rank {shown(rank)}",
            why=f"ranks are counted from 0, up to {world_size - 1}",
            fix="rank=0",
        )
    sizes = _sizes(mesh)
    ranks = world_size if sizes is None else prod(sizes.values())
    if ranks != world_size:
        raise ArgumentError(
            f"mesh={shown(mesh)} holds {ranks} ranks, and the run has {world_size}",
            why="each rank stands at one place of the mesh",
            fix=f"world_size={ranks}, or sizes whose product is {world_size}",
        )
    if not torch.distributed.is_available():
        raise ArgumentError(
            f"world_size={world_size} needs torch.distributed",
            why=f"torch {torch.__version__} was built without it",
            fix="install a torch that has it: torch.distributed.is_available() tells",
        )
    if is_distributed():
        raise ArgumentError(
            f"world_size={world_size} cannot stand beside the process groups that are there",
            why=f"this process is rank {torch.distributed.get_rank()} of "
            f"{torch.distributed.get_world_size()} already, and a process is one rank",
            fix="call torch.distributed.destroy_process_group() before, or trace without it",
        )
    store = fake_store()
    forget_plans()
    try:
        torch.distributed.init_process_group("fake", store=store, rank=rank, world_size=world_size)
        if sizes is None:
            yield None
        else:
            from torch.distributed.device_mesh import init_device_mesh

            yield init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    finally:
        # Whoever was in the block may have done so, or may have failed to begin.
        if is_distributed():
            torch.distributed.destroy_process_group()
        forget_plans()


def _sizes(mesh: object) -> dict[str, int] | None:
    """Return the sizes of the dimensions of a mesh by their names; None for no mesh."""
    if mesh is None:
        return None
    held = entries_of(mesh, option="mesh") if isinstance(mesh, Mapping) else None
    if not held or not all(
        is_text(name) and name and type(size) is int and size >= 1 for name, size in held.items()
    ):
        raise ArgumentError(
            f"mesh={shown(mesh)} has no dimensions",
            why="a mesh is told by the names of its dimensions, with the number of ranks in each",
            fix='world_size=64, mesh={"dp": 8, "tp": 8}',
        )
    return dict(held)


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
    for name, value in (("rank", rank), ("parallelize", parallelize or 0)):
        if type(value) is not int or value:
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
    Raises:
        ArgumentError: It is no mesh.
    """
    sizes = _sizes(mesh)
    return world_size if world_size is not None or sizes is None else prod(sizes.values())


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
