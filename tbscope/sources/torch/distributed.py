"""Distributed runs: ranks, process groups, device meshes, shardings, and collective kernels.

Only this file names torch's private APIs for these. torch may change them in any release; each
API that a supported version lacks has a fallback here.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from tbscope.ir.metadata import Collective, CollectiveKind, MeshDimension, Sharding
from tbscope.sources.torch.calling.argument_values import collect_tensors
from tbscope.sources.torch.compat.tensors import schema_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


# The last two are None in a torch that was built without torch.distributed.
_distributed: Any = torch.distributed
_c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
_binding: object = getattr(torch._C, "_distributed_c10d", None)

WORKS: tuple[Any, ...] = tuple(
    kind for name in ("Work", "FakeWork") if "wait" in vars(kind := getattr(_binding, name, object))
)
"""The classes of c10d's `Work`: handles of asynchronous collectives, on which Python waits."""

# The file and the class of `shard_steps`; the second are of FullyShardedDataParallel.
_SHARD_STEPS: tuple[tuple[str, str, dict[str, str]], ...] = (
    (
        "_fully_shard._fsdp_param_group",
        "FSDPParamGroup",
        {
            "unshard": "gather",
            "wait_for_unshard": "gather",
            "reshard": "free",
            "post_backward": "reduce_scatter",
        },
    ),
    (
        "_runtime_utils",
        "",
        {
            "_unshard": "gather",
            "_reshard": "free",
            "_reduce_grad": "reduce_scatter",
            "_reduce_grad_no_shard": "reduce_scatter",
        },
    ),
)

# Files in which torch computes coordinates of ranks with tensors, and asks views for their bases.
_OWN_FILES = tuple(
    f"torch/distributed/{name}.py"
    for name in ("device_mesh", "_mesh_layout", "fsdp/_fully_shard/_fsdp_state")
)


def is_distributed() -> bool:
    """Whether this process belongs to a distributed run with initialized process groups."""
    return bool(_distributed.is_available() and _distributed.is_initialized())


def process_rank() -> int:
    """Return the rank of this process, or 0 outside distributed runs."""
    return int(_distributed.get_rank()) if is_distributed() else 0


def world_size() -> int:
    """Return the number of ranks, or 1 outside distributed runs."""
    return int(_distributed.get_world_size()) if is_distributed() else 1


def is_launched_in_group() -> bool:
    """Whether a launcher started this process as one of several (WORLD_SIZE).

    The process groups may not be initialized yet.
    """
    count = os.environ.get("WORLD_SIZE", "")
    return count.isdecimal() and int(count) > 1


def is_simulated() -> bool:
    """Whether the other ranks are simulated: the backend is torch's fake process group."""
    return bool(_distributed.get_backend() == "fake")


def shard_steps() -> Iterator[tuple[object, str, str]]:
    """Yield torch's functions that gather and free parameters, and that reduce gradients.

    Each comes with its class or file, and the name of the box for its operations. Functions that
    are not imported are left out: no module is sharded by them.
    """
    for name, owner, steps in _SHARD_STEPS:
        file = sys.modules.get(f"torch.distributed.fsdp.{name}")
        home = getattr(file, owner, file)
        yield from ((home, step, box) for step, box in steps.items() if hasattr(home, step))


def sharded_module(args: tuple[Any, ...]) -> Any:
    """Return the module that a function of `shard_steps` is called for, by its arguments.

    None if torch does not name it.
    """
    for handle in args[1:2]:
        if (module := getattr(handle, "_fully_sharded_module", None)) is not None:
            return module
    modules = getattr(args[0], "modules", None)
    return modules[0] if isinstance(modules, tuple) else None


def shared_store(prefix: str) -> Any:
    """Return a view of the key-value store that all processes of the run share.

    Args:
        prefix: The prefix of all keys of this view.
    """
    return _distributed.PrefixStore(prefix, _c10d._get_default_store())


def fake_store() -> Any:
    """Return a store for torch's fake process group; the import registers the backend `fake`."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    return FakeStore()


def is_of_c10d(file: str) -> bool:
    """Whether a file is torch's `distributed_c10d.py`, which defines the collectives."""
    return _c10d is not None and file == _c10d.__file__


def is_bookkeeping_file(file: str) -> bool:
    """Whether a file is one in which torch runs operations for its own bookkeeping of ranks."""
    return file.endswith(_OWN_FILES)


def is_boxed_work(boxed: object, work: object) -> bool:
    """Whether a boxed `Work`, as a kernel returns it, is the `Work` that Python waits for."""
    try:
        return _distributed.Work.unbox(boxed) is work
    except (AttributeError, RuntimeError, TypeError):
        return False


def is_dtensor(kind: type) -> bool:
    """Whether tensors of a class are spread over ranks (`DTensor`)."""
    dtensor = sys.modules.get("torch.distributed.tensor")
    return dtensor is not None and issubclass(kind, dtensor.DTensor)


def clear_sharding_cache() -> None:
    """Clear torch's cache of sharding decisions for DTensor operations.

    A cached decision refers to the device mesh for which it was made. The mesh of a later run in
    this process compares equal to it, so torch would use groups that are destroyed. If torch
    lacks the function, collectives of these groups are recorded without a group.
    """
    if "torch.distributed.tensor" not in sys.modules:
        return
    from torch.distributed.tensor import debug

    clear_cache = getattr(debug, "_clear_sharding_prop_cache", None)
    if clear_cache is not None:
        clear_cache()


class Group(NamedTuple):
    """A process group, as a graph records it.

    Attributes:
        ranks: Its ranks, as global ranks.
        mesh: The name of the mesh dimension to which the group belongs; empty for none.
        name: torch's name for the group.
    """

    ranks: tuple[int, ...]
    mesh: str
    name: str

    def rank(self, group_rank: int) -> int | None:
        """Return the global rank of a rank within the group, or None if out of range."""
        return self.ranks[group_rank] if 0 <= group_rank < len(self.ranks) else None


_UNKNOWN = Group((), "", "")
# The prefix of torch's descriptions of groups that belong to a mesh dimension.
# Source: torch/distributed/device_mesh.py, _init_process_groups.
_PREFIX = "mesh_"


class Groups:
    """The process groups of one run, each with its dimension of the device mesh.

    Args:
        meshes: Returns the meshes of the run's tensors.
    """

    def __init__(self, meshes: Callable[[], Iterable["DeviceMesh"]]) -> None:
        self._meshes_of_run = meshes
        self._known: dict[str, Group] = {}
        # By `id`: a comparison of meshes would read tensors.
        self._meshes: dict[int, DeviceMesh] = {}
        self._names: dict[str, str] = {}

    def group(self, argument: object) -> Group:
        """Return the group of a kernel's argument; None is the default group.

        Groups that torch cannot resolve return a group without ranks.
        """
        if argument is None:
            argument = _distributed.group.WORLD
        process_group = _group_of(argument)
        if process_group is None:
            return _UNKNOWN
        name = str(process_group.group_name)
        group = self._known.get(name)
        if group is None:
            ranks = tuple(_distributed.get_process_group_ranks(process_group))
            group = self._known[name] = Group(ranks, self._mesh_of(name, process_group), name)
        return group

    def mesh(self) -> tuple[MeshDimension, ...]:
        """Return the dimensions of the largest root mesh, with this rank's coordinates.

        Empty if the run has no mesh.
        """
        self._meet()
        roots = [mesh for mesh in self._meshes.values() if _root_mesh(mesh) is mesh]
        if not roots:
            return ()
        largest = max(roots, key=lambda mesh: (mesh.size(), mesh.ndim))
        coordinate = largest.get_coordinate()
        return tuple(
            MeshDimension(
                name, largest.size(dimension), 0 if coordinate is None else coordinate[dimension]
            )
            for dimension, name in enumerate(_mesh_names(largest))
        )

    def _mesh_of(self, name: str, process_group: object) -> str:
        self._meet()
        if name in self._names:
            return self._names[name]
        description = str(getattr(process_group, "group_desc", ""))
        return description.removeprefix(_PREFIX) if description.startswith(_PREFIX) else ""

    def _meet(self) -> None:
        """Add the meshes of the run's tensors, and their roots."""
        for each in self._meshes_of_run():
            for mesh in (each, _root_mesh(each)):
                if id(mesh) in self._meshes:
                    continue
                self._meshes[id(mesh)] = mesh
                # A mesh that was made without groups has none to name.
                with suppress(AssertionError, LookupError, RuntimeError, ValueError):
                    for dimension, name in enumerate(_mesh_names(mesh)):
                        self._names.setdefault(str(mesh.get_group(dimension).group_name), name)


def _group_of(name: object) -> Any:
    """Return the process group of a kernel's argument: a group, a boxed group or a group's name.

    None if torch cannot resolve it.
    """
    kind = _distributed.ProcessGroup
    if isinstance(name, kind):
        return name
    try:
        if isinstance(name, str):
            return _c10d._resolve_process_group(name)
        return kind.unbox(name)
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return None


def _root_mesh(mesh: object) -> Any:
    """Return the root of a device mesh, which is the mesh itself if it is no submesh."""
    try:
        if hasattr(mesh, "_get_root_mesh"):
            return mesh._get_root_mesh() or mesh
        resources = sys.modules["torch.distributed.device_mesh"]._mesh_resources
        return resources.get_root_mesh(mesh) or mesh
    except (AttributeError, KeyError, RuntimeError):
        return mesh


def sharding_of(tensor: Any) -> Sharding | None:
    """Return the local shape and the placements of a DTensor, or None for any other tensor."""
    if not is_dtensor(type(tensor)):
        return None
    shape = tuple(size if type(size) is int else None for size in tensor._local_tensor.shape)
    placements = tuple(map(_placement_text, tensor.placements))
    return Sharding(shape, placements, _mesh_names(tensor.device_mesh))


def _placement_text(placement: object) -> str:
    """Return a placement as its user writes it: `Shard(0)`, `Replicate()`, `Partial(sum)`."""
    argument = getattr(placement, "dim", getattr(placement, "reduce_op", ""))
    return f"{type(placement).__name__.lstrip('_')}({argument})"


def _mesh_names(mesh: "DeviceMesh") -> tuple[str, ...]:
    """Return the names of the dimensions of a device mesh, or their numbers if it has no names."""
    return tuple(mesh.mesh_dim_names or map(str, range(mesh.ndim)))


_Args: TypeAlias = tuple[object, ...]
_Kwargs: TypeAlias = Mapping[str, object]


class Exchange(NamedTuple):
    """The role of each argument of a kernel that communicates, by the argument's name.

    Attributes:
        kind: The kind of collective, or of point-to-point operation.
        given: The argument with the tensors to send; empty for none.
        taken: The argument that receives tensors; empty if they are the result, or if there are
            none.
        peer: The argument with the rank of the other side, or of the root; empty for none.
        gives: Whether the received tensors are the result.
    """

    kind: CollectiveKind
    given: str = ""
    taken: str = ""
    peer: str = ""
    gives: bool = False

    def collective(
        self,
        kernel: object,
        args: _Args,
        kwargs: _Kwargs,
        result: object,
        *,
        groups: Groups,
    ) -> Collective:
        """Return the record of one call of the kernel, without its sequence number."""
        arguments = _told(kernel, args, kwargs)
        group = groups.group(arguments.get("process_group", arguments.get("group_name")))
        sent = collect_tensors(arguments.get(self.given), [])
        received = collect_tensors(result if self.gives else arguments.get(self.taken), [])
        peer = arguments.get(self.peer)
        if peer is not None:
            peer = group.rank(int(peer))
        rank = torch.distributed.get_rank()
        if self.kind in _FROM_ONE and peer != rank:
            sent = []
        elif self.kind in _TO_ONE and peer != rank:
            received = []
        reduction = arguments.get("reduce_op", arguments.get("reduceOp"))
        return Collective(
            self.kind,
            None if reduction is None else _reduction(reduction),
            group.ranks,
            group.mesh,
            _bytes(sent),
            _bytes(received),
            peer,
            group.name,
            asynchronous=bool(arguments.get("async_op", self.gives)),
            tensors=max(len(sent), len(received)) if self.kind in _OF_MANY else 1,
        )

    def tensors(self, kernel: object, args: _Args, kwargs: _Kwargs) -> tuple[Any, ...]:
        """Return the arguments of one call that the kernel sends, and those that it fills."""
        arguments = _told(kernel, args, kwargs)
        names = dict.fromkeys(filter(None, (self.given, self.taken)))
        return tuple(arguments[name] for name in names)


# Only the root sends, or only the root receives.
_FROM_ONE = frozenset({"broadcast", "scatter"})
_TO_ONE = frozenset({"reduce", "gather"})
_OF_MANY = frozenset({"all_reduce", "broadcast"})
# The kind of a kernel is the first of these that occurs in its name, both without `_`. Hence the
# order: `reduce_scatter` before `reduce` and `scatter`.
_KINDS: tuple[CollectiveKind, ...] = (
    *("reduce_scatter", "all_reduce", "all_gather", "all_to_all", "broadcast", "barrier"),
    *("gather", "scatter", "reduce", "send", "recv"),
)
_HOMES = frozenset({"c10d", "_c10d_functional", "_dtensor"})
# The names of arguments in the schemas of kernels. Rank arguments are ranks within the group.
# Sources: torch/csrc/distributed/c10d/Ops.cpp and Functional.cpp.
_GIVEN = ("input_tensors", "input_tensor", "input_list", "inputs", "input", "tensors", "tensor")
_TAKEN = ("output_tensors", "output_tensor", "output_lists", "outputs", "output")
_PEERS = ("root_rank", "dst", "src")
_EXCHANGES: dict[str, Exchange | None] = {}

ASYNC_WRAPPERS = ["_c10d_functional::_wrap_tensor_autograd"]
"""The kernels of an operation that returns its argument, wrapped in a tensor that waits on use."""


def exchange_of(kernel: str, schema: object = None) -> Exchange | None:
    """Return the `Exchange` of a kernel, or None if the kernel does not communicate.

    Args:
        kernel: The kernel's name, with its namespace.
        schema: The kernel's schema, needed the first time; later calls find the name in a cache.
    """
    if schema is not None and kernel not in _EXCHANGES:
        namespace, _, label = kernel.partition("::")
        plain = label.replace("_", "")
        kinds = (kind for kind in _KINDS if kind.replace("_", "") in plain)
        kind = next(kinds, None) if namespace in _HOMES else None
        _EXCHANGES[kernel] = None if kind is None else _exchange(kind, schema, namespace == "c10d")
    return _EXCHANGES.get(kernel)


def _exchange(kind: CollectiveKind, schema: Any, fills: bool) -> Exchange:
    """Return the `Exchange` of a kernel of a kind.

    Kernels of c10d fill an argument (`fills`); functional ones return new tensors.
    """
    names = [argument.name for argument in schema.arguments]
    source, target, peer = (
        next((name for name in candidates if name in names), "")
        for candidates in (_GIVEN, _TAKEN, _PEERS)
    )
    if kind == "barrier":
        return Exchange(kind)
    if kind == "send":
        return Exchange(kind, source, "", peer)
    if kind == "recv":
        return Exchange(kind, "", source, peer)
    return Exchange(kind, source, (target or source) if fills else "", peer, gives=not fills)


def is_blocking(kernel: object, args: _Args, kwargs: _Kwargs) -> bool:
    """Whether a kernel has completed when it returns: its arguments say `async_op=False`."""
    return _told(kernel, args, kwargs).get("async_op") is False


def is_wait(kernel: str) -> bool:
    """Whether a kernel, by its name, waits for a collective that another kernel started."""
    return kernel == "_c10d_functional::wait_tensor"


def _told(kernel: object, args: _Args, kwargs: _Kwargs) -> dict[str, Any]:
    """Return the arguments of a kernel by their names, with the defaults of its schema."""
    schema = schema_of(kernel)
    names = [argument.name for argument in schema.arguments]
    arguments = {
        argument.name: argument.default_value
        for argument in schema.arguments
        if argument.has_default_value()
    }
    arguments.update(zip(names, args, strict=False))
    arguments.update(kwargs)
    return arguments


def _reduction(op: object) -> str:
    """Return the name of a reduction (`sum`), in lower case, or `unknown`."""
    if isinstance(op, str):
        return op.lower()
    # Kernels of c10d receive a boxed ReduceOp, whose `op()` returns the number of the reduction.
    # The box of earlier versions of torch has no `op`.
    number = getattr(op, "op", None)
    if number is None:
        return "unknown"
    return str(torch.distributed.ReduceOp.RedOpType(number()).name).lower()


def _bytes(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
