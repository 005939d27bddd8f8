"""Slots: the tensors of a program, with their types and the in-place writes into their memory.

A program names results, and writes into some of them. After an in-place write, the slot has a new
value. A node that reads the same memory through another tensor has a control dependency on the
writer.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import torch

from tbscope.ir.graph import Constant, Node, Value
from tbscope.sources.fx.tensor_types import TensorType, Types
from tbscope.sources.torch.calling.pytree import (
    DESCEND,
    is_walked,
    leaves_in,
    rebuilt,
)
from tbscope.sources.torch.subclasses import dtype_name, type_names

_T = TypeVar("_T")

_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def is_symbol(obj: object) -> bool:
    """Whether an object is a symbolic number, which has no value yet."""
    return isinstance(obj, _SYMBOLS)


def types_of_metadata(metadata: object) -> Types:
    """Return the metadata of a node with a `TensorType` in place of each tensor.

    Args:
        metadata: A tensor without content, metadata of a tensor, a number, or a pytree of these.
    Returns:
        A pytree of the same containers. Other leaves are constants, or None for any other object.
    """
    return rebuilt(metadata, _type_or_constant)


def _type_or_constant(entry: object) -> object:
    """Return the type or the constant for an entry of a pytree, or `DESCEND` for a container."""
    if isinstance(entry, torch.Tensor):
        return _type_of(entry)
    if is_symbol(entry):
        # The formula, as `2*s0`.
        return Constant(str(entry))
    if isinstance(entry, tuple):
        fields: Any = entry
        if {"shape", "dtype"} <= set(getattr(entry, "_fields", ())):
            # The TensorMetadata of torch.fx has no device.
            dtype = dtype_name(fields.dtype)
            return _typed(fields.shape, dtype, "cpu", getattr(entry, "stride", None))
        if isinstance(entry, torch.Size):
            return entry if _are_numbers(entry) else tuple(map(_type_or_constant, entry))
        return DESCEND
    if is_walked(type(entry)):
        return DESCEND
    return entry if isinstance(entry, _CONSTANTS) else None


_CONSTANTS = (
    *(bool, int, float, complex, str),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


def tree_replace(nest: object, kind: type[_T], change: Callable[[_T], object]) -> Any:
    """Return a copy of a pytree in which `change` has replaced each instance of a class."""

    def each(entry: object) -> object:
        if type(entry) is kind:
            return change(entry)
        return DESCEND if is_walked(type(entry)) else entry

    return rebuilt(nest, each)


def _type_of(tensor: torch.Tensor) -> TensorType:
    strided = tensor.layout is torch.strided and not tensor.is_nested
    stride = tensor.stride() if strided else None
    shape = (None,) * tensor.dim() if tensor.is_nested else tensor.shape
    typed = _typed(shape, *type_names(tensor.dtype, tensor.device), stride)
    return typed._replace(requires_grad=True) if tensor.requires_grad else typed


def _typed(
    shape: Iterable[Any], dtype: str, device: str, stride: Iterable[Any] | None
) -> TensorType:
    sizes = tuple(map(_number, shape))
    if _are_numbers(sizes):
        strides = tuple(stride) if stride is not None and _are_numbers(stride) else None
        return TensorType(sizes, dtype, device, "", strides)
    plain_sizes = tuple([size if type(size) is int else None for size in sizes])
    symbols = ""
    if any(map(is_symbol, sizes)):
        symbols = f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"
    return TensorType(plain_sizes, dtype, device, symbols)


def _are_numbers(sizes: Iterable[object]) -> bool:
    return {int}.issuperset(map(type, sizes))


def _number(size: Any) -> Any:
    """Return a size as a number if its symbol has a value; else return the symbol."""
    if type(size) is int:
        return size
    text = str(size)
    return int(text) if text.isdecimal() else size


def types_in(types: Types) -> Iterator[TensorType]:
    """Return the types of the tensors in a pytree from left to right."""
    return leaves_in(types, TensorType)


Content: TypeAlias = Any
"""Result of a node of a program: a `Slot`, a constant, or a container of these."""


CallArguments: TypeAlias = tuple[Sequence[Content], Mapping[str, Content]]
"""Positional and keyword arguments of a node, with slots for tensors."""


@dataclass(slots=True, eq=False)
class Slot:
    """Tensor of a program.

    Attributes:
        type: The type.
        value: The current value, or None if its node is appended at the first read.
        make: Appends that node, and returns its value.
        writes: The nodes that wrote into the memory of the tensor, each with its number, in order.
            All aliases share the list.
        at: The number of the node that produced the current value.
        optional: Whether it may be None in its place: a branch of the program returns None.
    """

    type: TensorType
    value: Value | None = None
    make: Callable[[], Value] | None = None
    writes: list[tuple[int, Node]] = field(default_factory=list)
    at: int = 0
    optional: bool = False

    def read(self) -> Value:
        """Return the current value; append its node if that is still to be done."""
        if self.value is None:
            assert self.make is not None
            self.value = self.make()
        return self.value

    def writers(self) -> Iterator[Node]:
        """Yield the nodes that wrote into the memory through an alias, since the value was made."""
        for at, node in self.writes:
            if at > self.at:
                yield node

    def write(self, node: Node, value: Value, at: int) -> None:
        """Replace the current value by one that a node wrote in place."""
        self.value, self.at = value, at
        self.writes.append((at, node))


def slots_in(content: Content) -> Iterator[Slot]:
    """Return the slots in a pytree from left to right."""
    return leaves_in(content, Slot)


def slots_of(types: Types) -> Content:
    """Return a pytree with a new slot in place of each tensor type; other leaves are unchanged."""
    return tree_replace(types, TensorType, Slot)
