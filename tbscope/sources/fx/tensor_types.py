"""Types of tensors, as programs and files record them: read without torch."""

from typing import Any, NamedTuple, TypeAlias

from tbscope.ir.graph import Node, Shape, Value


class TensorType(NamedTuple):
    """Type of a tensor, as far as a program records it.

    Attributes:
        shape: The sizes per dimension, each a number or None; None for an unknown rank.
        dtype: The element type (`float32`).
        device: The device (`cuda:0`).
        symbols: The shape with a formula for each symbolic size (`(2*s0, 4)`); empty without
            symbolic sizes.
        stride: The strides, or None if they are unknown.
        requires_grad: Whether it requires gradients, by which torch chooses some kernels.
    """

    shape: Shape | None
    dtype: str
    device: str
    symbols: str = ""
    stride: tuple[int, ...] | None = None
    requires_grad: bool = False


Types: TypeAlias = Any
"""Results of a node with a `TensorType` in place of each tensor; None if they are unknown."""

UNKNOWN = TensorType(None, "unknown", "cpu")
"""Type of a tensor for which a program records nothing."""


def add_value(node: Node, typed: TensorType) -> Value:
    """Append an output with a type to a node; return the value."""
    value = Value(node, len(node.outputs), typed.shape, typed.dtype, typed.device)
    node.outputs.append(value)
    if typed.symbols:
        earlier = node.attributes.get("symbolic_shape")
        node.attributes["symbolic_shape"] = (
            typed.symbols if earlier is None else f"{earlier}, {typed.symbols}"
        )
    return value
