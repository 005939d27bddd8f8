"""Evaluation of TorchScript operations on numbers, texts, lists and dicts while a graph is read.

These operations are no nodes of the graph. A result is computed if all arguments have values; a
query for the size or dtype of a tensor is answered if the type of the tensor has the answer.
Results without a value are a `UnknownValue`, which records the tensors on which it depends.
"""

import builtins
import math
import operator
from collections.abc import Callable
from typing import TypeAlias

import torch

from tbscope.sources.fx.aliasing import Content, Slot, slots_in
from tbscope.sources.torchscript.types import dtype_code
from tbscope.sources.torchscript.values import Contents, UnknownValue, is_known, is_open, origins

__all__ = [
    "DATA_READS",
    "METADATA_QUERIES",
    "MUTATIONS",
    "RETURNS_ENTRY",
    "SCALAR_FUNCTIONS",
    "can_compute_mutation",
    "compute",
]

DATA_READS = frozenset(
    {
        *("aten::Int", "aten::Float", "aten::Bool", "aten::Complex", "aten::IntImplicit"),
        *("aten::FloatImplicit", "aten::ScalarImplicit", "aten::item", "aten::is_nonzero"),
        "prim::tolist",
    }
)
"""Operations that read the content of a tensor as a number or a list."""


def _size(tensor: Slot, dimension: object = None) -> Content:
    shape = tensor.type.shape
    if dimension is not None:
        return _length(tensor, dimension)
    if shape is None:
        return _asked(tensor, "size()")
    return [_length(tensor, at) for at in range(len(shape))]


def _length(tensor: Slot, dimension: object) -> Content:
    shape = tensor.type.shape
    if shape is not None and type(dimension) is int and -len(shape) <= dimension < len(shape):
        length = shape[dimension]
        if length is not None:
            return length
    return _asked(tensor, f"size({dimension})")


def _rank(tensor: Slot) -> Content:
    shape = tensor.type.shape
    return _asked(tensor, "dim()") if shape is None else len(shape)


def _count(tensor: Slot) -> Content:
    shape = tensor.type.shape or (None,)
    if None in shape:
        return _asked(tensor, "numel()")
    return math.prod(length or 0 for length in shape)


def _dtype(tensor: Slot) -> Content:
    code = dtype_code(tensor.type.dtype)
    return _asked(tensor, "dtype") if code is None else code


def _is_floating(tensor: Slot) -> Content:
    name = tensor.type.dtype
    is_floating = name.startswith(("float", "bfloat"))
    return _asked(tensor, "dtype") if name == "unknown" else is_floating


def _is_on(kind: str) -> Callable[[Slot], Content]:
    return lambda tensor: tensor.type.device.partition(":")[0] == kind


def _asked(tensor: Slot, text: str) -> UnknownValue:
    name = "" if tensor.value is None else tensor.value.name
    return UnknownValue(f"{name}.{text}", (tensor,))


_Functions: TypeAlias = dict[str, Callable[..., Content]]

METADATA_QUERIES: _Functions = {
    "aten::size": _size,
    "aten::dim": _rank,
    "aten::numel": _count,
    "aten::len": lambda tensor: _length(tensor, 0),
    "aten::is_floating_point": _is_floating,
    "prim::dtype": _dtype,
    "prim::device": lambda tensor: torch.device(tensor.type.device),
    **{f"prim::is_{kind}": _is_on(kind) for kind in ("cuda", "cpu")},
}
"""Queries for metadata of a tensor, by TorchScript kind: each function answers from the type of the
slot, or returns a `UnknownValue` if the type lacks the answer."""

_IDENTITY = ("aten::__is__", "aten::__isnot__")


def compute(kind: str, args: Contents) -> Content:
    """Return the result of an operation, or a `UnknownValue` if it cannot be computed.

    Args:
        kind: The TorchScript kind of the operation (`aten::add`).
        args: The arguments; an operation of `MUTATIONS` changes the list or dict among them.
    """
    if (
        kind in _IDENTITY
        and args[1] is None
        and type(args[0]) is not UnknownValue
        and not any(slot.optional for slot in slots_in(args[0]))
    ):
        return (args[0] is None) is (kind == "aten::__is__")
    is_container = bool(args) and type(args[0]) in (list, tuple, dict)
    function = _ON_CONTAINERS.get(kind) if is_container else None
    if function is not None:
        if is_open(args[0]):
            # An open list with a single tensor: the entry is this tensor, at any index.
            slots = dict.fromkeys(slots_in(args[0])) if kind == "aten::__getitem__" else {}
            return next(iter(slots)) if len(slots) == 1 else _unknown(kind, args)
        if kind in _BY_KEY and not is_known(args[1:2]):
            return _unknown(kind, args)
    elif is_known(args):
        function = SCALAR_FUNCTIONS.get(kind)
    if function is None:
        return _unknown(kind, args)
    try:
        return function(*args)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return _unknown(kind, args)


def can_compute_mutation(kind: str, args: Contents) -> bool:
    """Whether the content of a list or a dict can be computed after one of `MUTATIONS`.

    Args:
        kind: The TorchScript kind of the change.
        args: The list or dict, and the further arguments.
    """
    container, *others = args
    if is_open(container) or kind not in _ON_CONTAINERS:
        return False
    if kind in _BY_KEY:
        return is_known(others[:1])
    return kind not in _OF_OTHERS or type(others[0]) in (list, tuple, dict)


def _unknown(kind: str, args: Contents) -> UnknownValue:
    label = kind.partition("::")[2].strip("_")
    texts = [str(entry) for entry in args if type(entry) in (UnknownValue, int, float, bool, str)]
    return UnknownValue(f"{label}({', '.join(texts)})", origins(args))


def _add(left: Content, right: Content, scale: Content = 1) -> Content:
    return left + right if scale == 1 else left + right * scale


def _subtract(left: Content, right: Content, scale: Content = 1) -> Content:
    return left - right * scale


def _divide(left: Content, right: Content, rounding: object = None) -> Content:
    if rounding == "floor":
        return left // right
    return math.trunc(left / right) if rounding == "trunc" else left / right


def _slice(nest: Content, start: object = None, end: object = None, step: object = 1) -> Content:
    return nest[slice(start, end, step)]


def _same(value: Content, *_: object) -> Content:
    return value


def _named(home: object, *names: str) -> _Functions:
    """Return functions of a Python module, by the TorchScript kinds with their names."""
    return {f"aten::{name}": getattr(home, name) for name in names}


SCALAR_FUNCTIONS: _Functions = {
    **_named(operator, "mul", "floordiv", "mod", "pow", "neg", "abs"),
    **_named(operator, "eq", "ne", "lt", "le", "gt", "ge", "__and__", "__or__", "__not__"),
    **_named(math, "floor", "ceil", "sqrt"),
    **_named(builtins, "round"),
    "aten::add": _add,
    "aten::sub": _subtract,
    "aten::rsub": lambda left, right, scale=1: right - left * scale,
    "aten::div": _divide,
    "aten::true_divide": operator.truediv,
    "aten::floor_divide": operator.floordiv,
    "aten::remainder": operator.mod,
    **dict.fromkeys(("aten::Int", "aten::IntImplicit"), int),
    **dict.fromkeys(("aten::Float", "aten::FloatImplicit"), float),
    "aten::Bool": bool,
    **dict.fromkeys(("aten::ScalarImplicit", "aten::item", "prim::NumToTensor"), _same),
    **dict.fromkeys(("aten::to", "aten::detach", "aten::clone", "aten::as_tensor"), _same),
    "prim::abs": abs,
    "prim::max": max,
    "prim::min": min,
}
"""Functions that compute numbers from numbers, by TorchScript kind."""


def _pop(nest: Content, key: object = -1, *default: Content) -> Content:
    return nest.pop(key, *default) if isinstance(nest, dict) else nest.pop(key)


def _joined(left: Content, right: Content) -> Content:
    if type(left) is not type(right) or isinstance(left, dict):
        raise TypeError("these are not joined")
    return left + right


_ON_CONTAINERS: _Functions = {
    "aten::__getitem__": operator.getitem,
    "aten::slice": _slice,
    "aten::len": len,
    "aten::append": list.append,
    "aten::extend": list.extend,
    "aten::insert": list.insert,
    "aten::_set_item": operator.setitem,
    "aten::__contains__": lambda nest, entry: (
        entry in nest if isinstance(nest, dict) or is_known(nest) else UnknownValue("contains")
    ),
    "aten::pop": _pop,
    "aten::Delete": _pop,
    "aten::get": dict.get,
    "aten::keys": list,
    "aten::values": lambda nest: list(nest.values()),
    "aten::items": lambda nest: list(nest.items()),
    "aten::update": dict.update,
    "aten::copy": lambda nest: nest.copy(),
    "aten::list": list,
    "aten::add": _joined,
    "aten::add_": list.extend,
    "aten::mul": operator.mul,
}

MUTATIONS = frozenset(
    f"aten::{name}"
    for name in (
        *("append", "extend", "insert", "_set_item", "pop", "Delete", "update", "reverse"),
        *("clear", "add_", "sort", "popitem", "setdefault", "remove"),
    )
)
"""Operations that change their first argument, a list or a dict, in place."""

RETURNS_ENTRY = frozenset(f"aten::{name}" for name in ("pop", "popitem", "setdefault"))
"""Those of `MUTATIONS` that return an entry; the others return the list or dict, or nothing."""

# Operations that select an entry by key or index, and those that add another container's entries.
_BY_KEY = frozenset(
    f"aten::{name}"
    for name in ("__getitem__", "_set_item", "insert", "pop", "Delete", "get", "__contains__")
)
_OF_OTHERS = frozenset(f"aten::{name}" for name in ("extend", "add_", "update"))
