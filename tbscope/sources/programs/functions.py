"""Nodes that call functions of Python and of torch: taking entries, arithmetic on sizes, others."""

import dataclasses
import operator
from typing import Any

import torch

from tbscope.ir.graph import Constant
from tbscope.sources.programs.reader import Reader
from tbscope.sources.programs.slots import Held, Slot, slots_in
from tbscope.sources.programs.types import types_in
from tbscope.sources.torch.internals import is_of_tensors

__all__ = ["call_method", "call_python"]


def call_python(reader: Reader, node: torch.fx.Node, *, runs: bool = False) -> Held:
    """Read a node that calls a function which is no operator of torch; return what it gives.

    Args:
        reader: Who reads the program.
        node: The node.
        runs: Whether the function may be called on stand-ins. One that a file names may not:
            it may be any function of Python's or torch's.
    """
    target: Any = node.target
    args, kwargs = reader.of(node.args), reader.of(node.kwargs)
    if target is operator.getitem and type(args[0]) in (list, tuple, dict):
        return _entry(args[0], args[1], node)
    if isinstance(target, type):
        record = _record(target, args, kwargs)
        if record is not None:
            return record
    told = reader.type_of(node)
    reads = next(slots_in([args, kwargs]), None) is not None
    if not reads and _is_of(target, _PLAIN_HOMES):
        # Numbers made of sizes.
        return _computed(target, args, kwargs, node) if told is None else told
    # One that reads no tensor may be there to change a setting of torch: that is not for us to do.
    runs = runs and _is_of(target, _HOMES) and (reads or is_of_tensors(target))
    if not reads and not runs and next(types_in(told), None) is None:
        return Constant(node.name) if told is None else told
    return reader.call_function(node, target, args, kwargs, told, runs=runs)


def call_method(reader: Reader, node: torch.fx.Node) -> Held:
    """Read a node that calls a method of its first argument; return what it gives."""
    args, kwargs = reader.of(node.args), reader.of(node.kwargs)
    name = str(node.target)
    told = reader.type_of(node)
    method = getattr(torch.Tensor, name, None)
    if type(args[0]) is not Slot or method is None:
        return Constant(node.name) if told is None else told
    return reader.call_function(node, method, args, kwargs, told, runs=True)


# Where functions stand that are called on numbers, and those that are called on stand-ins.
_PLAIN_HOMES = frozenset({"_operator", "operator", "math", "builtins"})
_HOMES = _PLAIN_HOMES | {"torch"}


def _is_of(function: Any, homes: frozenset[str]) -> bool:
    """Tell whether a function stands in one of these packages."""
    home = getattr(function, "__module__", None)
    if home is None:
        # Of torch's own in C++ only some say where they stand.
        home = "torch" if getattr(torch, getattr(function, "__name__", ""), None) else ""
    return str(home).partition(".")[0] in homes


def _computed(function: Any, args: Any, kwargs: Any, node: torch.fx.Node) -> Held:
    """Return a number made of numbers; the name of the node where these are not known."""
    numbers = [*args, *kwargs.values()]
    if function in _ARITHMETIC and all(type(number) in (int, float, bool) for number in numbers):
        try:
            return function(*args, **kwargs)
        except (ArithmeticError, TypeError, ValueError):
            return Constant(node.name)
    return Constant(node.name)


_ARITHMETIC = frozenset(
    {
        *(operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv),
        *(operator.mod, operator.neg, operator.eq, operator.ne, operator.lt, operator.le),
        *(operator.gt, operator.ge, int, float, bool, min, max, abs),
    }
)


def _record(kind: type, args: Any, kwargs: Any) -> Held:
    """Return what a data class or a named tuple is made of, by field; None for another class."""
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
        names = list(kind._fields)
    else:
        return None
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _entry(nest: Any, key: Any, node: torch.fx.Node) -> Held:
    try:
        return nest[key]
    except (LookupError, TypeError):
        # A key that is known only when it runs.
        return next(iter(slots_in(nest)), Constant(node.name))
