"""Tells of modules that get another training flag, by `train()` or `eval()`, while one is drawn.

The model itself may switch modules that nobody has met yet: they are kept before. And another
thread may switch those that are kept: what it wants is what holds after the draw.
"""

import threading
from contextlib import AbstractContextManager
from typing import Any

import torch

from tbscope.sources.eager.active import keepers, watching
from tbscope.sources.eager.watch.replacement import Replacement
from tbscope.sources.torch.internals import outside_modes

__all__ = ["watch_training_modes"]

_train = Replacement(torch.nn.Module, "train")


def watch_training_modes() -> AbstractContextManager[None]:
    """Have whoever keeps modules told of those that are switched, during a block."""
    return _train.by(_watched_train)


def _watched_train(module: torch.nn.Module, mode: bool = True) -> Any:
    """Do what `Module.train` does; it calls itself for each child, so each comes by here."""
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
