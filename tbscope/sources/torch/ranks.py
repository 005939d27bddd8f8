"""Distributed runs: which of its processes this one is, its groups, and its device mesh."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from tbscope.ir.facts import MeshDimension, Sharding
from tbscope.sources.torch.rank_internals import (
    device_meshes,
    group_of,
    is_spread,
    local_shape,
    ranks_along,
    root_mesh,
)

__all__ = ["Group", "Groups", "is_distributed", "process_rank", "sharding_of", "world_size"]


def is_distributed() -> bool:
    """Tell whether this is a process of a distributed run, whose groups are set up."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized()


def process_rank() -> int:
    """Return which process of a distributed run this is; 0 in any other run."""
    return int(torch.distributed.get_rank()) if is_distributed() else 0


def world_size() -> int:
    """Return how many processes the distributed run has; 1 for any other run."""
    return int(torch.distributed.get_world_size()) if is_distributed() else 1


class Group(NamedTuple):
    """A process group, as a graph tells it.

    Attributes:
        ranks: Its ranks, as the whole run counts them.
        mesh: The dimension of the device mesh whose group it is; empty for none.
        name: torch's name for it.
    """

    ranks: tuple[int, ...]
    mesh: str
    name: str

    def rank(self, place: int) -> int | None:
        """Return the rank at a place in the group; None where there is none."""
        return self.ranks[place] if 0 <= place < len(self.ranks) else None


_UNKNOWN = Group((), "", "")
# What torch writes before the name of a dimension of a mesh.
# Source: torch/distributed/device_mesh.py, _init_process_groups.
_PREFIX = "mesh_"


class Groups:
    """The process groups of one run, each with the dimension of the device mesh that it is of.

    Args:
        meshes: Returns the meshes that the tensors of the run lie on. Others are looked for where
            these do not name a group.
    """

    def __init__(self, meshes: Callable[[], Iterable[Any]]) -> None:
        self._meshes_of_run = meshes
        self._known: dict[str, Group] = {}
        # By identity: a mesh is compared by looking into tensors.
        self._asked: dict[int, Any] = {}
        self._meshes: list[Any] = []
        self._names: dict[str, str] = {}
        self._searched = False

    def group(self, told: Any) -> Group:
        """Return the group that a kernel is told of."""
        if told is None:
            told = torch.distributed.group.WORLD
        process_group = group_of(told)
        if process_group is None:
            return _UNKNOWN
        name = str(process_group.group_name)
        group = self._known.get(name)
        if group is None:
            ranks = tuple(torch.distributed.get_process_group_ranks(process_group))
            group = self._known[name] = Group(ranks, self._mesh_of(name, process_group), name)
        return group

    def met(self, mesh: Any) -> None:
        """Take note of a device mesh, unless it is one of an earlier run, whose groups are gone."""
        if id(mesh) in self._asked:
            return
        self._asked[id(mesh)] = mesh
        root = root_mesh(mesh)
        if root is not mesh:
            self.met(root)
        groups = [self._group_along(mesh, dimension) for dimension in range(mesh.ndim)]
        if all(groups):
            self._meshes.append(mesh)
            for group, name in zip(groups, _mesh_names(mesh), strict=True):
                self._names.setdefault(group, name)

    def _group_along(self, mesh: Any, dimension: int) -> str:
        """Return the name of the group along a dimension of a mesh; empty where there is none."""
        try:
            group = mesh.get_group(dimension)
            ranks = torch.distributed.get_process_group_ranks(group)
            # Groups of a later run may have the names of those that are gone.
            return str(group.group_name) if ranks == ranks_along(mesh, dimension) else ""
        except (AttributeError, AssertionError, KeyError, RuntimeError, TypeError, ValueError):
            # One that was made without its groups, or whose groups are gone.
            return ""

    def mesh(self) -> tuple[MeshDimension, ...]:
        """Return the dimensions of the mesh that spans most of the run; empty where none is."""
        self._meet()
        found = [mesh for mesh in self._meshes if root_mesh(mesh) is mesh]
        if not found:
            return ()
        largest = max(found, key=lambda mesh: (mesh.size(), mesh.ndim))
        at = largest.get_coordinate()
        return tuple(
            MeshDimension(name, largest.size(dimension), 0 if at is None else at[dimension])
            for dimension, name in enumerate(_mesh_names(largest))
        )

    def _mesh_of(self, name: str, process_group: Any) -> str:
        self._meet()
        if name not in self._names and not self._searched:
            self._searched = True
            # Those that were made before may be of an earlier run: the latest one counts.
            for mesh in device_meshes():
                self.met(mesh)
        if name in self._names:
            return self._names[name]
        told = str(getattr(process_group, "group_desc", ""))
        return told.removeprefix(_PREFIX) if told.startswith(_PREFIX) else ""

    def _meet(self) -> None:
        for mesh in self._meshes_of_run():
            self.met(mesh)


def sharding_of(tensor: Any) -> Sharding | None:
    """Return what this rank holds of a tensor; None for one that is not spread over ranks."""
    if not is_spread(type(tensor)):
        return None
    shape = tuple(size if type(size) is int else None for size in local_shape(tensor))
    lies = tuple(map(_placement_text, tensor.placements))
    return Sharding(shape, lies, _mesh_names(tensor.device_mesh))


def _placement_text(placement: Any) -> str:
    """Return how a tensor lies along a dimension of a mesh, as its user writes it."""
    told = getattr(placement, "dim", getattr(placement, "reduce_op", ""))
    return f"{type(placement).__name__.lstrip('_')}({told})"


def _mesh_names(mesh: Any) -> tuple[str, ...]:
    """Return the names of the dimensions of a device mesh; their numbers where it has none."""
    return tuple(mesh.mesh_dim_names or map(str, range(mesh.ndim)))
