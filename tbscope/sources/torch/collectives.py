"""What kernels tell other ranks: for each that communicates, what it hands in and what it gets."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from tbscope.ir.metadata import Collective, CollectiveKind
from tbscope.sources.torch.calling.argument_values import collect_tensors
from tbscope.sources.torch.compat.tensors import schema_of
from tbscope.sources.torch.distributed import Groups

__all__ = ["SAME", "Exchange", "exchange_of", "is_blocking", "is_wait"]


class Exchange(NamedTuple):
    """How a kernel communicates, by the names of its arguments.

    Attributes:
        kind: What it does together with others.
        given: The argument with the tensors that it hands in; empty for none.
        taken: The argument that it fills; empty where what it gets is its result, or nothing.
        peer: The argument that names the other rank, or where it begins or ends; empty for none.
        gives: Whether what it gets is its result.
    """

    kind: CollectiveKind
    given: str = ""
    taken: str = ""
    peer: str = ""
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
        group = groups.group(told.get("process_group", told.get("group_name")))
        given = collect_tensors(told.get(self.given), [])
        taken = collect_tensors(result if self.gives else told.get(self.taken), [])
        peer = told.get(self.peer)
        if peer is not None:
            peer = group.rank(int(peer))
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


_FROM_ONE = frozenset({"broadcast", "scatter"})
_TO_ONE = frozenset({"reduce", "gather"})
_OF_MANY = frozenset({"all_reduce", "broadcast"})
# The first of them that is in the name of a kernel, without `_`, is what it does.
_KINDS: tuple[CollectiveKind, ...] = (
    *("reduce_scatter", "all_reduce", "all_gather", "all_to_all", "broadcast", "barrier"),
    *("gather", "scatter", "reduce", "send", "recv"),
)
_HOMES = frozenset({"c10d", "_c10d_functional", "_dtensor"})
# What kernels call their arguments. The ranks among them are counted within the group.
# Sources: torch/csrc/distributed/c10d/Ops.cpp and Functional.cpp.
_GIVEN = ("input_tensors", "input_tensor", "input_list", "inputs", "input", "tensors", "tensor")
_TAKEN = ("output_tensors", "output_tensor", "output_lists", "outputs", "output")
_PEERS = ("root_rank", "dst", "src")
_EXCHANGES: dict[str, Exchange | None] = {}

SAME = ["_c10d_functional::_wrap_tensor_autograd"]
"""The kernels of an operation that gives what it is given, as a tensor that knows to wait."""


def exchange_of(kernel: str, schema: Any = None) -> Exchange | None:
    """Return how a kernel communicates, by its name; None for one that does not.

    Args:
        kernel: The name.
        schema: Its schema, by which it is known from then on; None for one that was met before.
    """
    if schema is not None and kernel not in _EXCHANGES:
        home, _, label = kernel.partition("::")
        plain = label.replace("_", "")
        kinds = (kind for kind in _KINDS if kind.replace("_", "") in plain)
        kind = next(kinds, None) if home in _HOMES else None
        _EXCHANGES[kernel] = None if kind is None else _exchange(kind, schema, home == "c10d")
    return _EXCHANGES.get(kernel)


def _exchange(kind: CollectiveKind, schema: Any, fills: bool) -> Exchange:
    """Return how a kernel of a kind communicates: it fills its arguments, or gives a result."""
    names = [argument.name for argument in schema.arguments]
    given, taken, peer = (
        next((name for name in known if name in names), "") for known in (_GIVEN, _TAKEN, _PEERS)
    )
    if kind == "barrier":
        return Exchange(kind)
    if kind == "send":
        return Exchange(kind, given, "", peer)
    if kind == "recv":
        return Exchange(kind, "", given, peer)
    return Exchange(kind, given, (taken or given) if fills else "", peer, gives=not fills)


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
