"""What tensors hold: a constant its values, one that is made of others (a wrapper) those.

And which share storage, with who wrote into it. An in-place operation on one view of a storage
changes what every other view reads. The recorder asks here which earlier writes touch what an
operation reads, so that no dependency is lost; writes to other parts of the same storage do not
count, so that none is invented.
"""

import itertools
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, cached_property
from types import SimpleNamespace
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tbscope.ir.graph import Node, Value
from tbscope.sources.torch.calling.pytree import slots_of, tensor_leaves
from tbscope.sources.torch.compat.tensors import (
    in_functorch,
    is_fake,
    outside_modes,
    parts_of,
    storage_key,
    without_functions,
    without_transforms,
)

__all__ = [
    "PLAIN",
    "Region",
    "Write",
    "Writes",
    "content_of",
    "hands_on",
    "held_tensors",
    "holds_others",
    "is_wrapper",
    "lies_in",
    "made_of",
    "same_storage",
    "size_bytes_of",
    "storage_keys",
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


@cache
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
        f"{name}: {type_names(part.dtype, part.device)[0]} {tuple(part.shape)}"
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


# -- which tensors share storage, and who wrote into it

_MOST_WORK: Any = 10_000
_UNKNOWN_END = (1 << 63) - 1


class Region:
    """The part of a storage that a tensor covers.

    What it is like is noted at once; where it ends is computed where somebody asks, as most
    writes are read by nobody through another tensor.

    Attributes:
        place: Its offset, shape and strides in elements, and the bytes of one.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.place: tuple[Any, ...] = (
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
            tensor.element_size(),
        )

    @cached_property
    def reach(self) -> tuple[int, int, Any]:
        """Its first byte, the byte after the last, and its layout for numpy; None if not known."""
        offset, shape, steps, item = self.place
        if not all(type(entry) is int for entry in shape):
            return 0, _UNKNOWN_END, None
        strides = tuple(stride * item for stride in steps)
        start = offset * item
        last = sum((entry - 1) * stride for entry, stride in zip(shape, strides, strict=True))
        layout = {
            # Any address that is not null will do: only differences matter, and none is read.
            "data": ((1 << 32) + start, True),
            "shape": tuple(shape),
            "strides": strides,
            "typestr": f"|V{item}",
            "version": 3,
        }
        return start, start + (last + item if 0 not in shape else 0), layout

    def covers_same(self, other: "Region") -> bool:
        """Tell whether two regions of one storage are the same."""
        return self.place == other.place and self.reach[2] is not None

    def overlaps(self, other: "Region") -> bool:
        """Tell whether two regions of one storage have a byte in common."""
        start, end, layout = self.reach
        other_start, other_end, other_layout = other.reach
        if end <= other_start or other_end <= start:
            return False
        if layout is None or other_layout is None:
            return True
        import numpy

        one, other_one = (
            numpy.asarray(SimpleNamespace(__array_interface__=each))
            for each in (layout, other_layout)
        )
        try:
            return bool(numpy.shares_memory(one, other_one, _MOST_WORK))
        except numpy.exceptions.TooHardError:
            return True


@dataclass
class Write:
    """One write: the node, when it ran, the value it gave, and the region it covered."""

    node: Node
    order: int
    value: Value
    region: Region


class Writes:
    """The writes of a run, by storage.

    Attributes:
        any: Whether there was one at all; most models write nothing.
    """

    def __init__(self) -> None:
        self.any = False
        self._by_storage: dict[int, list[Write]] = {}
        # The addresses of storages, which no other has for as long as they are kept. What C++
        # makes, nobody is told of: it would be taken for what was at its address before. The
        # memory of tensors is free all the same.
        self._addresses: dict[int, StorageWeakRef] = {}

    def add(self, node: Node, order: int, value: Value, tensor: torch.Tensor) -> None:
        """Remember that a node wrote into what this tensor covers.

        Args:
            node: The node that wrote.
            order: When it ran; later ones have greater numbers.
            value: What the written tensor is now.
            tensor: The tensor written, maybe a view that nobody else holds.
        """
        for key, part in _parts(tensor):
            self.any = True
            region = Region(part)
            kept = self._by_storage.get(key)
            if kept is None:
                kept = self._by_storage[key] = []
                if key not in self._addresses:
                    self._addresses[key] = StorageWeakRef(part.untyped_storage())  # type: ignore[no-untyped-call]
            elif kept and (last := kept[-1].region).covers_same(region):
                # A write to the same part as the last one hides that, since it depends on it.
                # The known reach of the part stays known.
                region = last
                kept.pop()
            kept.append(Write(node, order, value, region))

    def touching(self, tensor: torch.Tensor, since: int) -> list[Write]:
        """Return the writes after `since` into the memory of this tensor, the latest first."""
        found = []
        for key, part in _parts(tensor):
            writes = self._by_storage.get(key)
            # Most are read that nobody has written into since.
            if writes and writes[-1].order > since:
                region = Region(part)
                late = itertools.takewhile(lambda write: write.order > since, reversed(writes))
                found += [write for write in late if write.region.overlaps(region)]
        return found

    def forget_fresh(self, results: list[torch.Tensor], read: list[torch.Tensor]) -> None:
        """Forget writes to storages that are new now, at the address of one that is gone.

        Args:
            results: What may lie in new storages.
            read: What was there before.
        """
        by_storage = self._by_storage
        if read and len(results) == 1 and results[0] is read[0]:
            # It gives back what it has written into.
            return
        fresh = by_storage.keys() & storage_keys(results)
        if fresh:
            for key in fresh - storage_keys(read):
                del by_storage[key]


def _parts(tensor: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
    """Return a tensor, or what it is made of, each with the identity of its storage."""
    key = storage_key(tensor)
    if key is not None and type(tensor) in PLAIN:
        return [(key, tensor)]
    keyed = [(storage_key(part), part) for part in memory_of(tensor)]
    return [(key, part) for key, part in keyed if key is not None]


def same_storage(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether two tensors are views of one storage."""
    key = storage_key(one)
    return key is not None and key == storage_key(other)


def storage_keys(tensors: Iterable[torch.Tensor]) -> set[int]:
    """Return the identities of the storages in which tensors, or what they are made of, lie."""
    return {key for tensor in tensors for key, _ in _parts(tensor)}


def lies_in(tensor: torch.Tensor, keys: set[int]) -> bool:
    """Tell whether a tensor, or a part of what it is made of, lies in one of these storages."""
    return any(key in keys for key, _ in _parts(tensor))
