"""Checks for TorchScript modules, functions and files, without loading them."""

import re

import torch

from tbscope.sources.files import archive_entries

__all__ = ["has_torchscript", "holds_script", "is_function", "is_script", "is_script_file"]

_jit: object = getattr(torch, "jit", None)
_MODULE: type | None = getattr(_jit, "ScriptModule", None)
_FUNCTION: type | None = getattr(_jit, "ScriptFunction", None)
_CONSTANTS = re.compile(r"[^/]*/constants\.pkl")


def has_torchscript() -> bool:
    """Whether this torch has TorchScript."""
    return _MODULE is not None and hasattr(_jit, "load")


def is_function(obj: object) -> bool:
    """Whether an object is a function that torch.jit traced or scripted."""
    return _FUNCTION is not None and isinstance(obj, _FUNCTION)


def is_script(obj: object) -> bool:
    """Whether an object is a module or a function that torch.jit traced or scripted."""
    return (_MODULE is not None and isinstance(obj, _MODULE)) or is_function(obj)


def is_script_file(obj: object) -> bool:
    """Whether an object is the path of a file that torch.jit.save has written.

    The entries of the archive decide; the name of the file does not count.
    """
    return holds_script(archive_entries(obj))


def holds_script(names: list[str]) -> bool:
    """Whether an archive has the entries of TorchScript: `constants.pkl`, and `code/` beside it."""
    roots = [name.removesuffix("constants.pkl") for name in names if _CONSTANTS.fullmatch(name)]
    return any(name.startswith(f"{root}code/") for root in roots for name in names)
