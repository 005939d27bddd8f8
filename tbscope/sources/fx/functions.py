"""Nodes that call functions of Python or torch: indexing, arithmetic on sizes, and others."""

import copy
import functools
import operator
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import is_dataclass
from typing import Any

import torch

from tbscope.ir.graph import Constant
from tbscope.sources.fx.aliasing import CallArguments, Content, Slot, slots_in, types_in
from tbscope.sources.fx.reader import Reader
from tbscope.sources.torch.calling.pytree import is_walked, leaves_in
from tbscope.sources.torch.compat.tensors import TREE_FUNCTIONS, is_of_tensors

__all__ = ["call_python"]


def call_python(reader: Reader, node: torch.fx.Node, *, runs: bool) -> Content:
    """Read a node that calls a method, or a function that is no operator of torch.

    Args:
        reader: The reader of the program.
        node: The node.
        runs: Whether the function may run on fake tensors. A function that a file names may not: it
            can be any function of Python or torch.
    Returns:
        The result of the node.
    """
    arguments = args, kwargs = reader.arguments_of(node)
    target: Any = node.target
    method = node.op == "call_method"
    if method:
        tensor_method = getattr(torch.Tensor, target, None) if type(args[0]) is Slot else None
        target = tensor_method or _method(target)
    if runs or target is operator.getitem:
        result = _on_containers(target, arguments, method=method)
        if result is not _UNKNOWN:
            return result
    types = reader.type_of(node)
    reads = next(slots_in(arguments), None) is not None
    # A function that neither reads nor makes tensors may change a setting of torch, and must not
    # run.
    on_containers = method or any(is_walked(type(entry)) for entry in (*args, *kwargs.values()))
    runs = runs and (on_containers or _is_at_home(target)) and (reads or is_of_tensors(target))
    if not reads and not runs and next(types_in(types), None) is None:
        return Constant(node.name) if types is None else types
    return reader.call_function(node, target, arguments, types, runs=runs)


@functools.cache
def _method(name: str) -> Callable[..., object]:
    """Return a function that calls a method, by its name, on its first argument."""

    def method(*args: object, **kwargs: object) -> object:
        return getattr(args[0], name)(*args[1:], **kwargs)

    method.__name__ = name
    return method


_UNKNOWN: object = object()
# Functions that run unchanged, on containers and on numbers.
_FUNCTIONS = frozenset(
    {
        *(dict, list, tuple, OrderedDict, deque, zip, enumerate, reversed, slice, range, iter),
        *(getattr, hasattr, setattr, len, sorted, isinstance, type, copy.copy),
        *(operator.getitem, operator.setitem, operator.delitem, operator.contains),
        *(operator.or_, operator.ior, operator.concat, operator.iconcat),
        *(operator.add, operator.iadd, operator.mul, operator.imul, operator.sub),
        *(operator.floordiv, operator.truediv, operator.mod, operator.neg),
        *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
        *(int, float, bool, min, max, abs),
    }
)
_PLAIN = frozenset(
    {str, bytes, int, float, bool, complex, torch.Size, range, slice, type, type(None), type(...)}
)


def _on_containers(function: Any, arguments: CallArguments, *, method: bool) -> Content:
    """Return the result of a function on containers or numbers, or `_UNKNOWN` for another function.

    Containers have slots in place of tensors. They belong to the reader, and have the classes of
    the program's containers. The function therefore runs unchanged, and later nodes read its
    changes.
    """
    args, kwargs = arguments
    if isinstance(function, type) and (is_dataclass(function) or hasattr(function, "_fields")):
        runs_unchanged = True
    elif not method and function not in _FUNCTIONS:
        runs_unchanged = function in TREE_FUNCTIONS
    else:
        on_container = bool(args) and type(args[0]) is not Slot and is_walked(type(args[0]))
        runs_unchanged = on_container or all(
            kind in _PLAIN or is_walked(kind) for kind in map(type, args)
        )
    if not runs_unchanged:
        return _UNKNOWN
    try:
        # Code of a user's class may draw random numbers.
        with torch.random.fork_rng(devices=[]):
            result = function(*args, **kwargs)
    except Exception:  # noqa: BLE001 (a key that exists only in a run, or code that computes)
        return _UNKNOWN
    if isinstance(result, Iterator) and not isinstance(result, Generator):
        result = list(result)
    return _UNKNOWN if next(leaves_in(result, torch.Tensor), None) is not None else result


# Packages of the functions that may run on fake tensors.
_HOMES = frozenset({"_operator", "operator", "math", "builtins", "torch", "copy"})


def _is_at_home(function: object) -> bool:
    """Whether a function is defined in one of the packages in `_HOMES`."""
    module = getattr(function, "__module__", None)
    if module is None:
        # Only some of torch's C++ functions have a module.
        module = "torch" if getattr(torch, getattr(function, "__name__", ""), None) else ""
    return str(module).partition(".")[0] in _HOMES
