"""Tells of what sets tensors and no mode sees: backward passes, and tensors that are swapped.

Autograd's engine sets the gradients of leaf tensors in C++, where other threads may be doing
the same; so nobody looks at a gradient before this thread is about to change it.
"""

import sys
from contextlib import AbstractContextManager, ExitStack
from types import FrameType
from typing import Any

import torch

from tbscope.sources.eager.active import step_watchers, watching
from tbscope.sources.eager.watch.modes import lent
from tbscope.sources.eager.watch.replacement import Replaced, Replacement
from tbscope.sources.torch.internals import BACKWARD
from tbscope.sources.torch.literals import collect_tensors

__all__ = ["watch_setters"]

_backward = Replacement(torch.autograd, BACKWARD)
_swap = Replacement(torch.utils, "swap_tensors")


def watch_setters() -> AbstractContextManager[None]:
    """Have this thread's recorders told of tensors that are about to be set, during a block."""
    return Replaced({_backward: _watched_backward, _swap: _watched_swap})


def _watched_backward(*args: Any, **kwargs: Any) -> Any:
    """Run a backward pass; `torch.autograd.grad` adds to no gradient."""
    if not watching.recorders:
        with lent() as watched:
            if watched:
                return _watched_backward(*args, **kwargs)
    roots, gradients, creates_graph = (*args[:2], *args[3:4])
    given = _given(sys._getframe(1))
    with ExitStack() as stack:
        if watching.measuring is not None:
            stack.enter_context(watching.measuring.backward_pass())
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


def _given(caller: FrameType) -> set[int]:
    """Return the identities of the gradients that a caller of autograd's functions has given.

    Args:
        caller: The frame of `torch.autograd.backward` or `grad`; of another one, none are known.
    """
    held = caller.f_locals
    given = held.get("grad_tensors", held.get("grad_outputs"))
    return {id(tensor) for tensor in collect_tensors(given, [])}


def _watched_swap(one: torch.Tensor, other: torch.Tensor) -> None:
    """Do what `torch.utils.swap_tensors` does."""
    with ExitStack() as stack:
        for recorder in watching.recorders:
            recorder.about_to_set(one)
            recorder.about_to_set(other)
            stack.enter_context(recorder.swapping(one, other))
        _swap.original(one, other)
