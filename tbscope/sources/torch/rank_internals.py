"""The private parts of torch that tell of distributed runs: groups, works, device meshes.

torch promises nothing about them. What a version that is supported lacks has a fallback here.
"""

import gc
import sys
from typing import Any

import torch

from tbscope.sources.torch.internals import without_modes

__all__ = [
    "WORKS",
    "default_store",
    "device_meshes",
    "fake_store",
    "forget_plans",
    "group_of",
    "is_of_c10d",
    "is_of_meshes",
    "is_spread",
    "local_shape",
    "ranks_along",
    "root_mesh",
    "same_work",
]

_distributed = torch.distributed
_c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
_binding: Any = getattr(torch._C, "_distributed_c10d", None)

WORKS: tuple[Any, ...] = tuple(
    kind for name in ("Work", "FakeWork") if "wait" in vars(kind := getattr(_binding, name, object))
)
"""The classes of what runs on while Python goes on, and that Python waits for."""


def fake_store() -> Any:
    """Return what torch's fake process group is begun with; the group is known from then on."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()


def default_store() -> Any:
    """Return the store over which the processes of this run have found each other."""
    return _c10d._get_default_store()


def is_of_c10d(file: str) -> bool:
    """Tell whether a file is the one in which torch keeps its collectives."""
    return _c10d is not None and file == _c10d.__file__


def is_of_meshes(file: str) -> bool:
    """Tell whether a file is one in which torch keeps device meshes."""
    return file.endswith(_MESH_FILES)


# Places of ranks are computed with tensors.
_MESH_FILES = ("torch/distributed/device_mesh.py", "torch/distributed/_mesh_layout.py")


def group_of(told: Any) -> Any:
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


def same_work(boxed: Any, work: Any) -> bool:
    """Tell whether what a kernel gave in a box is the work that Python waits for."""
    try:
        return _distributed.Work.unbox(boxed) is work
    except (AttributeError, RuntimeError, TypeError):
        return False


def root_mesh(mesh: Any) -> Any:
    """Return the device mesh that another one is a part of; itself where it is part of none."""
    try:
        if hasattr(mesh, "_get_root_mesh"):
            return mesh._get_root_mesh() or mesh
        resources = sys.modules["torch.distributed.device_mesh"]._mesh_resources
        return resources.get_root_mesh(mesh) or mesh
    except (AttributeError, KeyError, RuntimeError):
        return mesh


def ranks_along(mesh: Any, dimension: int) -> list[int]:
    """Return the ranks beside this one along a dimension of a mesh; empty where it is in none."""
    at = mesh.get_coordinate()
    if at is None:
        return []
    with without_modes():
        places: Any = mesh.mesh.tolist()
    for number in at[:dimension]:
        places = places[number]
    for number in at[dimension + 1 :]:
        places = [place[number] for place in places]
    return list(places)


def is_spread(kind: type) -> bool:
    """Tell whether tensors of a class are spread over ranks (`DTensor`)."""
    home = sys.modules.get("torch.distributed.tensor")
    return home is not None and issubclass(kind, home.DTensor)


def local_shape(tensor: Any) -> tuple[Any, ...]:
    """Return the sizes of what this rank holds of a tensor that is spread over ranks."""
    return tuple(tensor._local_tensor.shape)


def device_meshes() -> list[Any]:
    """Return all device meshes that there are, the latest first; torch keeps no list of them."""
    home = sys.modules.get("torch.distributed.device_mesh")
    if home is None:
        return []
    kind = home.DeviceMesh
    # The younger generations hold what was made last, and each has it at its end.
    generations = [gc.get_objects(generation=number) for number in range(len(gc.get_count()))]
    return [thing for held in generations for thing in reversed(held) if type(thing) is kind]


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
