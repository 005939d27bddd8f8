"""What torch's dispatcher goes by: it tells that the same kernels will run as once before."""

from typing import Any

import torch

__all__ = ["dispatch_settings", "is_alone", "keys_of", "past_modes"]

_C: Any = torch._C

past_modes: Any = _C._DisableTorchDispatch
"""Has torch run kernels for a block as if no dispatch mode were there, at no cost."""


def keys_of(tensor: torch.Tensor) -> int:
    """Return all by which a tensor decides which kernels run on it."""
    keys: int = _C._dispatch_keys(tensor).raw_repr()
    return keys


def is_alone() -> bool:
    """Tell a mode for functions that is asked whether there is but it, and one dispatch mode."""
    return bool(_C._len_torch_dispatch_stack() == 1 and not _C._len_torch_function_stack())


def dispatch_settings() -> tuple[int, int]:
    """Return all by which this thread does: autocast, inference mode, transforms, modes."""
    included, excluded = _C._dispatch_tls_local_include_set(), _C._dispatch_tls_local_exclude_set()
    return included.raw_repr(), excluded.raw_repr()
