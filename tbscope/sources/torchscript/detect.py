"""Checks for TorchScript modules and functions."""

import torch

__all__ = ["has_torchscript", "is_function", "is_script"]

_jit: object = getattr(torch, "jit", None)
_MODULE: type | None = getattr(_jit, "ScriptModule", None)
_FUNCTION: type | None = getattr(_jit, "ScriptFunction", None)


def has_torchscript() -> bool:
    """Whether this torch has TorchScript."""
    return _MODULE is not None and hasattr(_jit, "load")


def is_function(obj: object) -> bool:
    """Whether an object is a function that torch.jit traced or scripted."""
    return _FUNCTION is not None and isinstance(obj, _FUNCTION)


def is_script(obj: object) -> bool:
    """Whether an object is a module or a function that torch.jit traced or scripted."""
    return (_MODULE is not None and isinstance(obj, _MODULE)) or is_function(obj)
