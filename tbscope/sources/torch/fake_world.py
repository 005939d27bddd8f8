"""A distributed run without its machines: this process as one rank of many, on torch's fake group.

Collectives of the fake group return at once, with whatever stands in the memory that they should
fill. Shapes, groups and bytes are right; values are not.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any

import torch

from tbscope.checks import entries_of, is_text
from tbscope.errors import ArgumentError
from tbscope.sources.torch.rank_internals import fake_store, forget_plans
from tbscope.sources.torch.ranks import is_distributed
from tbscope.words import shown

__all__ = ["fake_world"]

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
    _check(world_size, rank)
    sizes = _sizes(mesh, world_size)
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
        yield None if sizes is None else _device_mesh(sizes)
    finally:
        # Whoever was in the block may have done so, or may have failed to begin.
        if is_distributed():
            torch.distributed.destroy_process_group()
        forget_plans()


def _device_mesh(sizes: dict[str, int]) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def _check(world_size: object, rank: object) -> None:
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


def _sizes(mesh: object, world_size: int) -> dict[str, int] | None:
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
    ranks = prod(held.values())
    if ranks != world_size:
        raise ArgumentError(
            f"mesh={shown(mesh)} holds {ranks} ranks, and the run has {world_size}",
            why="each rank stands at one place of the mesh",
            fix=f"world_size={ranks}, or sizes whose product is {world_size}",
        )
    return dict(held)
