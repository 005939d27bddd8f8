"""Tells of backward passes that add to gradients, before they do.

No mode sees them: autograd's engine sets the gradients of leaf tensors in C++.
"""

from contextlib import AbstractContextManager
from typing import Any

import torch

from tbscope.sources.eager.active import watching
from tbscope.sources.eager.watch.replacement import Replacement
from tbscope.sources.torch.internals import BACKWARD

__all__ = ["watch_backward"]

_backward = Replacement(torch.autograd, BACKWARD)


def watch_backward() -> AbstractContextManager[None]:
    """Have this thread's recorders told of backward passes, during a block."""
    return _backward.by(_watched_backward)


def _watched_backward(*args: Any, **kwargs: Any) -> Any:
    """Run a backward pass; `torch.autograd.grad` adds to no gradient."""
    if kwargs.get("accumulate_grad", True):
        for recorder in watching.recorders:
            recorder.about_to_accumulate()
    return _backward.original(*args, **kwargs)
