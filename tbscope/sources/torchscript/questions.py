"""What TorchScript asks of a tensor, and not of its values: sizes, element type, place."""

import math
from collections.abc import Callable
from typing import Any

import torch

from tbscope.sources.programs.slots import Held, Slot
from tbscope.sources.torchscript.held import Number
from tbscope.sources.torchscript.types import dtype_code

__all__ = ["QUESTIONS", "READ_OUT"]

READ_OUT = {
    "aten::Int": "int",
    "aten::Float": "float",
    "aten::Bool": "bool",
    "aten::Complex": "complex",
    "aten::IntImplicit": "int",
    "aten::FloatImplicit": "float",
    "aten::ScalarImplicit": "item",
    "aten::item": "item",
    "aten::is_nonzero": "is_nonzero",
    "prim::tolist": "tolist",
}
"""What hands the content of a tensor to the code, with what Python calls it."""


def _size(tensor: Slot, dimension: Any = None) -> Held:
    shape = tensor.type.shape
    if dimension is None:
        if shape is None:
            return _unknown(tensor, "size()")
        return [_length(tensor, at) for at in range(len(shape))]
    return _length(tensor, dimension)


def _length(tensor: Slot, dimension: Any) -> Held:
    shape = tensor.type.shape
    if shape is not None and type(dimension) is int and -len(shape) <= dimension < len(shape):
        length = shape[dimension]
        if length is not None:
            return length
    return _unknown(tensor, f"size({dimension})")


def _rank(tensor: Slot) -> Held:
    shape = tensor.type.shape
    return _unknown(tensor, "dim()") if shape is None else len(shape)


def _count(tensor: Slot) -> Held:
    shape = tensor.type.shape or (None,)
    if tensor.type.shape is None or None in shape:
        return _unknown(tensor, "numel()")
    return math.prod(length or 0 for length in shape)


def _dtype(tensor: Slot) -> Held:
    code = dtype_code(tensor.type.dtype)
    return _unknown(tensor, "dtype") if code is None else code


def _is_of(*kinds: str) -> Callable[[Slot], Held]:
    """Return what answers whether a tensor has elements of some kinds."""

    def answer(tensor: Slot) -> Held:
        name = tensor.type.dtype
        return _unknown(tensor, "dtype") if name == "unknown" else name.startswith(kinds)

    return answer


def _stride(tensor: Slot, dimension: Any = None) -> Held:
    strides = tensor.type.stride
    if strides is None:
        return _unknown(tensor, "stride()")
    if dimension is None:
        return list(strides)
    known = type(dimension) is int and -len(strides) <= dimension < len(strides)
    return strides[dimension] if known else _unknown(tensor, f"stride({dimension})")


def _is_on(kind: str) -> Callable[[Slot], Held]:
    return lambda tensor: tensor.type.device.partition(":")[0] == kind


def _asks(text: str) -> Callable[..., Held]:
    return lambda tensor, *_: _unknown(tensor, text)


def _unknown(tensor: Slot, text: str) -> Number:
    name = "" if tensor.value is None else tensor.value.name
    return Number(f"{name}.{text}", (tensor,))


QUESTIONS: dict[str, Callable[..., Held]] = {
    "aten::size": _size,
    "aten::dim": _rank,
    "aten::numel": _count,
    "aten::len": lambda tensor: _length(tensor, 0),
    "aten::stride": _stride,
    "aten::is_floating_point": _is_of("float", "bfloat"),
    "aten::is_complex": _is_of("complex"),
    "aten::__is__": lambda tensor, other: tensor is other,
    "aten::__isnot__": lambda tensor, other: tensor is not other,
    "prim::dtype": _dtype,
    "prim::device": lambda tensor: torch.device(tensor.type.device),
    "prim::layout": lambda tensor: 0,
    "prim::shape": _size,
    **{f"prim::is_{kind}": _is_on(kind) for kind in ("cuda", "cpu", "xpu", "meta", "mps")},
    "aten::requires_grad": _asks("requires_grad"),
    **{
        f"aten::{name}": _asks(f"{name}()")
        for name in ("is_contiguous", "storage_offset", "element_size", "get_device")
    },
    **{
        f"prim::{name}": _asks(name)
        for name in (
            *("is_sparse", "is_quantized", "is_nested", "is_mkldnn", "is_leaf", "requires_grad"),
        )
    },
}
"""What answers, by what TorchScript calls it, from what is known of a tensor."""
