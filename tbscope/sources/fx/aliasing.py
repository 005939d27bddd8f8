"""Slots: each tensor of a program, what is known of it, and the writers into the same memory.

A program names results, and writes into some of them. A tensor that is written into holds a
new value from then on; what reads the same memory through another tensor waits for the writer.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch

from tbscope.ir.graph import Constant, Node, Shape, Value, item_size_bytes
from tbscope.sources.torch.calling.pytree import INSIDE, is_walked, leaves_in, rebuilt

__all__ = [
    "UNKNOWN",
    "Given",
    "Held",
    "Slot",
    "TensorType",
    "add_value",
    "device_name",
    "dtype_name",
    "is_symbol",
    "replaced",
    "slots_in",
    "slots_of",
    "type_nest",
    "types_in",
]

_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


class TensorType(NamedTuple):
    """What is known of a tensor before it is there.

    Attributes:
        shape: Sizes per dimension; None where one has no number; None for an unknown rank.
        dtype: The element type (`float32`).
        device: Where it is.
        symbols: The shape with formulas for the sizes that have no number (`(2*s0, 4)`); empty
            where all have one.
        stride: The strides; None where they are not known.
    """

    shape: Shape | None
    dtype: str
    device: str
    symbols: str = ""
    stride: tuple[int, ...] | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of all its elements; 0 where they are not known."""
        size = item_size_bytes(self.dtype) or 0
        for length in (None,) if self.shape is None else self.shape:
            size *= length or 0
        return size


UNKNOWN = TensorType(None, "unknown", "cpu")
"""The type of a tensor of which a program tells nothing."""


def is_symbol(thing: object) -> bool:
    """Tell whether something is a number that has no value yet."""
    return isinstance(thing, _SYMBOLS)


def type_nest(told: Any) -> Any:
    """Return what the metadata of a node tells, with a `TensorType` for each tensor.

    Args:
        told: A tensor without content, metadata of one, a number, or a nest of these.
    Returns:
        A nest of the same containers; constants where there is no tensor.
    """
    return rebuilt(told, _told_of)


def _told_of(thing: Any) -> Any:
    """Return what is known of an entry of a nest; `INSIDE` for a container."""
    if isinstance(thing, torch.Tensor):
        return _type_of(thing)
    if is_symbol(thing):
        # Its formula: `2*s0`.
        return Constant(str(thing))
    if isinstance(thing, tuple):
        fields: Any = thing
        if {"shape", "dtype"} <= set(getattr(thing, "_fields", ())):
            # The metadata that torch.fx keeps of a tensor tells no device.
            return _typed(fields.shape, fields.dtype, "cpu", getattr(thing, "stride", None))
        if isinstance(thing, torch.Size):
            return thing if _are_numbers(thing) else tuple(map(_told_of, thing))
        return INSIDE
    if is_walked(type(thing)):
        return INSIDE
    return thing if isinstance(thing, _TOLD_AS_IT_IS) else None


_TOLD_AS_IT_IS = (
    *(bool, int, float, complex, str),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


def replaced(nest: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Return a copy of a nest with something else for each instance of a class in it."""
    if type(nest) is kind:
        return change(nest)

    def each(thing: Any) -> Any:
        if type(thing) is kind:
            return change(thing)
        return INSIDE if is_walked(type(thing)) else thing

    return rebuilt(nest, each)


def _type_of(tensor: torch.Tensor) -> TensorType:
    strided = tensor.layout is torch.strided and not tensor.is_nested
    stride = tensor.stride() if strided else None
    shape = (None,) * tensor.dim() if tensor.is_nested else tensor.shape
    return _typed(shape, tensor.dtype, device_name(tensor.device), stride)


@functools.cache
def device_name(device: torch.device) -> str:
    """Return the name of a device (`cuda:0`)."""
    return str(device)


@functools.cache
def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of an element type (`float32`)."""
    return str(dtype).removeprefix("torch.")


def _typed(shape: Any, dtype: torch.dtype, device: str, stride: Any) -> TensorType:
    sizes = tuple(shape)
    name = dtype_name(dtype)
    if _are_numbers(sizes):
        # As nearly all are.
        strides = tuple(stride) if stride is not None and _are_numbers(stride) else None
        return TensorType(sizes, name, device, "", strides)
    sizes = tuple([_number(size) for size in sizes])
    known = _are_numbers(sizes)
    plain = sizes if known else tuple(size if type(size) is int else None for size in sizes)
    symbols = ""
    if not known and any(map(is_symbol, sizes)):
        symbols = f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"
    strides = tuple(stride) if known and stride is not None and _are_numbers(stride) else None
    return TensorType(plain, name, device, symbols, strides)


def _are_numbers(sizes: Any) -> bool:
    return _ONE_KIND.issuperset(map(type, sizes))


_ONE_KIND = frozenset({int})


def _number(size: Any) -> Any:
    """Return a size as the number that it has turned out to be; one that is open as it is."""
    if type(size) is int:
        return size
    text = str(size)
    return int(text) if text.isdecimal() else size


def types_in(told: Any) -> Iterator[TensorType]:
    """Return the types of the tensors in a nest from left to right."""
    return leaves_in(told, TensorType)


Held: TypeAlias = Any
"""A `Slot`, a constant, or a container of these: the result of one node of a program."""


Given: TypeAlias = tuple[Sequence[Held], Mapping[str, Held]]
"""The positional and the keyword arguments of a node, with slots for tensors."""


@dataclass(slots=True, eq=False)
class Slot:
    """A tensor of a program.

    Attributes:
        type: What is known of it.
        value: The value that it holds now; None for one whose node is made once it is read.
        make: Makes that node, and returns its value.
        writes: Who wrote into the memory that it shows, with the number of the node, in order; it
            is shared by all that show it.
        at: The number of the node that gave the value.
    """

    type: TensorType
    value: Value | None = None
    make: Callable[[], Value] | None = None
    writes: list[tuple[int, Node]] = field(default_factory=list)
    at: int = 0

    def read(self) -> Value:
        """Return the value that it holds now."""
        if self.value is None:
            assert self.make is not None
            self.value = self.make()
        return self.value

    def writers(self) -> Iterator[Node]:
        """Return who wrote into its memory, through another tensor, since it got its value."""
        for at, node in self.writes:
            if at > self.at:
                yield node

    def write(self, node: Node, value: Value, at: int) -> None:
        """Let it hold a new value, which a node wrote into it."""
        self.value, self.at = value, at
        self.writes.append((at, node))


def slots_in(held: Held) -> Iterator[Slot]:
    """Return the slots of a nest from left to right."""
    return leaves_in(held, Slot)


def slots_of(told: Any) -> Held:
    """Return a nest with a new slot for each type of a tensor; the rest as it is."""
    return replaced(told, TensorType, Slot)


def add_value(node: Node, typed: TensorType) -> Value:
    """Add an output of a type to a node; return it."""
    value = Value(node, len(node.outputs), typed.shape, typed.dtype, typed.device)
    node.outputs.append(value)
    if typed.symbols:
        before = node.attributes.get("symbolic_shape")
        node.attributes["symbolic_shape"] = (
            typed.symbols if before is None else f"{before}, {typed.symbols}"
        )
    return value
