"""Hands a user's own autograd functions the stand-ins of tensors, in a run that has some.

`torch.autograd.Function.apply` is no function of torch that a mode would see.
"""

from contextlib import AbstractContextManager
from typing import Any

import torch

from tbscope.sources.eager.active import watching
from tbscope.sources.eager.watch.replacement import Replacement

__all__ = ["watch_own_functions"]

_apply = Replacement(torch.autograd.Function, "apply")


def watch_own_functions() -> AbstractContextManager[None]:
    """Have autograd functions in this thread take stand-ins, during a block."""
    return _apply.by(_watched_apply)


@classmethod  # type: ignore[misc]
def _watched_apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Do what `Function.apply` does."""
    stand_ins = watching.stand_ins
    if stand_ins is not None:
        args, kwargs = stand_ins.among(args), stand_ins.among(kwargs)
    return _apply.original.__get__(None, cls)(*args, **kwargs)
