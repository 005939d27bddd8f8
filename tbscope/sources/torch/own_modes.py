"""Modules that switch their mode in a way of their own, by a `train()` or `eval()` they define.

A backbone keeps its BatchNorm frozen, an adapter merges its weights.
"""

from collections.abc import Iterable
from typing import Any

import torch

from tbscope.sources.torch.module_internals import uncompiled

__all__ = ["switches_itself"]

_Module = torch.nn.Module


def switches_itself(modules: Iterable[torch.nn.Module]) -> bool:
    """Tell whether one of some modules has its own way to be switched between modes."""
    modules = list(modules)
    types: set[Any] = set(map(type, modules))
    own = {cls for cls in types if cls.train is not _Module.train or cls.eval is not _Module.eval}
    return any(
        uncompiled(module) is module
        for module in modules
        if type(module) in own or "train" in module.__dict__ or "eval" in module.__dict__
    )
