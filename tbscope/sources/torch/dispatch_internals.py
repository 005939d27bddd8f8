"""What torch's dispatcher goes by: it tells that the same kernels will run as once before."""

from typing import Any

import torch

__all__ = ["DISPATCH_TELLS", "dispatch_settings", "is_alone", "keys_of", "past_modes"]

_C: Any = torch._C
_keys: Any = getattr(_C, "_dispatch_keys", None)
_included: Any = getattr(_C, "_dispatch_tls_local_include_set", None)
_excluded: Any = getattr(_C, "_dispatch_tls_local_exclude_set", None)

past_modes: Any = getattr(_C, "_DisableTorchDispatch", None)
"""Has torch run kernels for a block as if no dispatch mode were there, at no cost."""

_dispatch_modes: Any = getattr(_C, "_len_torch_dispatch_stack", None)
_function_modes: Any = getattr(_C, "_len_torch_function_stack", None)

DISPATCH_TELLS: bool = None not in (
    *(_keys, _included, _excluded, past_modes, _dispatch_modes, _function_modes),
)
"""Whether this torch tells all that its dispatcher goes by; else nobody may ask for it here."""


def keys_of(tensor: torch.Tensor) -> int:
    """Return all by which a tensor decides which kernels run on it."""
    keys: int = _keys(tensor).raw_repr()
    return keys


def is_alone() -> bool:
    """Tell a mode for functions that is asked whether there is but it, and one dispatch mode."""
    return bool(_dispatch_modes() == 1 and not _function_modes())


def dispatch_settings() -> tuple[int, int]:
    """Return all by which this thread does: autocast, inference mode, transforms, modes."""
    return _included().raw_repr(), _excluded().raw_repr()
