"""What tensors hold: a constant its values, one that is made of others (a wrapper) those."""

from contextlib import nullcontext
from functools import cache
from typing import Any

import torch

from tbscope.sources.torch.internals import (
    in_functorch,
    is_fake,
    outside_modes,
    parts_of,
    storage_key,
    without_functions,
    without_transforms,
)
from tbscope.sources.torch.nests import slots_of, tensor_leaves

__all__ = [
    "PLAIN",
    "content_of",
    "hands_on",
    "held_tensors",
    "holds_others",
    "is_wrapper",
    "made_of",
    "memory_of",
    "size_bytes_of",
    "type_names",
]

PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
"""The classes of tensors that nobody has added anything to."""

_FUNCTIONS = tuple(kind.__torch_function__ for kind in (torch.Tensor, torch.nn.Parameter))
_CONTAINERS = (list, tuple, dict)


@cache
def type_names(dtype: torch.dtype, device: torch.device) -> tuple[str, str]:
    """Return the names of an element type and of a device: `float32`, `cuda:0`."""
    return str(dtype).removeprefix("torch."), str(device)


def is_wrapper(kind: type) -> bool:
    """Tell whether tensors of a class hand each kernel on to the tensors that they hold."""
    return getattr(kind, "__torch_dispatch__", None) != torch.Tensor.__torch_dispatch__


@cache
def hands_on(kinds: tuple[type, ...]) -> bool:
    """Tell whether one of these classes of tensors has its say in what each kernel does.

    Those of fake tensors do not count: they are the tensors of a run that computes nothing.
    """
    return any(is_wrapper(kind) and not is_fake(kind) for kind in kinds)


def holds_others(kind: type) -> bool:
    """Tell whether what a tensor of this class is may be told by other tensors in it.

    So where it has a say in what torch's functions or kernels do with it; what any other
    subclass keeps in its attributes, no operation reads.
    """
    if kind in PLAIN or is_fake(kind):
        return False
    function = getattr(kind.__torch_function__, "__func__", kind.__torch_function__)  # type: ignore[attr-defined]
    usual = (getattr(each, "__func__", each) for each in _FUNCTIONS)
    return is_wrapper(kind) or all(function is not each for each in usual)


def held_tensors(tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors that one of a subclass holds now, by the names of its attributes.

    What it says itself (`__tensor_flatten__`) counts; where it says nothing, its attributes,
    and of a wrapper also what lists, tuples and dicts in them hold.
    """
    kind = type(tensor)
    flatten = getattr(kind, "__tensor_flatten__", None)
    with without_functions():
        held = list(vars(tensor).items()) if flatten is None and kind.__dictoffset__ else []
        names = dict(slots_of(kind)) if flatten is None else flatten(tensor)[0]
        held += [(name, getattr(tensor, name, None)) for name in names]
    found: list[tuple[str, torch.Tensor]] = []
    for name, each in held:
        if isinstance(each, torch.Tensor):
            found.append((name, each))
        elif type(each) in _CONTAINERS and is_wrapper(kind):
            found += tensor_leaves(each, name)
    return found


def memory_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors in whose storages a tensor's content is: for a plain one, itself."""
    own = storage_key(tensor) is not None
    if own and type(tensor) in PLAIN:
        return [tensor]
    with outside_modes():
        parts: list[Any] = parts_of(tensor)
    if not parts and holds_others(type(tensor)):
        parts = [part for _, part in held_tensors(tensor)]
    found = [tensor] if own else []
    for part in parts:
        if part is not tensor:
            found += memory_of(part)
    return found


def size_bytes_of(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's content: of one that is made of others (int8, scales) theirs.

    One that is made of a single tensor of its own type is as large as it says: of a sharded
    parameter the whole counts.
    """
    whole = tensor.numel() * tensor.element_size()
    if type(tensor) in PLAIN or not holds_others(type(tensor)):
        return whole
    parts = [part for _, part in held_tensors(tensor) if part is not tensor]
    if not parts or (len(parts) == 1 and parts[0].dtype == tensor.dtype):
        return whole
    return sum(map(size_bytes_of, parts))


def made_of(tensor: torch.Tensor) -> dict[str, Any]:
    """Return what a tensor is made of, as attributes of its node; nothing for a plain one.

    Returns:
        `tensor_class`, its class, and `holds`, the tensors in it by their names with type and
        shape (`qdata: int8 (64, 64), scale: float32 (64, 1)`).
    """
    kind = type(tensor)
    if kind in PLAIN or not holds_others(kind):
        return {}
    told: dict[str, Any] = {"tensor_class": f"{kind.__module__}.{kind.__qualname__}"}
    parts = [
        f"{name}: {str(part.dtype).removeprefix('torch.')} {tuple(part.shape)}"
        for name, part in held_tensors(tensor)
    ]
    if parts:
        told["holds"] = ", ".join(parts)
    return told


_FEW = 8
# To look through more than this would take time that a user notices.
_MOST = 2**20
_READ = frozenset(
    {
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    }
)


def content_of(tensor: torch.Tensor) -> dict[str, Any]:
    """Return the content of a constant, as attributes of its node.

    Args:
        tensor: Any tensor; read where it is a plain one with content.
    Returns:
        `value`, a number or a list of numbers, for up to 8 elements; `minimum`, `maximum` and
        `mean` (of truth values, `true_count`) for more; nothing for a tensor without content
        (on `meta`, fake), of another layout or dtype, or of over a million elements.
    """
    if type(tensor) not in PLAIN or tensor.is_nested:
        return {}
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return {}
    size = tensor.numel()
    if size == 0 or size > _MOST or tensor.dtype not in _READ:
        return {}
    # Inside of a `grad` torch up to 2.8 gives no content of what it makes of a tensor.
    transforms = without_transforms if in_functorch() else nullcontext
    with torch.no_grad(), without_functions(), outside_modes(), transforms():
        if size <= _FEW:
            return {"value": tensor.item() if tensor.dim() == 0 else tensor.flatten().tolist()}
        if tensor.dtype is torch.bool:
            return {"true_count": int(tensor.sum())}
        smallest, largest = torch.aminmax(tensor)
        mean = tensor.double().mean()
        return {"minimum": smallest.item(), "maximum": largest.item(), "mean": mean.item()}
