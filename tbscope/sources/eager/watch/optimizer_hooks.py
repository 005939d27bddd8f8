"""Watching of optimizers: the beginning and end of each step are reported to recorders."""

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
from tbscope.sources.eager.watch.patch import Patches, SharedBlock

_blocks = Patches()


# torch runs each optimizer step in this profiler block, whose exit runs even after an error.
@_blocks.of(torch.autograd.profiler.record_function, "__exit__")
def _exit(block: object, kind: object, error: object, trace: object) -> None:
    """Leave a profiler block, and report an optimizer step that an error has ended."""
    _exit.original(block, kind, error, trace)
    if kind is not None:
        for recorder in watching.recorders:
            recorder.events.step_failed(sys._getframe(1))
        for watcher in reversed(step_watchers()):
            watcher.optimizer_failed(sys._getframe(1))


def _hook() -> Callable[[], None]:
    # An optimizer iterates over its hooks while it calls them: none may be added then.
    hooks = register_optimizer_step_pre_hook(_before), register_optimizer_step_post_hook(_after)
    put_back = _blocks.put()

    def unhook() -> None:
        for hook in hooks:
            hook.remove()
        put_back()

    return unhook


watching_optimizers = SharedBlock(_hook)
"""Block in which optimizer steps are reported to recorders and step watchers."""


def _before(
    optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    caller = sys._getframe(1)
    # The first argument of the hook's `args` is the optimizer itself.
    closures = [arg for arg in (*args[1:2], kwargs.get("closure")) if callable(arg)]
    watchers = step_watchers()
    for watcher in watchers:
        watcher.optimizer_begins(optimizer, caller)
    recorders = watching.active
    for recorder in recorders:
        recorder.events.step_begins(optimizer, caller)
    if not closures or not (recorders or watchers):
        return None
    outside = _outside(closures[0], optimizer, id(caller))
    if "closure" in kwargs:
        return args, {**kwargs, "closure": outside}
    return (args[0], outside, *args[2:]), kwargs


def _after(
    optimizer: torch.optim.Optimizer, args: tuple[object, ...], kwargs: dict[str, Any]
) -> None:
    for recorder in watching.active:
        recorder.events.step_ended(optimizer)
    # The watch that was opened last is closed first.
    for watcher in reversed(step_watchers()):
        watcher.optimizer_ends(optimizer)


def _outside(
    closure: Callable[..., Any], optimizer: torch.optim.Optimizer, caller: int
) -> Callable[..., Any]:
    """Return a closure that runs the model again, outside of the optimizer step.

    Args:
        closure: The closure.
        optimizer: The optimizer that calls it.
        caller: Identity of the Python frame in which the optimizer step runs.
    """

    @functools.wraps(closure)
    def run(*args: object, **kwargs: object) -> Any:
        with ExitStack() as stack:
            for recorder in watching.recorders:
                stack.enter_context(recorder.events.closure_runs())
            result = closure(*args, **kwargs)
        frame = sys._getframe(1)
        # Optimizers wrap closures (`torch.enable_grad()(closure)`), so the step's frame may be
        # further out.
        while id(frame) != caller and frame.f_back is not None:
            frame = frame.f_back
        if id(frame) == caller:
            for watcher in step_watchers():
                watcher.closure_ends(optimizer, frame)
        return result

    return run
