"""Table of the tensors of a run: one record for each, by identity.

A record has the value that the tensor has now. Tensors can be inside of other tensors: in the
wrappers of `vmap`, `grad` and `jvp`, and in tensor subclasses. No operation was seen that produces
the inner tensors of a wrapper. An inner tensor that an operation reads gets a node that takes it
out of its wrapper; a wrapper with a replaced or changed inner tensor gets a node that makes it
anew.
"""

from dataclasses import dataclass
from typing import NamedTuple
from weakref import ref

import torch

from tbscope.ir.graph import Node, Shape, Value
from tbscope.sources.torch.compat.tensors import batch_dimension, functorch_inner, plain_size
from tbscope.sources.torch.distributed import sharding_of
from tbscope.sources.torch.subclasses import (
    PLAIN,
    inner_tensors,
    is_wrapper,
    may_have_inner_tensors,
    type_names,
)


class InnerTensor:
    """A tensor inside of a wrapper that an operation returned.

    Attributes:
        tensor: The inner tensor, as a weak reference.
        outer: The value of the wrapper at that time, or the wrapper's own entry if the wrapper is
            inside of another wrapper.
        op: The operation that takes it out, or None if both are the same for a reader.
        dimension: The dimension that `vmap` hides; None for any other wrapper.
        shape: Its sizes.
        dtype: Its element type.
        device: Its device.
        value: Its value; None until an operation reads it.
    """

    def __init__(
        self,
        tensor: torch.Tensor,
        outer: "Value | InnerTensor",
        op: str | None,
        dimension: int | None,
    ) -> None:
        self.tensor = ref(tensor)
        self.outer = outer
        self.op, self.dimension = op, dimension
        self.shape = shape_of(tensor)
        self.dtype, self.device = type_names(tensor.dtype, tensor.device)
        self.value: Value | None = None

    @property
    def root(self) -> Value:
        """Value of the outermost wrapper."""
        outer = self.outer
        while isinstance(outer, InnerTensor):
            outer = outer.outer
        return outer


class _InnerState(NamedTuple):
    """State of one inner tensor at the time when its tensor of a subclass was made.

    Attributes:
        held: The inner tensor, as a weak reference.
        was: Its value or entry at that time; None if it had neither.
    """

    held: "ref[torch.Tensor]"
    was: Value | InnerTensor | None

    def is_now(self, tensor: torch.Tensor, now: Value | InnerTensor | None) -> bool:
        """Whether the inner tensor is still the same object with the same content."""
        if self.held() is not tensor:
            return False
        was = self.was
        if now is was:
            return True
        if was is None:
            # An inner tensor without a value then is unchanged if a source node (a parameter, an
            # input) produces it now: it was only read since.
            return not isinstance(now, Value) or now.producer.kind != "op"
        # The inner tensor may have been taken out of its own wrapper since, which changes nothing.
        return isinstance(was, InnerTensor) and now is was.value


@dataclass(slots=True, eq=False)
class TensorRecord:
    """What a run has seen of one tensor.

    Attributes:
        tensor: The tensor, as a weak reference: identities are reused.
        value: The value that it has now; None if it has none, or only as an inner tensor.
        parts: The states of its inner tensors at the time when it was made, by attribute; None for
            a tensor that is not made of others.
        inner: The wrapper that contains it, with the operation that takes it out; None outside of
            wrappers, and once it has a value of its own.
        alias: The value of the tensor of which it is an alias; None for no alias.
    """

    tensor: "ref[torch.Tensor]"
    value: Value | None = None
    parts: dict[str, _InnerState] | None = None
    inner: InnerTensor | None = None
    alias: Value | None = None


class TensorTable:
    """The record of each tensor of a run.

    Attributes:
        records: The records by `id(tensor)`, public for callers that look up each tensor of a
            trace. A record is valid only while its tensor lives.
        any_composed: Whether any tensor was inside of another tensor, or is an alias of one; False
            in most models, so that callers can skip a search.
    """

    def __init__(self) -> None:
        self.records: dict[int, TensorRecord] = {}
        self.any_composed = False

    # -- asking ---------------------------------------------------------------------------

    def record(self, tensor: torch.Tensor) -> TensorRecord | None:
        """Return the record of a tensor, or None for an unknown tensor."""
        record = self.records.get(id(tensor))
        return record if record is not None and record.tensor() is tensor else None

    def inside(self, tensor: torch.Tensor) -> InnerTensor | None:
        """Return the wrapper of an inner tensor without a value of its own, or None."""
        record = self.record(tensor)
        return None if record is None else record.inner

    def alias(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of the tensor of which this tensor is an alias, or None."""
        record = self.record(tensor)
        return None if record is None else record.alias

    def changed(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return the inner tensors that changed since their tensor of a subclass was made.

        A changed inner tensor is another object, or has another value.
        """
        record = self.record(tensor)
        parts = {} if record is None or record.parts is None else record.parts
        return [
            part
            for name, part in inner_tensors(tensor)
            if name not in parts or not parts[name].is_now(part, self._state(part))
        ]

    def left(self, read: set[Value]) -> list[tuple[torch.Tensor, Value]]:
        """Return the live inner tensors whose wrapper is gone, with the value of the wrapper.

        Args:
            read: The values that operations read or live tensors have; their wrappers are skipped.
        """
        return [
            (tensor, inner.root)
            for record in self.records.values()
            if (inner := record.inner) is not None
            if inner.value is None and inner.root not in read
            if (tensor := record.tensor()) is not None
        ]

    def alive(self) -> list[tuple[torch.Tensor, Value]]:
        """Return the live tensors that have a value, with their values."""
        return [
            (tensor, record.value)
            for record in self.records.values()
            if record.value is not None and (tensor := record.tensor()) is not None
        ]

    # -- noting ---------------------------------------------------------------------------

    def set_made(self, tensor: torch.Tensor, value: Value) -> None:
        """Set the value of a tensor that was made now, of which its inner tensors are parts."""
        self._enter(tensor, value, again=isinstance(self._state(tensor), Value))
        self.set_value(tensor, value)

    def set_value(self, tensor: torch.Tensor, value: Value) -> None:
        """Set the value of a tensor; its inner tensors keep their own values."""
        record = self._record_of(tensor)
        record.value, record.inner = value, None
        if may_have_inner_tensors(type(tensor)):
            record.parts = {
                name: _InnerState(ref(part), self._state(part))
                for name, part in inner_tensors(tensor)
            }
            self.any_composed = True

    def set_alias(self, alias: torch.Tensor, value: Value) -> None:
        """Record that a tensor is an alias of a tensor with this value."""
        self._record_of(alias).alias = value
        self.any_composed = True

    def let_go(self, tensor: torch.Tensor) -> None:
        """Drop all references to a tensor, weak references too."""
        self.records.pop(id(tensor), None)
        for record in self.records.values():
            if record.parts is not None:
                record.parts = {
                    name: part for name, part in record.parts.items() if part.held() is not tensor
                }

    def _record_of(self, tensor: torch.Tensor) -> TensorRecord:
        """Return the record of a tensor, a new one for an unknown tensor."""
        record = self.record(tensor)
        if record is None:
            record = self.records[id(tensor)] = TensorRecord(ref(tensor))
        return record

    def _enter(self, tensor: torch.Tensor, outer: Value | InnerTensor, *, again: bool) -> None:
        """Register the inner tensors of a tensor.

        Args:
            tensor: The outer tensor.
            outer: Its value, or its own entry if it is an inner tensor itself.
            again: Whether the outer tensor has a new value, which also replaces values of inner
                tensors; otherwise inner tensors that have a value or an entry keep it.
        """
        for inner, op, dimension in self._ways(tensor):
            if self._state(inner) is not None and not again:
                continue
            record = self._record_of(inner)
            record.value = record.parts = None
            record.inner = entry = InnerTensor(inner, outer, op, dimension)
            self.any_composed = True
            self._enter(inner, entry, again=again)

    def _ways(self, tensor: torch.Tensor) -> list[tuple[torch.Tensor, str | None, int | None]]:
        """Return the inner tensors of a tensor.

        Each comes with the operation that takes it out (None if none is needed), and with the
        dimension that `vmap` hides (None for any other wrapper).
        """
        wrapped = functorch_inner(tensor)
        if wrapped is not None:
            dimension = batch_dimension(tensor)
            return [(wrapped, None if dimension is None else "remove_batch_dim", dimension)]
        parts = inner_tensors(tensor) if may_have_inner_tensors(type(tensor)) else []
        if len(parts) == 1 and self.is_all(tensor, parts[0][1]):
            return [(parts[0][1], None, None)]
        return [(part, name.strip("_"), None) for name, part in parts]

    def is_all(self, tensor: torch.Tensor, part: torch.Tensor) -> bool:
        """Whether a wrapper and its only inner tensor are the same for a reader."""
        return (
            is_wrapper(type(tensor))
            and part.dtype == tensor.dtype
            and shape_of(part) == shape_of(tensor)
        )

    def _state(self, tensor: torch.Tensor) -> Value | InnerTensor | None:
        """Return the value of a tensor, or its entry as an inner tensor, or None."""
        record = self.record(tensor)
        return None if record is None else record.value or record.inner


def add_value(node: Node, tensor: torch.Tensor) -> Value:
    """Append an output to a node, with the shape and the type of a tensor."""
    dtype, device = type_names(tensor.dtype, tensor.device)
    outputs = node.outputs
    if type(tensor) in PLAIN and not tensor.is_nested:
        value = Value(node, len(outputs), tuple(tensor.shape), dtype, device)
    else:
        value = Value(node, len(outputs), shape_of(tensor), dtype, device, sharding_of(tensor))
    outputs.append(value)
    return value


def shape_of(tensor: torch.Tensor) -> Shape:
    """Return the sizes of a tensor, with None for each size that is not a plain number."""
    try:
        shape = tuple(tensor.shape)
    except RuntimeError:
        # A nested tensor of the strided layout has sizes for some of its dimensions only.
        return tuple(_size(tensor, dim) for dim in range(tensor.dim()))
    for size in shape:
        if type(size) is not int:
            return tuple(map(plain_size, shape))
    return shape


def _size(tensor: torch.Tensor, dim: int) -> int | None:
    try:
        return int(tensor.size(dim))
    except RuntimeError:
        return None
