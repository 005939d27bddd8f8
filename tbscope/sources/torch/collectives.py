"""Collective kernels: the tensors that each one sends to other ranks and receives from them."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import torch

from tbscope.ir.metadata import Collective, CollectiveKind
from tbscope.sources.torch.calling.argument_values import collect_tensors
from tbscope.sources.torch.compat.tensors import schema_of
from tbscope.sources.torch.distributed import Groups

__all__ = ["ASYNC_WRAPPERS", "Exchange", "exchange_of", "is_blocking", "is_wait"]

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
