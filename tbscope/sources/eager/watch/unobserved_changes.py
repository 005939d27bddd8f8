"""Tells this thread's recorders of what torch does where no mode looks.

Autograd's engine sets the gradients of leaf tensors in C++, where other threads may be doing
the same; so a gradient is looked at only when this thread is about to change it. `functional_call`
puts other tensors in the place of a module's own before it calls it, so that a module which is
unknown so far would be met with what is not its own. `Parameter(tensor)` and
`tensor.as_subclass(cls)` show a tensor as one of another class. `tensor.untyped_storage()
.resize_(0)` gives the memory of a tensor back though the tensor stays, as sharded training does
after forward. `work.wait()` waits for what ranks do together in the background, and what was
filled is read from then on. None of these is an operation.
"""

import functools
import sys
import threading
from contextlib import ExitStack
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

from tbscope.sources.eager.restore.preserve import keepers
from tbscope.sources.eager.thread_state import step_watchers, watching
from tbscope.sources.eager.watch.modes import lent
from tbscope.sources.eager.watch.patch import Replacements
from tbscope.sources.torch.calling.argument_values import collect_tensors
from tbscope.sources.torch.compat.modules import functional_calls
from tbscope.sources.torch.compat.tensors import (
    BACKWARD,
    function_modes,
    jagged_constructors,
    outside_modes,
)
from tbscope.sources.torch.distributed import WORKS

__all__ = ["FLAGS", "OWN_FUNCTIONS", "SETTERS", "UNSEEN", "WAITS"]

SETTERS = Replacements()
"""Tells of tensors that are about to be set."""

UNSEEN = Replacements()
"""Tells of functional calls, of new faces of tensors, and of storages that get another size."""

WAITS = Replacements()
"""Tells of waits for what ranks do in the background."""

OWN_FUNCTIONS = Replacements()
"""Hands the autograd functions of users the stand-ins of tensors, in a run that has some."""

FLAGS = Replacements()
"""Tells those who keep modules of modules that are switched by `train()` or `eval()`."""


# -- tensors that are set ------------------------------------------------------------------


@SETTERS.of(torch.autograd, BACKWARD)
def _backward(*args: Any, **kwargs: Any) -> Any:
    """Run a backward pass; `torch.autograd.grad` adds to no gradient."""
    if not watching.recorders:
        with lent() as watched:
            if watched:
                return _backward.substitute(*args, **kwargs)
    roots, gradients, creates_graph = (*args[:2], *args[3:4])
    # In another frame than that of `torch.autograd.backward` or `grad`, none are known.
    held = sys._getframe(1).f_locals
    given = {
        id(tensor)
        for tensor in collect_tensors(held.get("grad_tensors", held.get("grad_outputs")), [])
    }
    with ExitStack() as stack:
        if watching.measuring is not None:
            stack.enter_context(watching.measuring())
        for waiting in step_watchers():
            stack.enter_context(waiting.backward_pass(roots, sys._getframe()))
        for recorder in watching.recorders:
            if kwargs.get("accumulate_grad", True):
                recorder.about_to_accumulate()
            stack.enter_context(
                recorder.backward_pass(
                    roots,
                    [(gradient, id(gradient) in given) for gradient in gradients],
                    creates_graph=bool(creates_graph),
                    caller=sys._getframe(),
                )
            )
        result = _backward.original(*args, **kwargs)
        for recorder in watching.recorders:
            recorder.gave_gradients(result)
        return result


@SETTERS.of(torch.utils, "swap_tensors")
def _swap(one: torch.Tensor, other: torch.Tensor) -> None:
    with ExitStack() as stack:
        for recorder in watching.recorders:
            recorder.about_to_set(one)
            recorder.about_to_set(other)
            stack.enter_context(recorder.swapping(one, other))
        _swap.original(one, other)


@UNSEEN.of(torch.UntypedStorage, "resize_")
def _resize(storage: torch.UntypedStorage, size: int) -> object:
    """Do what `UntypedStorage.resize_` does; what it may destroy is a write like any other."""
    for recorder in watching.recorders:
        if not recorder.paused:
            with outside_modes():
                none = torch.empty(0, dtype=torch.uint8, device=storage.device)
                recorder.about_to_write(none.set_(storage, 0, (0,), (1,)))
    return _resize.original(storage, size)


# -- other tensors in the place of some ----------------------------------------------------


@UNSEEN.of(*functional_calls())
def _functional_call(module: Any, given: Any, *args: Any, **kwargs: Any) -> Any:
    """Do what `functional_call` does; the module is met before others are in place of its own."""
    usual = isinstance(module, torch.nn.Module) and isinstance(given, dict)
    with ExitStack() as stack:
        for recorder in watching.recorders:
            if usual and not recorder.paused:
                stack.enter_context(recorder.others_stand_in(module, given))
        return _functional_call.original(module, given, *args, **kwargs)


@functools.wraps(torch.nn.Parameter.__new__)
def _new(kind: type, data: Any = None, *args: Any, **kwargs: Any) -> Any:
    face = _parameter.original(kind, data, *args, **kwargs)
    if isinstance(data, torch.Tensor):
        _tell_of(face, data)
    return face


_parameter = UNSEEN.of(torch.nn.Parameter, "__new__")(staticmethod(_new))


@UNSEEN.of(torch.Tensor, "as_subclass")
@functools.wraps(torch.Tensor.as_subclass)
def _as_subclass(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    face = _as_subclass.original(tensor, *args, **kwargs)
    _tell_of(face, tensor)
    return face


def _tell_of(face: torch.Tensor, tensor: torch.Tensor) -> None:
    for recorder in watching.recorders:
        if not recorder.paused:
            recorder.add_face(face, tensor)


def _as_one_operation(home: Any, inner: str, name: str, parts: int) -> None:
    """Have a function that makes a jagged tensor be one operation: torch does it in a dozen."""

    def make(*args: Any, **kwargs: Any) -> Any:
        made = watched.original(*args, **kwargs)
        return made[0] if isinstance(made, tuple) else made

    functools.update_wrapper(make, getattr(home, inner))
    make.__name__ = make.__qualname__ = name

    @UNSEEN.of(home, inner)
    def watched(*args: Any, **kwargs: Any) -> Any:
        given = tuple(collect_tensors((args, kwargs), []))
        if not function_modes() or not has_torch_function(given):
            return watched.original(*args, **kwargs)
        made = handle_torch_function(make, given, *args, **kwargs)
        # Beside it some give what is in it: one operation gives no tensor twice.
        return (made, made.offsets(), made.lengths())[:parts] if parts > 1 else made


_home, _names = jagged_constructors()
for _inner, _called in _names.items():
    _as_one_operation(_home, _inner, *_called)


def _with_stand_ins(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Do what `Function.apply` does, which is no function of torch that a mode would see."""
    stand_ins = watching.stand_ins
    if stand_ins is not None:
        args, kwargs = stand_ins.among(args), stand_ins.among(kwargs)
    return _apply.original.__get__(None, cls)(*args, **kwargs)


_apply = OWN_FUNCTIONS.of(torch.autograd.Function, "apply")(classmethod(_with_stand_ins))


# -- waits and flags -----------------------------------------------------------------------


def _tell_of_waits(kind: type) -> None:
    @WAITS.of(kind, "wait")
    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        result = wait.original(work, *args, **kwargs)
        for recorder in watching.recorders:
            recorder.waited(work, sys._getframe(1))
        return result


for _kind in WORKS:
    _tell_of_waits(_kind)


@FLAGS.of(torch.nn.Module, "train")
def _train(module: torch.nn.Module, mode: bool = True) -> Any:
    """Do what `Module.train` does; it calls itself for each child, so each comes by here.

    The model itself may switch modules that the run has not met yet: they are kept before. And
    another thread may switch those that are kept: what it wants is what is so after the draw.
    """
    # Work that the run has handed over is the run's own.
    running = watching.thread or threading.get_ident()
    for keeper in tuple(keepers):
        if keeper.thread == running and not keeper.switched(module):
            with outside_modes():
                keeper.add_module(module)
    result = _train.original(module, mode)
    for keeper in tuple(keepers):
        if keeper.thread != running:
            keeper.note_mode(module, mode)
    return result
