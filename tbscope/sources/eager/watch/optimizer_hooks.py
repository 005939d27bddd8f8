"""Watches the steps of optimizers: this thread's recorders are told of their beginning and end."""

import functools
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from tbscope.sources.eager.thread_state import step_watchers, watching
from tbscope.sources.eager.watch.patch import Replacements, Shared

__all__ = ["watching_optimizers"]

_blocks = Replacements()


# Around each step of an optimizer torch has such a block, which ends however the step does.
@_blocks.of(torch.autograd.profiler.record_function, "__exit__")
def _exit(block: Any, kind: Any, error: Any, trace: Any) -> None:
    """End a block of the profiler's, and tell of an optimizer whose step an error has ended."""
    _exit.original(block, kind, error, trace)
    if kind is not None:
        for recorder in watching.recorders:
            recorder.fail_step(sys._getframe(1))
        for each in step_watchers():
            each.optimizer_failed(sys._getframe(1))


def _hook() -> Callable[[], None]:
    # An optimizer goes through its hooks when it tells: none may be added then.
    hooks = register_optimizer_step_pre_hook(_before), register_optimizer_step_post_hook(_after)
    put_back = _blocks.put()

    def unhook() -> None:
        for hook in hooks:
            hook.remove()
        put_back()

    return unhook


watching_optimizers = Shared(_hook)
"""A block in which recorders and those who wait are told of the steps of optimizers."""


def _before(
    optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    caller = sys._getframe(1)
    # The first argument of the hook's `args` is the optimizer itself.
    closures = [given for given in (*args[1:2], kwargs.get("closure")) if callable(given)]
    waiting = step_watchers()
    for each in waiting:
        each.optimizer_begins(optimizer, caller)
    recorders = [recorder for recorder in watching.recorders if not recorder.paused]
    for recorder in recorders:
        recorder.begin_step(optimizer, caller)
    if not closures or not (recorders or waiting):
        return None
    outside = _outside(closures[0], optimizer, id(caller))
    if "closure" in kwargs:
        return args, {**kwargs, "closure": outside}
    return (args[0], outside, *args[2:]), kwargs


def _after(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for recorder in watching.recorders:
        if not recorder.paused:
            recorder.end_step(optimizer)
    for each in step_watchers():
        each.optimizer_ends(optimizer)


def _outside(
    closure: Callable[..., Any], optimizer: torch.optim.Optimizer, caller: int
) -> Callable[..., Any]:
    """Return a closure that runs the model again, of which no part is the optimizer's.

    Args:
        closure: The closure.
        optimizer: Which calls it.
        caller: The identity of the Python frame in which the step of the optimizer runs.
    """

    @functools.wraps(closure)
    def run(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for recorder in watching.recorders:
                stack.enter_context(recorder.outside_step())
            result = closure(*args, **kwargs)
        frame = sys._getframe(1)
        while id(frame) != caller and frame.f_back is not None:
            frame = frame.f_back
        if id(frame) == caller:
            for each in step_watchers():
                each.closure_ends(optimizer, frame)
        return result

    return run
