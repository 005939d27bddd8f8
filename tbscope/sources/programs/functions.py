"""Nodes that call functions of Python and of torch: taking entries, arithmetic on sizes, others."""

import copy
import functools
import operator
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import is_dataclass
from typing import Any

import torch

from tbscope.ir.graph import Constant
from tbscope.sources.programs.reader import Reader
from tbscope.sources.programs.slots import Held, Slot, slots_in
from tbscope.sources.programs.types import types_in
from tbscope.sources.torch.internals import is_of_tensors
from tbscope.sources.torch.nests import is_walked, leaves_in

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
    if runs or target is operator.getitem:
        result = _on_containers(target, args, kwargs)
        if result is not _UNKNOWN:
            return result
    told = reader.type_of(node)
    reads = next(slots_in([args, kwargs]), None) is not None
    if not reads and _is_of(target, _PLAIN_HOMES):
        # Numbers made of sizes.
        return _computed(target, args, kwargs, node) if told is None else told
    # One that reads no tensor may be there to change a setting of torch: that is not for us to do.
    arranges = runs and any(is_walked(type(entry)) for entry in (*args, *kwargs.values()))
    runs = runs and (arranges or _is_of(target, _HOMES)) and (reads or is_of_tensors(target))
    if not reads and not runs and next(types_in(told), None) is None:
        return Constant(node.name) if told is None else told
    if arranges:
        arranged = reader.work.arranged(target, args, kwargs)
        if arranged is not None:
            return arranged
    return reader.call_function(node, target, args, kwargs, told, runs=runs)


def call_method(reader: Reader, node: torch.fx.Node) -> Held:
    """Read a node that calls a method of its first argument; return what it gives."""
    args, kwargs = reader.of(node.args), reader.of(node.kwargs)
    name = str(node.target)
    told = reader.type_of(node)
    method = getattr(torch.Tensor, name, None)
    if type(args[0]) is Slot and method is not None:
        return reader.call_function(node, method, args, kwargs, told, runs=True)
    method = _method(name)
    result = _on_containers(method, args, kwargs, method=True)
    if result is not _UNKNOWN:
        return result
    if next(slots_in([args, kwargs]), None) is None:
        return Constant(node.name) if told is None else told
    return reader.call_function(node, method, args, kwargs, told, runs=True)


@functools.cache
def _method(name: str) -> Callable[..., Any]:
    """Return a function that calls the method of that name of its first argument."""

    def method(*args: Any, **kwargs: Any) -> Any:
        return getattr(args[0], name)(*args[1:], **kwargs)

    method.__name__ = name
    return method


_UNKNOWN: Any = object()
_MAKERS = frozenset({dict, list, tuple, OrderedDict, deque, zip, enumerate, reversed, slice, range})
_READERS = frozenset(
    {
        *(getattr, hasattr, setattr, len, iter, sorted, isinstance, type),
        *(operator.getitem, operator.setitem, operator.delitem, operator.contains),
        *(operator.add, operator.iadd, operator.mul, operator.imul, operator.or_, operator.ior),
        *(operator.concat, operator.iconcat, copy.copy),
    }
)
_PLAIN = frozenset({str, bytes, int, float, bool, complex, torch.Size, range})


def _on_containers(function: Any, args: Any, kwargs: Any, *, method: bool = False) -> Held:
    """Return the result of a function or method of containers; `_UNKNOWN` for any other.

    A container holds slots in place of tensors. It is the reader's own, and of the class that
    the program has there: so the function runs as it is, and the next node reads its changes.
    """
    if isinstance(function, type) and (is_dataclass(function) or hasattr(function, "_fields")):
        fits = True
    elif function in _MAKERS:
        fits = not args or type(args[0]) is not Slot
    elif not args or not (method or function in _READERS):
        fits = False
    elif type(args[0]) in _PLAIN:
        fits = next(slots_in([args, kwargs]), None) is None
    else:
        fits = is_walked(type(args[0]))
    if not fits:
        return _UNKNOWN
    try:
        # A class of the user's may draw random numbers.
        with torch.random.fork_rng(devices=[]):
            result = function(*args, **kwargs)
    except Exception:  # noqa: BLE001 (a key that only a run shows, or code that computes)
        return _UNKNOWN
    if isinstance(result, Iterator) and not isinstance(result, Generator):
        result = list(result)
    return _UNKNOWN if next(leaves_in(result, torch.Tensor), None) is not None else result


# Where functions stand that are called on numbers, and those that are called on stand-ins.
_PLAIN_HOMES = frozenset({"_operator", "operator", "math", "builtins"})
_HOMES = _PLAIN_HOMES | {"torch", "copy"}


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
