"""Distributed runs: which of its processes this one is, its groups, and its device mesh.

No other file names the private parts of torch that tell of these. torch promises nothing about
them. What a version that is supported lacks has a fallback here.
"""

import gc
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from tbscope.ir.metadata import MeshDimension, Sharding
from tbscope.sources.torch.compat.tensors import without_modes

__all__ = [
    "WORKS",
    "Group",
    "Groups",
    "fake_store",
    "forget_plans",
    "is_distributed",
    "is_of_c10d",
    "is_of_meshes",
    "is_pretended",
    "is_spread",
    "is_started_with_others",
    "process_rank",
    "same_work",
    "sharding_of",
    "shared_store",
    "world_size",
]

_distributed: Any = torch.distributed
_c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
_binding: Any = getattr(torch._C, "_distributed_c10d", None)

WORKS: tuple[Any, ...] = tuple(
    kind for name in ("Work", "FakeWork") if "wait" in vars(kind := getattr(_binding, name, object))
)
"""The classes of what runs on while Python goes on, and that Python waits for."""

# Places of ranks are computed with tensors.
_MESH_FILES = ("torch/distributed/device_mesh.py", "torch/distributed/_mesh_layout.py")


def is_distributed() -> bool:
    """Tell whether this is a process of a distributed run, whose groups are set up."""
    return bool(_distributed.is_available() and _distributed.is_initialized())


def process_rank() -> int:
    """Return which process of a distributed run this is; 0 in any other run."""
    return int(_distributed.get_rank()) if is_distributed() else 0


def world_size() -> int:
    """Return how many processes the distributed run has; 1 for any other run."""
    return int(_distributed.get_world_size()) if is_distributed() else 1


def is_started_with_others() -> bool:
    """Tell whether a launcher started this process as one of several, whether they met or not."""
    count = os.environ.get("WORLD_SIZE", "")
    return count.isdecimal() and int(count) > 1


def is_pretended() -> bool:
    """Tell whether the other processes of a distributed run are pretended only."""
    return bool(_distributed.get_backend() == "fake")


def shared_store(prefix: str) -> Any:
    """Return what all processes of a distributed run put things into and take them from.

    Args:
        prefix: What all keys begin with.
    """
    return _distributed.PrefixStore(prefix, _c10d._get_default_store())


def fake_store() -> Any:
    """Return what torch's fake process group is begun with; the group is known from then on."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()


def is_of_c10d(file: str) -> bool:
    """Tell whether a file is the one in which torch keeps its collectives."""
    return _c10d is not None and file == _c10d.__file__


def is_of_meshes(file: str) -> bool:
    """Tell whether a file is one in which torch keeps device meshes."""
    return file.endswith(_MESH_FILES)


def same_work(boxed: Any, work: Any) -> bool:
    """Tell whether what a kernel gave in a box is the work that Python waits for."""
    try:
        return _distributed.Work.unbox(boxed) is work
    except (AttributeError, RuntimeError, TypeError):
        return False


def is_spread(kind: type) -> bool:
    """Tell whether tensors of a class are spread over ranks (`DTensor`)."""
    home = sys.modules.get("torch.distributed.tensor")
    return home is not None and issubclass(kind, home.DTensor)


def forget_plans() -> None:
    """Have torch plan operations on spread tensors anew, as it does in a process of its own.

    Its plans hold the device mesh for which they were made. That of a later run in this process
    is equal to it, and would use groups that are gone. Where torch does not offer this, what
    belongs to such groups has none.
    """
    if "torch.distributed.tensor" not in sys.modules:
        return
    from torch.distributed.tensor import debug

    forget = getattr(debug, "_clear_sharding_prop_cache", None)
    if forget is not None:
        forget()


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
            told = _distributed.group.WORLD
        process_group = _group_of(told)
        if process_group is None:
            return _UNKNOWN
        name = str(process_group.group_name)
        group = self._known.get(name)
        if group is None:
            ranks = tuple(_distributed.get_process_group_ranks(process_group))
            group = self._known[name] = Group(ranks, self._mesh_of(name, process_group), name)
        return group

    def met(self, mesh: Any) -> None:
        """Take note of a device mesh, unless it is one of an earlier run, whose groups are gone."""
        if id(mesh) in self._asked:
            return
        self._asked[id(mesh)] = mesh
        root = _root_mesh(mesh)
        if root is not mesh:
            self.met(root)
        groups = []
        for dimension in range(mesh.ndim):
            try:
                group = mesh.get_group(dimension)
                ranks = _distributed.get_process_group_ranks(group)
                if ranks != _ranks_along(mesh, dimension):
                    # Groups of a later run may have the names of those that are gone.
                    return
                groups.append(str(group.group_name))
            except (AttributeError, AssertionError, KeyError, RuntimeError, TypeError, ValueError):
                # One that was made without its groups, or whose groups are gone.
                return
        self._meshes.append(mesh)
        for name, told in zip(groups, _mesh_names(mesh), strict=True):
            self._names.setdefault(name, told)

    def mesh(self) -> tuple[MeshDimension, ...]:
        """Return the dimensions of the mesh that spans most of the run; empty where none is."""
        self._meet()
        found = [mesh for mesh in self._meshes if _root_mesh(mesh) is mesh]
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
            for mesh in _device_meshes():
                self.met(mesh)
        if name in self._names:
            return self._names[name]
        told = str(getattr(process_group, "group_desc", ""))
        return told.removeprefix(_PREFIX) if told.startswith(_PREFIX) else ""

    def _meet(self) -> None:
        for mesh in self._meshes_of_run():
            self.met(mesh)


def _group_of(told: Any) -> Any:
    """Return the process group that a kernel is told of: itself, in a box, or by its name.

    None where torch does not tell.
    """
    kind = _distributed.ProcessGroup
    if isinstance(told, kind):
        return told
    try:
        if isinstance(told, str):
            return _c10d._resolve_process_group(told)
        return kind.unbox(told)
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return None


def _root_mesh(mesh: Any) -> Any:
    """Return the device mesh that another one is a part of; itself where it is part of none."""
    try:
        if hasattr(mesh, "_get_root_mesh"):
            return mesh._get_root_mesh() or mesh
        resources = sys.modules["torch.distributed.device_mesh"]._mesh_resources
        return resources.get_root_mesh(mesh) or mesh
    except (AttributeError, KeyError, RuntimeError):
        return mesh


def _ranks_along(mesh: Any, dimension: int) -> list[int]:
    """Return the ranks beside this one along a dimension of a mesh; empty where it is in none."""
    at = mesh.get_coordinate()
    if at is None:
        return []
    with without_modes():
        return list(mesh.mesh[(*at[:dimension], slice(None), *at[dimension + 1 :])].tolist())


def _device_meshes() -> list[Any]:
    """Return all device meshes that there are, the latest first; torch keeps no list of them."""
    home = sys.modules.get("torch.distributed.device_mesh")
    if home is None:
        return []
    kind = home.DeviceMesh
    # The younger generations hold what was made last, and each has it at its end.
    generations = [gc.get_objects(generation=number) for number in range(len(gc.get_count()))]
    return [thing for held in generations for thing in reversed(held) if type(thing) is kind]


def sharding_of(tensor: Any) -> Sharding | None:
    """Return what this rank holds of a tensor; None for one that is not spread over ranks."""
    if not is_spread(type(tensor)):
        return None
    shape = tuple(size if type(size) is int else None for size in tensor._local_tensor.shape)
    lies = tuple(map(_placement_text, tensor.placements))
    return Sharding(shape, lies, _mesh_names(tensor.device_mesh))


def _placement_text(placement: Any) -> str:
    """Return how a tensor lies along a dimension of a mesh, as its user writes it."""
    told = getattr(placement, "dim", getattr(placement, "reduce_op", ""))
    return f"{type(placement).__name__.lstrip('_')}({told})"


def _mesh_names(mesh: Any) -> tuple[str, ...]:
    """Return the names of the dimensions of a device mesh; their numbers where it has none."""
    return tuple(mesh.mesh_dim_names or map(str, range(mesh.ndim)))
