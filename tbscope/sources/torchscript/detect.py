"""Tells what of TorchScript something is, at no cost for those who draw none: all is asked."""

import re
from typing import Any

import torch

from tbscope.sources.torch.compat.archives import archive_entries

__all__ = ["has_torchscript", "holds_script", "is_function", "is_script", "is_script_file"]

_jit: Any = getattr(torch, "jit", None)
_MODULE: type | None = getattr(_jit, "ScriptModule", None)
_FUNCTION: type | None = getattr(_jit, "ScriptFunction", None)
_CONSTANTS = re.compile(r"[^/]*/constants\.pkl")


def has_torchscript() -> bool:
    """Tell whether this torch has TorchScript."""
    return _MODULE is not None and hasattr(_jit, "load")


def is_function(thing: object) -> bool:
    """Tell whether something is a function that torch.jit traced or scripted."""
    return _FUNCTION is not None and isinstance(thing, _FUNCTION)


def is_script(thing: object) -> bool:
    """Tell whether something is a module or a function that torch.jit traced or scripted."""
    return (_MODULE is not None and isinstance(thing, _MODULE)) or is_function(thing)


def is_script_file(thing: object) -> bool:
    """Tell whether something is the path of a file that torch.jit.save has written.

    The file is asked what it holds; its name counts for nothing.
    """
    return holds_script(archive_entries(thing))


def holds_script(names: list[str]) -> bool:
    """Tell whether the entries of an archive are those of TorchScript: code, and its constants."""
    roots = [name.removesuffix("constants.pkl") for name in names if _CONSTANTS.fullmatch(name)]
    return any(name.startswith(f"{root}code/") for root in roots for name in names)
