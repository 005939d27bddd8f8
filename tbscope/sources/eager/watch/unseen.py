"""Tells of what torch does where no mode looks: of new faces of tensors, and of stand-ins.

`functional_call` puts other tensors in the place of a module's own before it calls it, so
that a module which nobody knows yet would be met with what is not its own. `Parameter(tensor)`
and `tensor.as_subclass(cls)` show a tensor as one of another class, which is no operation.
What makes a jagged tensor is no function of torch that a mode would see.
"""

import functools
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

from tbscope.sources.eager.active import watching
from tbscope.sources.eager.watch.replacement import Replaced, Replacement
from tbscope.sources.torch.internals import (
    function_modes,
    jagged_constructors,
    make_jagged_dummy,
)
from tbscope.sources.torch.literals import collect_tensors
from tbscope.sources.torch.module_internals import functional_calls

__all__ = ["watch_unseen"]

_functional_call = Replacement(*functional_calls())
_new_parameter = Replacement(torch.nn.Parameter, "__new__")
_as_subclass = Replacement(torch.Tensor, "as_subclass")


def watch_unseen() -> AbstractContextManager[None]:
    """Have this thread's recorders told of functional calls and of new faces, in a block."""
    return Replaced(
        {
            _new_parameter: _watched_method,
            _as_subclass: _watched_subclass,
            _functional_call: _watched_functional_call,
            **_jagged,
        }
    )


def _watched_functional_call(module: Any, given: Any, *args: Any, **kwargs: Any) -> Any:
    """Do what `functional_call` does; the module is met before others stand in for its own."""
    usual = isinstance(module, torch.nn.Module) and isinstance(given, dict)
    with ExitStack() as stack:
        for recorder in watching.recorders:
            if usual and not recorder.paused:
                stack.enter_context(recorder.others_stand_in(module, given))
        return _functional_call.original(module, given, *args, **kwargs)


@functools.wraps(_new_parameter.original)
def _watched_new(kind: type, data: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Do what `Parameter.__new__` does."""
    face = _new_parameter.original(kind, data, *args, **kwargs)
    if isinstance(data, torch.Tensor):
        _tell_of(face, data)
    return face


# One for all users: the last of them looks whether it still stands there.
_watched_method = staticmethod(_watched_new)


@functools.wraps(_as_subclass.original)
def _watched_subclass(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Do what `Tensor.as_subclass` does."""
    face = _as_subclass.original(tensor, *args, **kwargs)
    _tell_of(face, tensor)
    return face


def _as_one_operation(replacement: Replacement, name: str, parts: int) -> Any:
    """Return what makes a jagged tensor as one operation: torch does it in a dozen."""

    def make(*args: Any, **kwargs: Any) -> Any:
        made = replacement.original(*args, **kwargs)
        return made[0] if isinstance(made, tuple) else made

    def watched(*args: Any, **kwargs: Any) -> Any:
        given = tuple(collect_tensors((args, kwargs), []))
        if not function_modes() or not has_torch_function(given):
            return replacement.original(*args, **kwargs)
        make_jagged_dummy()
        made = handle_torch_function(make, given, *args, **kwargs)
        # Beside it some give what is in it: one operation gives no tensor twice.
        return (made, made.offsets(), made.lengths())[:parts] if parts > 1 else made

    functools.update_wrapper(make, replacement.original)
    make.__name__ = make.__qualname__ = name
    return watched


_home, _names = jagged_constructors()
_jagged = {
    (found := Replacement(_home, name)): _as_one_operation(found, *called)
    for name, called in _names.items()
}


def _tell_of(face: torch.Tensor, tensor: torch.Tensor) -> None:
    for recorder in watching.recorders:
        if not recorder.paused:
            recorder.add_face(face, tensor)
