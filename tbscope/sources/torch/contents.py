"""What a constant tensor holds: its values where they are few, else what they lie between."""

from contextlib import nullcontext
from typing import Any

import torch

from tbscope.sources.torch.internals import (
    in_functorch,
    outside_modes,
    without_functions,
    without_transforms,
)

__all__ = ["content_of"]

_FEW = 8
# To look through more than this would take time that a user notices.
_MOST = 2**20
_COUNTED = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_MEASURED = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


def content_of(tensor: torch.Tensor) -> dict[str, Any]:
    """Return the content of a constant, as attributes of its node.

    Args:
        tensor: Any tensor; read where it is a plain one with content.
    Returns:
        `value`, a number or a list of numbers, for up to 8 elements; `minimum`, `maximum` and
        `mean` (of truth values, `true_count`) for more; nothing for a tensor without content
        (on `meta`, fake), of another layout or dtype, or of over a million elements.
    """
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_nested:
        return {}
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return {}
    size = tensor.numel()
    if size == 0 or size > _MOST or tensor.dtype not in _COUNTED | _MEASURED:
        return {}
    # Inside of a `grad` torch up to 2.8 gives no content of what it makes of a tensor.
    transforms = without_transforms if in_functorch() else nullcontext
    with torch.no_grad(), without_functions(), outside_modes(), transforms():
        return _few(tensor) if size <= _FEW else _many(tensor)


def _few(tensor: torch.Tensor) -> dict[str, Any]:
    return {"value": tensor.item() if tensor.dim() == 0 else tensor.flatten().tolist()}


def _many(tensor: torch.Tensor) -> dict[str, Any]:
    if tensor.dtype is torch.bool:
        return {"true_count": int(tensor.sum())}
    smallest, largest = torch.aminmax(tensor)
    mean = tensor.double().mean()
    return {"minimum": smallest.item(), "maximum": largest.item(), "mean": mean.item()}
