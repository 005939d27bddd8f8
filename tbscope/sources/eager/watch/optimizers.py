"""Watches the steps of optimizers: this thread's recorders are told of their beginning and end."""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from tbscope.sources.eager.active import watching

__all__ = ["watch_optimizers"]


@contextmanager
def watch_optimizers() -> Iterator[None]:
    """Have this thread's recorders told of the steps of optimizers, during a block."""
    hooks = (
        register_optimizer_step_pre_hook(_before),
        register_optimizer_step_post_hook(_after),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _before(
    optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    recorders = [recorder for recorder in watching.recorders if not recorder.paused]
    for recorder in recorders:
        recorder.begin_step(optimizer, sys._getframe(1))
    if not recorders:
        return None
    # The first argument of the hook's `args` is the optimizer itself.
    closures = [given for given in (*args[1:2], kwargs.get("closure")) if callable(given)]
    if not closures:
        return None
    outside = _outside(closures[0])
    if "closure" in kwargs:
        return args, {**kwargs, "closure": outside}
    return (args[0], outside, *args[2:]), kwargs


def _after(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for recorder in watching.recorders:
        if not recorder.paused:
            recorder.end_step(optimizer)


def _outside(closure: Callable[..., Any]) -> Callable[..., Any]:
    """Return a closure that runs the model again, of which no part is the optimizer's."""

    @functools.wraps(closure)
    def run(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for recorder in watching.recorders:
                stack.enter_context(recorder.outside_step())
            return closure(*args, **kwargs)

    return run
