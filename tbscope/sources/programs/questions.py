"""Calls that their names explain: questions about a tensor, and changes of a container."""

from typing import Any

__all__ = ["CHANGES", "is_question"]

CHANGES = frozenset(
    {
        *("append", "extend", "insert", "remove", "reverse", "clear", "pop", "popitem", "popleft"),
        *("appendleft", "extendleft", "update", "setdefault", "setitem", "delitem", "setattr"),
    }
)
"""Methods and functions that change a container, beside those of tensors that end in `_`."""

# What is asked of a tensor, and not of its values.
_QUESTIONS = frozenset(
    {
        *("size", "dim", "numel", "ndimension", "nelement", "stride", "is_contiguous", "len"),
        *("element_size", "storage_offset", "is_floating_point", "is_complex", "get_device"),
    }
)
_ASKED = frozenset(
    {
        *("shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda", "is_sparse"),
        *("is_quantized", "is_leaf", "is_meta", "is_nested"),
    }
)


def is_question(name: str, args: Any) -> bool:
    """Tell whether a function asks a tensor for its size, its type or the like."""
    if name == "getattr":
        return len(args) > 1 and args[1] in _ASKED
    return name in _QUESTIONS
