"""Simulated distributed runs: this process as one rank of many, on torch's fake process group.

Collectives of the fake group return at once and leave the memory that they should fill as it is.
Shapes, groups and bytes are right; values are not. The function that spreads a model over the
ranks receives a copy: the user's model stays unchanged.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from math import prod
from typing import Any, TypeAlias

import torch

from tbscope.errors import ArgumentError
from tbscope.messages import error_text, shown
from tbscope.sources.torch.distributed import clear_sharding_cache, fake_store, is_distributed
from tbscope.utils.validation import entries_of, is_text

_MOST_RANKS = 2**31


@contextmanager
def fake_world(
    world_size: int, *, rank: int = 0, mesh: Mapping[str, int] | None = None
) -> Iterator[object]:
    """Make this process one rank of a simulated distributed run, during a block.

    The program of that rank runs in the block, and can be traced: `fully_shard`,
    `parallelize_module`, pipelines, collectives of its own. Nothing is sent. The data of other
    ranks is whatever the memory contains, so values mean nothing; shapes, groups and bytes are
    right. With `fake=True` nothing is computed either.

    >>> import torch, tbscope
    >>> from torch.distributed.fsdp import fully_shard
    >>> with tbscope.fake_world(64, mesh={"dp": 8, "tp": 8}) as mesh:
    ...     model = fully_shard(torch.nn.Linear(64, 3), mesh=mesh["dp"])
    ...     graph = tbscope.trace(model, torch.rand(1, 64), fake=True)
    >>> [node.collective.kind for node in graph.nodes if node.collective]
    ['all_gather']

    Args:
        world_size: The number of ranks, from 1.
        rank: The rank of this process, from 0.
        mesh: The dimensions of a device mesh over all ranks, outermost first, with their sizes.
    Yields:
        The device mesh, on the CPU, or None without `mesh`.
    Raises:
        ArgumentError: This process has process groups already, a value is out of range, or the mesh
            has another number of ranks.
    """
    if not (
        type(world_size) is int
        and type(rank) is int
        and 1 <= world_size < _MOST_RANKS
        and 0 <= rank < world_size
    ):
        raise ArgumentError(
            f"a run of {shown(world_size)} ranks has no rank {shown(rank)}",
            why="world_size is the number of processes, from 1 up, and rank counts them from 0",
            fix="world_size=8, rank=0",
        )
    sizes = _sizes(mesh)
    ranks = world_size if sizes is None else prod(sizes.values())
    if ranks != world_size:
        raise ArgumentError(
            f"mesh={shown(mesh)} has {ranks} ranks, and the run has {world_size}",
            why="each rank has one position in the mesh",
            fix=f"world_size={ranks}, or sizes whose product is {world_size}",
        )
    if is_distributed():
        raise ArgumentError(
            f"world_size={world_size} cannot be used beside existing process groups",
            why=f"this process is rank {torch.distributed.get_rank()} of "
            f"{torch.distributed.get_world_size()} already, and a process is one rank",
            fix="call torch.distributed.destroy_process_group() before, or trace without it",
        )
    store = fake_store()
    clear_sharding_cache()
    try:
        torch.distributed.init_process_group("fake", store=store, rank=rank, world_size=world_size)
        if sizes is None:
            yield None
        else:
            from torch.distributed.device_mesh import init_device_mesh

            yield init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    finally:
        # The block may have destroyed the group itself, or the group may never have begun.
        if is_distributed():
            torch.distributed.destroy_process_group()
        clear_sharding_cache()


def _sizes(mesh: object) -> dict[str, int] | None:
    """Return the sizes of a mesh by the names of its dimensions, or None for no mesh.

    Raises:
        ArgumentError: The value is no mapping from names to sizes of at least 1.
    """
    if mesh is None:
        return None
    entries = entries_of(mesh, option="mesh") if isinstance(mesh, Mapping) else None
    if not entries or not all(
        is_text(name) and name and type(size) is int and size >= 1 for name, size in entries.items()
    ):
        raise ArgumentError(
            f"mesh={shown(mesh)} has no dimensions",
            why="a mesh maps the name of each dimension to its number of ranks",
            fix='world_size=64, mesh={"dp": 8, "tp": 8}',
        )
    return dict(entries)


Parallelize: TypeAlias = Callable[[Any, Any], Any]
"""Spreads a model over a device mesh; returns the callable to run, or None for the same model."""

_FIX = "parallelize=lambda model, mesh: parallelize_module(model, mesh['tp'], plan)"


def simulated_world(
    world_size: object, rank: Any, mesh: Any, parallelize: object
) -> AbstractContextManager[object]:
    """Return the context of a simulated run in which to trace a model; it yields the device mesh.

    Args:
        world_size: The number of ranks; None for the size of the mesh, or without a mesh for no
            simulated run.
        rank: The rank of this process.
        mesh: The sizes of the dimensions of the device mesh, by their names; None for no mesh.
        parallelize: The function that spreads the model over the ranks, or None.
    Raises:
        ArgumentError: A value is invalid, or `rank` or `parallelize` come without a run.
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
                why="it describes a simulated run, whose number of ranks is missing",
                fix=f"world_size=8, {name}=..., or mesh={{'dp': 4, 'tp': 2}}",
            )
    return nullcontext()


def size_of_world(world_size: object, mesh: object) -> Any:
    """Return the number of ranks of a simulated run, or None if no run is requested.

    Args:
        world_size: The user's value, returned unchecked; None for the size of the mesh.
        mesh: The sizes of the dimensions of a device mesh, by their names; None for no mesh.
    Raises:
        ArgumentError: The mesh is invalid.
    """
    sizes = _sizes(mesh)
    return world_size if world_size is not None or sizes is None else prod(sizes.values())


def parallelized_copy(model: Any, parallelize: Parallelize, mesh: object, *, fake: bool) -> Any:
    """Return the callable that a rank runs: a copy of the model, spread over the ranks.

    Args:
        model: The model; it stays unchanged.
        parallelize: The function that spreads the copy.
        mesh: The device mesh, or None.
        fake: Whether the tensors of the copy have no contents and take no memory.
    Raises:
        ArgumentError: The model cannot be copied, or the function raises or returns an object that
            cannot be called.
    """
    try:
        copy = deepcopy(model, _without_contents(model) if fake else None)
        result = parallelize(copy, mesh)
    except Exception as error:
        raise ArgumentError(
            f"a copy of {type(model).__name__} cannot be spread over the ranks",
            why=error_text(error),
            fix=f"{_FIX}, or with tbscope.fake_world(...) as mesh: make it, spread it, trace it",
        ) from error
    if result is not None and not callable(result):
        raise ArgumentError(
            f"the function passed as parallelize returned {shown(result)}",
            why="it returns the model of this rank, or None for the model that was passed to it",
            fix=_FIX,
        )
    spread = copy if result is None else result
    if fake:
        for module in (copy, spread):
            if isinstance(module, torch.nn.Module):
                _fill(module)
    return spread


def _without_contents(model: torch.nn.Module) -> dict[int, object]:
    """Return a meta tensor for each parameter and buffer, as a memo for `deepcopy`.

    The keys are the `id` of the originals. Parameters of lazy modules are left out.
    """
    memo: dict[int, object] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        if torch.nn.parameter.is_lazy(tensor):
            continue
        meta = torch.empty_like(tensor, device="meta")
        if isinstance(tensor, torch.nn.Parameter):
            meta = torch.nn.Parameter(meta, requires_grad=tensor.requires_grad)
        memo[id(tensor)] = meta
    return memo


def _fill(model: torch.nn.Module) -> None:
    """Move the meta tensors of a model to the CPU, uninitialized.

    `fully_shard` does not run with parameters on the device `meta`. The new memory is never
    written, so the system allocates none of it. Tied parameters stay tied; `to_empty` alone would
    make two of them.
    """
    owners: dict[int, list[tuple[dict[str, Any], str]]] = {}
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is not None and tensor.is_meta:
                    owners.setdefault(id(tensor), []).append((table, name))
    if owners:
        model.to_empty(device="cpu")
    for (first, first_name), *others in owners.values():
        for table, name in others:
            table[name] = first[first_name]
