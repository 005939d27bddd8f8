"""Reports on changes that no mode sees, to the recorders of the thread that makes them.

- Autograd's engine sets the gradients of leaf tensors in C++. Other threads may be doing so at the
  same time, so a gradient is read only when this thread is about to change it.
- `functional_call` replaces the tensors of a module before it calls the module. A module that is
  not registered yet would be registered with tensors that are not its own.
- `Parameter(tensor)` and `tensor.as_subclass(cls)` return an alias of a tensor, of another class.
- `tensor.untyped_storage().resize_(0)` frees the memory of a tensor that remains, as sharded
  training does after forward.
- `work.wait()` waits for an asynchronous collective, whose result is read from then on.
- Sharded modules gather and free their parameters, and reduce their gradients, in hooks.

None of these is an operation.
"""

import functools
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

from tbscope.sources.eager.restore.preserve import active_snapshots
from tbscope.sources.eager.thread_state import step_watchers, watching
from tbscope.sources.eager.watch.patch import Patch, Patches, SharedBlock
from tbscope.sources.torch.calling.argument_values import collect_tensors
from tbscope.sources.torch.compat.modules import functional_calls
from tbscope.sources.torch.compat.tensors import (
    RUN_BACKWARD,
    function_modes,
    jagged_constructors,
    outside_modes,
)
from tbscope.sources.torch.distributed import WORKS, shard_steps, sharded_module

SETTERS = Patches()
"""Block in which tensors are reported before their data or gradients are set."""

ALIASES_AND_RESIZES = Patches()
"""Block in which functional calls, new aliases of tensors and resized storages are reported."""

WAITS = Patches()
"""Block in which waits for asynchronous collectives are reported."""

AUTOGRAD_FUNCTIONS = Patches()
"""Block in which the user's autograd functions receive fake tensors, in a run that uses them."""

TRAIN_EVAL = Patches()
"""Block in which `train()` and `eval()` are reported to the snapshots of modules."""


# -- tensors that are set ------------------------------------------------------------------


@SETTERS.of(torch.autograd, RUN_BACKWARD)
def _backward(*args: Any, **kwargs: Any) -> Any:
    """Run a backward pass, and report it; `torch.autograd.grad` does not add to gradients."""
    roots, gradients, creates_graph = *args[:2], bool(args[3])
    # The caller's arguments show the user's gradients, if it is `torch.autograd.backward` or
    # `grad`.
    caller_locals = sys._getframe(1).f_locals
    user_gradients = {
        id(tensor)
        for tensor in collect_tensors(
            caller_locals.get("grad_tensors", caller_locals.get("grad_outputs")), []
        )
    }
    takers = []
    with ExitStack() as stack:
        if watching.measuring is not None:
            stack.enter_context(watching.measuring())
        for watcher in step_watchers():
            stack.enter_context(
                watcher.backward_pass(roots, sys._getframe(), creates_graph=creates_graph)
            )
        for recorder in watching.recorders:
            if kwargs.get("accumulate_grad", True):
                recorder.events.about_to_accumulate()
            take_returned = stack.enter_context(
                recorder.events.backward_pass(
                    roots,
                    [(gradient, id(gradient) in user_gradients) for gradient in gradients],
                    creates_graph=creates_graph,
                    caller=sys._getframe(),
                )
            )
            takers.append(take_returned)
        result = _backward.original(*args, **kwargs)
        for take_returned in takers:
            take_returned(result)
        return result


@SETTERS.of(torch.utils, "swap_tensors")
def _swap(t1: torch.Tensor, t2: torch.Tensor) -> None:
    with ExitStack() as stack:
        for recorder in watching.recorders:
            recorder.events.about_to_set(t1)
            recorder.events.about_to_set(t2)
            stack.enter_context(recorder.events.tensors_swapped(t1, t2))
        _swap.original(t1, t2)


@ALIASES_AND_RESIZES.of(torch.UntypedStorage, "resize_")
def _resize(storage: torch.UntypedStorage, size: int) -> object:
    """Report the content that a resize may destroy, as before any write, and call the original."""
    for recorder in watching.active:
        with outside_modes():
            none = torch.empty(0, dtype=torch.uint8, device=storage.device)
            recorder.events.about_to_write(none.set_(storage, 0, (0,), (1,)))
            if not size:
                recorder.events.storage_freed(storage)
    return _resize.original(storage, size)


# -- replaced tensors and aliases ----------------------------------------------------------


@ALIASES_AND_RESIZES.of(*functional_calls())
def _functional_call(module: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the original; the module is registered before its tensors are replaced."""
    usual = isinstance(module, torch.nn.Module) and isinstance(tensors, dict)
    with ExitStack() as stack:
        for recorder in watching.active if usual else ():
            stack.enter_context(recorder.events.tensors_replaced(module, tensors))
        return _functional_call.original(module, tensors, *args, **kwargs)


@functools.wraps(torch.nn.Parameter.__new__)
def _new(kind: type, data: object = None, *args: object, **kwargs: object) -> Any:
    alias = _parameter.original(kind, data, *args, **kwargs)
    if isinstance(data, torch.Tensor):
        _report_alias(alias, data)
    return alias


_parameter = ALIASES_AND_RESIZES.of(torch.nn.Parameter, "__new__")(staticmethod(_new))


@ALIASES_AND_RESIZES.of(torch.Tensor, "as_subclass")
@functools.wraps(torch.Tensor.as_subclass)
def _as_subclass(tensor: torch.Tensor, *args: object, **kwargs: object) -> Any:
    alias = _as_subclass.original(tensor, *args, **kwargs)
    _report_alias(alias, tensor)
    return alias


def _report_alias(face: torch.Tensor, tensor: torch.Tensor) -> None:
    for recorder in watching.active:
        recorder.events.alias_made(face, tensor)


def _as_one_operation(home: object, inner: str, name: str, parts: int) -> None:
    """Turn a function that creates a jagged tensor into one operation, instead of torch's dozen."""

    def make(*args: object, **kwargs: object) -> Any:
        made = watched.original(*args, **kwargs)
        return made[0] if isinstance(made, tuple) else made

    functools.update_wrapper(make, getattr(home, inner))
    make.__name__ = make.__qualname__ = name

    @ALIASES_AND_RESIZES.of(home, inner)
    def watched(*args: object, **kwargs: object) -> Any:
        tensors = tuple(collect_tensors((args, kwargs), []))
        if not function_modes() or not has_torch_function(tensors):
            return watched.original(*args, **kwargs)
        made = handle_torch_function(make, tensors, *args, **kwargs)
        # Some also return offsets and lengths. The operation returns only the jagged tensor, of
        # which these are read.
        return (made, made.offsets(), made.lengths())[:parts] if parts > 1 else made


_home, _names = jagged_constructors()
for _inner, _called in _names.items():
    _as_one_operation(_home, _inner, *_called)


def _with_stand_ins(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Call `Function.apply` with fake tensors: modes do not see it, as it is no torch function."""
    stand_ins = watching.stand_ins
    if stand_ins is not None:
        args, kwargs = stand_ins.among(args), stand_ins.among(kwargs)
    return _apply.original.__get__(None, cls)(*args, **kwargs)


_apply = AUTOGRAD_FUNCTIONS.of(torch.autograd.Function, "apply")(classmethod(_with_stand_ins))


# -- waits and flags -----------------------------------------------------------------------


def _report_waits(kind: type) -> None:
    @WAITS.of(kind, "wait")
    def wait(work: object, *args: object, **kwargs: object) -> Any:
        result = wait.original(work, *args, **kwargs)
        for recorder in watching.active:
            recorder.events.work_awaited(work, sys._getframe(1))
        return result


for _kind in WORKS:
    _report_waits(_kind)


def _report_steps() -> Callable[[], None]:
    steps = Patches()
    for owner, name, box in shard_steps():
        _report_step(steps.of(owner, name), box)
    return steps.put()


def _report_step(put: Callable[[Any], Patch], box: str) -> None:
    @put
    def step(*args: object, **kwargs: object) -> Any:
        with ExitStack() as stack:
            for recorder in watching.active:
                stack.enter_context(recorder.events.shard_step(sharded_module(args), box))
            return step.original(*args, **kwargs)


SHARD_STEPS = SharedBlock(_report_steps)
"""Block in which the steps of sharded modules are reported."""


@TRAIN_EVAL.of(torch.nn.Module, "train")
def _train(module: torch.nn.Module, mode: bool = True) -> Any:
    """Call `Module.train`, which calls itself for each child, so each child is seen here.

    The model may switch modules that are not registered yet: their snapshot is taken before. If
    another thread switches a module of a snapshot, its new mode remains after the trace.
    """
    # Work in other threads that the run has started belongs to the run.
    running = watching.thread or threading.get_ident()
    for keeper in tuple(active_snapshots):
        if keeper.thread == running and not keeper.switched(module):
            with outside_modes():
                keeper.add_module(module)
    result = _train.original(module, mode)
    for keeper in tuple(active_snapshots):
        if keeper.thread != running:
            keeper.note_mode(module, mode)
    return result
