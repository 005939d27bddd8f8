"""Lazy modules make their parameters in their first call: that is no part of what they compute."""

from collections.abc import Callable
from typing import Any, Protocol

import torch

from tbscope.sources.torch.module_internals import prepares_lazily

__all__ = ["look_away"]


class _Watcher(Protocol):
    paused: bool


def look_away(watcher: _Watcher, module: torch.nn.Module) -> None:
    """Have a watcher look away while a lazy module makes its parameters."""
    hooks = module._forward_pre_hooks
    for key, hook in hooks.items():
        if prepares_lazily(hook):
            # The hook removes itself once it has run, and this one with it.
            hooks[key] = _unseen(watcher, hook)


def _unseen(watcher: _Watcher, function: Callable[..., Any]) -> Callable[..., Any]:
    def unseen(*args: Any, **kwargs: Any) -> Any:
        paused, watcher.paused = watcher.paused, True
        try:
            return function(*args, **kwargs)
        finally:
            watcher.paused = paused

    return unseen
