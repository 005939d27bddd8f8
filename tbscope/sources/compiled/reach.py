"""Reach: the modules that a callable finds by its variables, before it is called."""

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tbscope.sources.torch.compiler_internals import compiled_from
from tbscope.sources.torch.locate import is_foreign_file
from tbscope.sources.torch.module_internals import uncompiled

__all__ = ["modules_reached"]

_MOST = 2000


def modules_reached(function: Callable[..., Any]) -> list[torch.nn.Module]:
    """Return the modules that a callable, and the user's functions which it calls, can name.

    They are found in what it holds, in the variables of the functions around, and in those of its
    file that its code names; also in lists, tuples and mappings there.
    """
    found: dict[torch.nn.Module, None] = {}
    seen: set[int] = set()
    pending: list[Any] = [function]
    while pending and len(seen) < _MOST:
        thing = pending.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, torch.nn.Module):
            found.update(dict.fromkeys(uncompiled(thing).modules()))
        else:
            pending += _parts(thing)
    return list(found)


def _parts(thing: Any) -> Iterator[Any]:
    if isinstance(thing, functools.partial):
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, types.MethodType):
        yield from (thing.__self__, thing.__func__)
    elif isinstance(thing, types.FunctionType):
        # What `functools.wraps` and the compiler put around a function lead to it.
        yield from (getattr(thing, "__wrapped__", None), compiled_from(thing))
        if not is_foreign_file(thing.__code__.co_filename):
            yield from _named(thing)
    elif type(thing) in (list, tuple):
        yield from thing
    elif type(thing) is dict:
        yield from thing.values()


def _named(function: types.FunctionType) -> Iterator[Any]:
    """Yield what the variables hold that the code of a function names."""
    yield from function.__defaults__ or ()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # Nothing was bound to it so far.
            continue
    for name in _names(function.__code__):
        yield function.__globals__.get(name)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
