"""What TorchScript computes without tensors: numbers, texts, lists, dicts; known where they can be.

Such an operation is no node of a graph. What it gives is known where what it is given is known.
"""

import math
import operator
from collections.abc import Callable
from typing import Any

from tbscope.sources.programs.slots import Held, slots_in
from tbscope.sources.torchscript.held import Number, is_known, is_open, origins

__all__ = ["CHANGES", "GIVES_ENTRY", "PLAIN", "compute", "is_followed"]

_IDENTITY = ("aten::__is__", "aten::__isnot__")


def compute(kind: str, given: list[Held]) -> Held:
    """Return what an operation gives; a `Number` where that is not known.

    Args:
        kind: What TorchScript calls it (`aten::add`).
        given: What it is given.
    """
    label = kind.partition("::")[2]
    if kind in _IDENTITY and len(given) == 2 and given[1] is None and type(given[0]) is not Number:
        return (given[0] is None) is (kind == "aten::__is__")
    container = _ON_CONTAINERS.get(kind)
    if container is not None and given and type(given[0]) in (list, tuple, dict):
        if is_open(given[0]) and kind != "aten::clear":
            # Whichever entry it is, of one tensor alone it is that.
            slots = dict.fromkeys(slots_in(given[0])) if kind == "aten::__getitem__" else {}
            return next(iter(slots)) if len(slots) == 1 else _unknown(label, given)
        if kind in _BY_KEY and not is_known(given[1:2]):
            return _unknown(label, given)
        try:
            return container(*given)
        except (LookupError, TypeError, ValueError):
            return _unknown(label, given)
    function = PLAIN.get(kind)
    if function is None or not is_known(given):
        return _unknown(label, given)
    try:
        return function(*given)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return _unknown(label, given)


def is_followed(kind: str, given: list[Held]) -> bool:
    """Tell whether it is known what a list or a dict holds after one of `CHANGES`.

    Args:
        kind: What TorchScript calls the change.
        given: The list or dict, and what else it is given.
    """
    container, *others = given
    if kind == "aten::clear":
        return True
    if is_open(container):
        return False
    if kind in _BY_KEY:
        return is_known(others[:1])
    if kind in _BY_ENTRIES:
        return is_known(given)
    if kind in _OF_OTHERS:
        return type(others[0]) in (list, tuple, dict)
    return kind in _ON_CONTAINERS


def _unknown(label: str, given: list[Held]) -> Number:
    texts = [str(entry) for entry in given if type(entry) in (Number, int, float, bool, str)]
    return Number(f"{label.strip('_')}({', '.join(texts)})", origins(given))


def _add(one: Any, other: Any, scale: Any = 1) -> Any:
    return one + other if scale == 1 else one + other * scale


def _subtract(one: Any, other: Any, scale: Any = 1) -> Any:
    return one - other * scale


def _divide(one: Any, other: Any, rounding: Any = None) -> Any:
    if rounding == "floor":
        return one // other
    return math.trunc(one / other) if rounding == "trunc" else one / other


def _slice(nest: Any, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    return nest[slice(start, end, step)]


def _format(text: Any, *given: Any) -> str:
    for entry in given:
        text = text.replace("{}", str(entry), 1)
    return str(text)


def _round(number: Any, digits: Any = None) -> Any:
    return round(number) if digits is None else round(number, digits)


def _range_length(start: Any, end: Any, step: Any) -> int:
    return len(range(start, end, step))


def _same(given: Any) -> Any:
    return given


PLAIN: dict[str, Callable[..., Any]] = {
    "aten::add": _add,
    "aten::sub": _subtract,
    "aten::rsub": lambda one, other, scale=1: other - one * scale,
    "aten::mul": operator.mul,
    "aten::div": _divide,
    "aten::true_divide": operator.truediv,
    "aten::floordiv": operator.floordiv,
    "aten::floor_divide": operator.floordiv,
    "aten::remainder": operator.mod,
    "aten::fmod": math.fmod,
    "aten::mod": operator.mod,
    "aten::pow": operator.pow,
    "aten::neg": operator.neg,
    "aten::abs": abs,
    "aten::eq": operator.eq,
    "aten::ne": operator.ne,
    "aten::lt": operator.lt,
    "aten::le": operator.le,
    "aten::gt": operator.gt,
    "aten::ge": operator.ge,
    "aten::__and__": operator.and_,
    "aten::__or__": operator.or_,
    "aten::__xor__": operator.xor,
    "aten::__lshift__": operator.lshift,
    "aten::__rshift__": operator.rshift,
    "aten::__not__": operator.not_,
    "aten::__is__": operator.is_,
    "aten::__isnot__": operator.is_not,
    "aten::__range_length": _range_length,
    "aten::__derive_index": lambda index, start, step: start + index * step,
    "aten::floor": math.floor,
    "aten::ceil": math.ceil,
    "aten::round": _round,
    "aten::sqrt": math.sqrt,
    "aten::exp": math.exp,
    "aten::log": math.log,
    "aten::log2": math.log2,
    "aten::Int": int,
    "aten::IntImplicit": int,
    "aten::Float": float,
    "aten::FloatImplicit": float,
    "aten::Bool": bool,
    "aten::ScalarImplicit": _same,
    "aten::item": _same,
    "aten::str": str,
    "aten::format": _format,
    "aten::percentFormat": lambda text, *given: text,
    "aten::lower": str.lower,
    "aten::upper": str.upper,
    "aten::startswith": str.startswith,
    "aten::endswith": str.endswith,
    "aten::to": lambda number, *_: number,
    "aten::detach": _same,
    "aten::clone": lambda number, *_: number,
    "prim::abs": abs,
    "prim::max": max,
    "prim::min": min,
    "prim::NumToTensor": _same,
    "aten::as_tensor": lambda number, *_: number,
}
"""What computes numbers of numbers, by what TorchScript calls it."""


def _replace(nest: Any, key: Any, entry: Any) -> Any:
    nest[key] = entry
    return nest


def _append(nest: list[Any], entry: Any) -> Any:
    nest.append(entry)
    return nest


def _extend(nest: list[Any], entries: Any) -> Any:
    nest.extend(entries)
    return nest


def _insert(nest: list[Any], at: Any, entry: Any) -> Any:
    nest.insert(at, entry)
    return nest


def _get(nest: dict[Any, Any], key: Any, default: Any = None) -> Any:
    return nest.get(key, default)


def _pop(nest: Any, key: Any = -1, *default: Any) -> Any:
    return nest.pop(key, *default) if isinstance(nest, dict) else nest.pop(key)


def _pop_first(nest: dict[Any, Any]) -> Any:
    # Python takes the last one.
    key = next(iter(nest))
    return key, nest.pop(key)


def _reversed(nest: list[Any]) -> Any:
    nest.reverse()
    return nest


def _clear(nest: Any) -> Any:
    nest.clear()
    return nest


def _joined(one: Any, other: Any) -> Any:
    if type(one) is not type(other) or isinstance(one, dict):
        raise TypeError("these are not joined")
    return one + other


def _equal(one: Any, other: Any) -> Any:
    return one == other if is_known([one, other]) else Number("eq", origins([one, other]))


_ON_CONTAINERS: dict[str, Callable[..., Any]] = {
    "aten::__getitem__": operator.getitem,
    "aten::slice": _slice,
    "aten::len": len,
    "aten::append": _append,
    "aten::extend": _extend,
    "aten::insert": _insert,
    "aten::_set_item": _replace,
    "aten::__contains__": lambda nest, entry: (
        entry in nest if isinstance(nest, dict) or is_known(nest) else Number("contains")
    ),
    "aten::pop": _pop,
    "aten::Delete": _pop,
    "aten::popitem": _pop_first,
    "aten::setdefault": lambda nest, key, default: nest.setdefault(key, default),
    "aten::remove": lambda nest, entry: nest.remove(entry),
    "aten::sort": lambda nest, reverse=False: nest.sort(reverse=reverse),
    "aten::get": _get,
    "aten::keys": list,
    "aten::values": lambda nest: list(nest.values()),
    "aten::items": lambda nest: [tuple(pair) for pair in nest.items()],
    "aten::update": lambda nest, other: nest.update(other),
    "aten::copy": lambda nest: nest.copy(),
    "aten::list": list,
    "aten::reverse": _reversed,
    "aten::clear": _clear,
    "aten::add": _joined,
    "aten::add_": _extend,
    "aten::mul": operator.mul,
    "aten::eq": _equal,
    "aten::ne": lambda one, other: (
        one != other if is_known([one, other]) else Number("ne", origins([one, other]))
    ),
    "prim::max": lambda nest, *others: max(nest) if is_known(nest) else Number("max"),
    "prim::min": lambda nest, *others: min(nest) if is_known(nest) else Number("min"),
    "aten::sum": lambda nest: sum(nest) if is_known(nest) else Number("sum"),
    "aten::Bool": bool,
}

CHANGES = frozenset(
    f"aten::{name}"
    for name in (
        *("append", "extend", "insert", "_set_item", "pop", "Delete", "update", "reverse"),
        *("clear", "add_", "sort", "popitem", "setdefault", "remove"),
    )
)
"""What changes a list or a dict that it is given."""

GIVES_ENTRY = frozenset(f"aten::{name}" for name in ("pop", "popitem", "setdefault"))
"""Those that give an entry; all others give the list or dict itself, or nothing."""

# Those that tell one entry by its key or its place.
_BY_KEY = frozenset(
    f"aten::{name}"
    for name in (
        *("__getitem__", "_set_item", "insert", "pop", "Delete", "get", "setdefault"),
        "__contains__",
    )
)
# Those that look at what the entries are, and those that take the entries of another one.
_BY_ENTRIES = frozenset(f"aten::{name}" for name in ("sort", "remove"))
_OF_OTHERS = frozenset(f"aten::{name}" for name in ("extend", "add_", "update"))
