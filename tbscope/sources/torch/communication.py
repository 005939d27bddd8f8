"""What kernels tell other ranks: for each that communicates, what it hands in and what it gets."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from tbscope.ir.facts import Collective, CollectiveKind
from tbscope.sources.torch.internals import schema_of
from tbscope.sources.torch.literals import collect_tensors
from tbscope.sources.torch.ranks import Group, Groups

__all__ = ["SAME", "Exchange", "exchange_of", "is_blocking", "is_wait"]


class Exchange(NamedTuple):
    """How a kernel communicates, by the names of its arguments.

    Attributes:
        kind: What it does together with others.
        given: The argument with the tensors that it hands in; empty for none.
        taken: The argument that it fills; empty where what it gets is its result, or nothing.
        peer: The argument that names the other rank, or where it begins or ends; empty for none.
        by_group: Whether that rank is counted within the group.
        gives: Whether what it gets is its result.
    """

    kind: CollectiveKind
    given: str = ""
    taken: str = ""
    peer: str = ""
    by_group: bool = True
    gives: bool = False

    def collective(
        self,
        kernel: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,
        *,
        groups: Groups,
    ) -> Collective:
        """Return what one call of the kernel did, without its number in the group."""
        told = _told(kernel, args, kwargs)
        name = next((key for key in _GROUPS if key in told), "")
        group = groups.group(told.get(name))
        given = collect_tensors(told.get(self.given), [])
        taken = collect_tensors(result if self.gives else told.get(self.taken), [])
        peer = self._peer(told, group)
        rank = torch.distributed.get_rank()
        if self.kind in _FROM_ONE and peer != rank:
            given = []
        elif self.kind in _TO_ONE and peer != rank:
            taken = []
        reduction = told.get("reduce_op", told.get("reduceOp"))
        return Collective(
            self.kind,
            None if reduction is None else _reduction(reduction),
            group.ranks,
            group.mesh,
            _bytes(given),
            _bytes(taken),
            peer,
            group.name,
            asynchronous=bool(told.get("async_op", self.gives)),
            tensors=max(len(given), len(taken)) if self.kind in _OF_MANY else 1,
        )

    def tensors(
        self, kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """Return what one call of the kernel hands in, and what it fills."""
        told = _told(kernel, args, kwargs)
        names = dict.fromkeys(filter(None, (self.given, self.taken)))
        return tuple(told[name] for name in names)

    def _peer(self, told: Mapping[str, Any], group: Group) -> int | None:
        place = told.get(self.peer)
        if place is None:
            return None
        return group.rank(int(place)) if self.by_group else int(place)


_GROUPS = ("process_group", "group_name")
_FROM_ONE = frozenset({"broadcast", "scatter"})
_TO_ONE = frozenset({"reduce", "gather"})
_OF_MANY = frozenset({"all_reduce", "broadcast"})
_IN_PLACE = ("tensors", "tensors")

# Sources: torch/csrc/distributed/c10d/Ops.cpp and Functional.cpp. The ranks in arguments of c10d
# are counted within the group.
_EXCHANGES: dict[str, Exchange] = {
    "c10d::allreduce_": Exchange("all_reduce", *_IN_PLACE),
    "c10d::allreduce_coalesced_": Exchange("all_reduce", *_IN_PLACE),
    "c10d::allgather_": Exchange("all_gather", "input_tensors", "output_tensors"),
    "c10d::_allgather_base_": Exchange("all_gather", "input_tensor", "output_tensor"),
    "c10d::allgather_coalesced_": Exchange("all_gather", "input_list", "output_lists"),
    "c10d::allgather_into_tensor_coalesced_": Exchange("all_gather", "inputs", "outputs"),
    "c10d::reduce_scatter_": Exchange("reduce_scatter", "input_tensors", "output_tensors"),
    "c10d::_reduce_scatter_base_": Exchange("reduce_scatter", "input_tensor", "output_tensor"),
    "c10d::reduce_scatter_tensor_coalesced_": Exchange("reduce_scatter", "inputs", "outputs"),
    "c10d::reduce_": Exchange("reduce", *_IN_PLACE, "root_rank"),
    "c10d::broadcast_": Exchange("broadcast", *_IN_PLACE, "root_rank"),
    "c10d::gather_": Exchange("gather", "input_tensors", "output_tensors", "root_rank"),
    "c10d::scatter_": Exchange("scatter", "input_tensors", "output_tensors", "root_rank"),
    "c10d::alltoall_": Exchange("all_to_all", "input_tensors", "output_tensors"),
    "c10d::alltoall_base_": Exchange("all_to_all", "input", "output"),
    "c10d::barrier": Exchange("barrier"),
    "c10d::monitored_barrier_": Exchange("barrier"),
    "c10d::send": Exchange("send", "tensors", "", "dst"),
    "c10d::recv_": Exchange("recv", "", "tensors", "src"),
    "c10d::recv_any_source_": Exchange("recv", "", "tensors"),
    "_dtensor::shard_dim_alltoall": Exchange("all_to_all", "input", gives=True),
    "_c10d_functional::isend": Exchange("send", "tensor", "", "dst"),
    "_c10d_functional::irecv": Exchange("recv", "", "tensor", "src"),
}
_FUNCTIONAL: tuple[tuple[str, CollectiveKind, str], ...] = (
    ("all_reduce", "all_reduce", "input"),
    ("all_reduce_coalesced", "all_reduce", "inputs"),
    ("all_gather_into_tensor", "all_gather", "input"),
    ("all_gather_into_tensor_coalesced", "all_gather", "inputs"),
    ("reduce_scatter_tensor", "reduce_scatter", "input"),
    ("reduce_scatter_tensor_coalesced", "reduce_scatter", "inputs"),
    ("all_to_all_single", "all_to_all", "input"),
    ("broadcast", "broadcast", "input"),
)
for _name, _kind, _given in _FUNCTIONAL:
    _peer = "src" if _kind == "broadcast" else ""
    # Each with its in-place form, and that with a place for the result.
    for _form in (_name, f"{_name}_", f"{_name}_out"):
        _EXCHANGES[f"_c10d_functional::{_form}"] = Exchange(_kind, _given, "", _peer, gives=True)

SAME = ["_c10d_functional::_wrap_tensor_autograd"]
"""The kernels of an operation that gives what it is given, as a tensor that knows to wait."""


def exchange_of(kernel: str) -> Exchange | None:
    """Return how a kernel communicates, by its name; None for one that does not."""
    return _EXCHANGES.get(kernel)


def is_blocking(kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Tell whether a kernel is over when it returns, as its arguments say."""
    return _told(kernel, args, kwargs).get("async_op") is False


def is_wait(kernel: str) -> bool:
    """Tell whether a kernel, by its name, waits for what another one has begun."""
    return kernel == "_c10d_functional::wait_tensor"


def _told(kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a kernel by their names, with the defaults of its schema."""
    schema = schema_of(kernel)
    names = [argument.name for argument in schema.arguments]
    told = {
        argument.name: argument.default_value
        for argument in schema.arguments
        if argument.has_default_value()
    }
    told.update(zip(names, args, strict=False))
    told.update(kwargs)
    return told


def _reduction(told: Any) -> str:
    """Return how what ranks hand in becomes one (`sum`), as torch prints it; or `unknown`."""
    if isinstance(told, str):
        return told.lower()
    # A kernel is told of one in a box, which gives its number. That of earlier torch gives nothing.
    number = getattr(told, "op", None)
    if number is None:
        return "unknown"
    return str(torch.distributed.ReduceOp.RedOpType(number()).name).lower()


def _bytes(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
