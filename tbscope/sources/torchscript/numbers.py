"""What TorchScript computes without tensors: numbers, texts, lists, dicts; known where they can be.

Such an operation is no node of a graph. What it gives is known where what it is given is known.
"""

import builtins
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
    holds = bool(given) and type(given[0]) in (list, tuple, dict)
    function = _ON_CONTAINERS.get(kind) if holds else None
    if function is not None:
        if is_open(given[0]) and kind != "aten::clear":
            # Whichever entry it is, of one tensor alone it is that.
            slots = dict.fromkeys(slots_in(given[0])) if kind == "aten::__getitem__" else {}
            return next(iter(slots)) if len(slots) == 1 else _unknown(label, given)
        if kind in _BY_KEY and not is_known(given[1:2]):
            return _unknown(label, given)
    elif is_known(given):
        function = PLAIN.get(kind)
    if function is None:
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


def _same(given: Any, *_: Any) -> Any:
    return given


def _named(home: Any, *names: str) -> dict[str, Callable[..., Any]]:
    """Return functions that TorchScript calls as Python does."""
    return {f"aten::{name}": getattr(home, name) for name in names}


PLAIN: dict[str, Callable[..., Any]] = {
    **_named(operator, "mul", "floordiv", "mod", "pow", "neg", "abs"),
    **_named(operator, "eq", "ne", "lt", "le", "gt", "ge"),
    **_named(operator, "__and__", "__or__", "__xor__", "__lshift__", "__rshift__", "__not__"),
    **_named(math, "fmod", "floor", "ceil", "sqrt", "exp", "log", "log2"),
    **_named(builtins, "round", "str"),
    **_named(str, "lower", "upper", "startswith", "endswith"),
    "aten::add": _add,
    "aten::sub": _subtract,
    "aten::rsub": lambda one, other, scale=1: other - one * scale,
    "aten::div": _divide,
    "aten::true_divide": operator.truediv,
    "aten::floor_divide": operator.floordiv,
    "aten::remainder": operator.mod,
    "aten::__is__": operator.is_,
    "aten::__isnot__": operator.is_not,
    "aten::__range_length": lambda start, end, step: len(range(start, end, step)),
    "aten::__derive_index": lambda index, start, step: start + index * step,
    **dict.fromkeys(("aten::Int", "aten::IntImplicit"), int),
    **dict.fromkeys(("aten::Float", "aten::FloatImplicit"), float),
    "aten::Bool": bool,
    "aten::format": _format,
    **dict.fromkeys(("aten::ScalarImplicit", "aten::item", "aten::percentFormat"), _same),
    **dict.fromkeys(("aten::to", "aten::detach", "aten::clone", "aten::as_tensor"), _same),
    "prim::NumToTensor": _same,
    "prim::abs": abs,
    "prim::max": max,
    "prim::min": min,
}
"""What computes numbers of numbers, by what TorchScript calls it."""


def _changed(change: Callable[..., Any]) -> Callable[..., Any]:
    """Return what changes a list or a dict, and gives that."""

    def changed(nest: Any, *given: Any) -> Any:
        change(nest, *given)
        return nest

    return changed


def _if_known(label: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what looks at all entries: it gives a number where one of them is not known."""
    return lambda *given: (
        function(*given) if is_known(list(given)) else Number(label, origins(list(given)))
    )


def _pop(nest: Any, key: Any = -1, *default: Any) -> Any:
    return nest.pop(key, *default) if isinstance(nest, dict) else nest.pop(key)


def _pop_first(nest: dict[Any, Any]) -> Any:
    # Python takes the last one.
    key = next(iter(nest))
    return key, nest.pop(key)


def _joined(one: Any, other: Any) -> Any:
    if type(one) is not type(other) or isinstance(one, dict):
        raise TypeError("these are not joined")
    return one + other


_ON_CONTAINERS: dict[str, Callable[..., Any]] = {
    "aten::__getitem__": operator.getitem,
    "aten::slice": _slice,
    "aten::len": len,
    "aten::append": _changed(list.append),
    "aten::extend": _changed(list.extend),
    "aten::insert": _changed(list.insert),
    "aten::_set_item": _changed(operator.setitem),
    "aten::__contains__": lambda nest, entry: (
        entry in nest if isinstance(nest, dict) or is_known(nest) else Number("contains")
    ),
    "aten::pop": _pop,
    "aten::Delete": _pop,
    "aten::popitem": _pop_first,
    "aten::setdefault": dict.setdefault,
    "aten::remove": list.remove,
    "aten::sort": lambda nest, reverse=False: nest.sort(reverse=reverse),
    "aten::get": dict.get,
    "aten::keys": list,
    "aten::values": lambda nest: list(nest.values()),
    "aten::items": lambda nest: list(nest.items()),
    "aten::update": dict.update,
    "aten::copy": lambda nest: nest.copy(),
    "aten::list": list,
    "aten::reverse": _changed(list.reverse),
    "aten::clear": _changed(lambda nest: nest.clear()),
    "aten::add": _joined,
    "aten::add_": _changed(list.extend),
    "aten::mul": operator.mul,
    "aten::eq": _if_known("eq", operator.eq),
    "aten::ne": _if_known("ne", operator.ne),
    "prim::max": _if_known("max", max),
    "prim::min": _if_known("min", min),
    "aten::sum": _if_known("sum", sum),
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
