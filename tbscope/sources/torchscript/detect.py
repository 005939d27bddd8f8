"""Checks for TorchScript modules and functions."""

import torch

from tbscope.sources.torch.compat.modules import ScriptModule

__all__ = ["has_torchscript", "is_function", "is_script"]

_jit: object = getattr(torch, "jit", None)
# In a torch without TorchScript, no object is an instance of an empty tuple.
_FUNCTION: type | tuple[()] = getattr(_jit, "ScriptFunction", ())


def has_torchscript() -> bool:
    """Whether this torch has TorchScript."""
    return hasattr(_jit, "ScriptModule") and hasattr(_jit, "load")


def is_function(obj: object) -> bool:
    """Whether an object is a function that torch.jit traced or scripted."""
    return isinstance(obj, _FUNCTION)


def is_script(obj: object) -> bool:
    """Whether an object is a module or a function that torch.jit traced or scripted."""
    return isinstance(obj, ScriptModule) or is_function(obj)
