"""Contents of tensors: values of constants, inner tensors of subclasses, and writes by storage.

An in-place write through one view of a storage changes every overlapping view. The recorder looks
up here which earlier writes overlap the memory that an operation reads, so that no dependency is
lost. Writes to other parts of a storage do not count, so that no dependency is invented.
"""

import itertools
from collections.abc import Sequence
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
    key_of_storage,
    keys_of_storages,
    outside_modes,
    parts_of,
    storage_key,
    without_functions,
    without_transforms,
)

PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
"""The classes of plain tensors: torch's own, without additions by a subclass."""

_FUNCTIONS = tuple(kind.__torch_function__ for kind in (torch.Tensor, torch.nn.Parameter))


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of an element type (`float32`)."""
    return str(dtype).removeprefix("torch.")


@cache
def type_names(dtype: torch.dtype, device: torch.device) -> tuple[str, str]:
    """Return the names of an element type and of a device: `float32`, `cuda:0`."""
    return dtype_name(dtype), str(device)


def is_wrapper(kind: type) -> bool:
    """Whether a class of tensors has a `__torch_dispatch__` of its own, for its inner tensors."""
    return getattr(kind, "__torch_dispatch__", None) != torch.Tensor.__torch_dispatch__


@cache
def any_wrapper(kinds: tuple[type, ...]) -> bool:
    """Whether one of these classes of tensors handles kernels itself.

    Fake tensors do not count: they are the plain tensors of a fake run.
    """
    return any(is_wrapper(kind) and not is_fake(kind) for kind in kinds)


@cache
def may_have_inner_tensors(kind: type) -> bool:
    """Whether the content of a tensor of this class may be in other tensors inside it.

    True for classes with a `__torch_function__` or `__torch_dispatch__` of their own. No operation
    reads the attributes of any other subclass.
    """
    if kind in PLAIN or is_fake(kind):
        return False
    function = getattr(kind.__torch_function__, "__func__", kind.__torch_function__)  # type: ignore[attr-defined]
    defaults = (getattr(default, "__func__", default) for default in _FUNCTIONS)
    return is_wrapper(kind) or all(function is not default for default in defaults)


def inner_tensors(tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """Return the inner tensors of a tensor of a subclass, with the names of their attributes.

    `__tensor_flatten__` names them. Without it, all attributes and slots are searched, and in a
    wrapper also the lists, tuples and dicts among these.
    """
    kind = type(tensor)
    flatten = getattr(kind, "__tensor_flatten__", None)
    with without_functions():
        attributes = list(vars(tensor).items()) if flatten is None and kind.__dictoffset__ else []
        names = dict(slots_of(kind)) if flatten is None else flatten(tensor)[0]
        attributes += [(name, getattr(tensor, name, None)) for name in names]
    tensors: list[tuple[str, torch.Tensor]] = []
    for name, attribute in attributes:
        if isinstance(attribute, torch.Tensor):
            tensors.append((name, attribute))
        elif type(attribute) in (list, tuple, dict) and is_wrapper(kind):
            tensors += tensor_leaves(attribute, name)
    return tensors


def memory_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors whose storages contain the content of a tensor.

    For a plain tensor, this is the tensor itself; for a wrapper, a sparse tensor or a tensor of
    `vmap`, the inner tensors.
    """
    has_storage = storage_key(tensor) is not None
    if has_storage and type(tensor) in PLAIN:
        return [tensor]
    with outside_modes():
        inner: list[Any] = parts_of(tensor)
    if not inner and may_have_inner_tensors(type(tensor)):
        inner = [inner_tensor for _, inner_tensor in inner_tensors(tensor)]
    tensors = [tensor] if has_storage else []
    for inner_tensor in inner:
        if inner_tensor is not tensor:
            tensors += memory_of(inner_tensor)
    return tensors


def size_bytes_of(tensor: torch.Tensor) -> int:
    """Return the size of a tensor's content in bytes.

    The size of a quantized tensor is the sum of its inner tensors (int8, scales). A tensor with a
    single inner tensor of its own dtype has the size of its shape: a sharded parameter counts as
    a whole.
    """
    size_bytes = tensor.numel() * tensor.element_size()
    if not may_have_inner_tensors(type(tensor)):
        return size_bytes
    inner = [
        inner_tensor for _, inner_tensor in inner_tensors(tensor) if inner_tensor is not tensor
    ]
    if not inner or (len(inner) == 1 and inner[0].dtype == tensor.dtype):
        return size_bytes
    return sum(map(size_bytes_of, inner))


def subclass_attributes(tensor: torch.Tensor) -> dict[str, object]:
    """Return the inner tensors of a tensor as attributes of its node; empty for a plain tensor.

    Returns:
        `tensor_class`, the full name of its class, and `holds`, a text with name, dtype and shape
        of each inner tensor (`qdata: int8 (64, 64), scale: float32 (64, 1)`).
    """
    kind = type(tensor)
    if not may_have_inner_tensors(kind):
        return {}
    attributes: dict[str, object] = {"tensor_class": f"{kind.__module__}.{kind.__qualname__}"}
    texts = [
        f"{name}: {dtype_name(inner.dtype)} {tuple(inner.shape)}"
        for name, inner in inner_tensors(tensor)
    ]
    if texts:
        attributes["holds"] = ", ".join(texts)
    return attributes


_FEW = 8
_READ = frozenset(
    {
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    }
)


def content_of(tensor: torch.Tensor) -> dict[str, object]:
    """Return the content of a constant, as attributes of its node.

    Args:
        tensor: Any tensor.
    Returns:
        `value`, a number or a list of numbers. Empty for more than 8 elements, and for a tensor of
        a subclass, without content (on `meta`, fake), or of another layout or dtype.
    """
    if type(tensor) not in PLAIN or tensor.is_nested:
        return {}
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return {}
    if not 0 < tensor.numel() <= _FEW or tensor.dtype not in _READ:
        return {}
    # Inside `grad`, torch up to 2.8 wraps the results computed below, and cannot read them.
    transforms = without_transforms if in_functorch() else nullcontext
    with torch.no_grad(), without_functions(), outside_modes(), transforms():
        return {"value": tensor.item() if tensor.dim() == 0 else tensor.flatten().tolist()}


# -- writes by storage

_MOST_WORK: Any = 10_000
_UNKNOWN_END = (1 << 63) - 1


class Region:
    """The part of a storage that a tensor covers.

    Its extent in bytes is computed on first use, since most writes are never compared with a
    read through another tensor.

    Attributes:
        geometry: The offset, shape and strides of the tensor in elements, and the element size in
            bytes.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.geometry: tuple[Any, ...] = (
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
            tensor.element_size(),
        )

    @cached_property
    def reach(self) -> tuple[int, int, object]:
        """The first byte, the byte after the last, and the layout as numpy's array interface.

        A region with symbolic sizes extends from 0 to the largest offset, with None as layout.
        """
        offset, shape, steps, item = self.geometry
        if not all(type(entry) is int for entry in shape):
            return 0, _UNKNOWN_END, None
        strides = tuple(stride * item for stride in steps)
        start = offset * item
        last = sum((entry - 1) * stride for entry, stride in zip(shape, strides, strict=True))
        layout = {
            # Any base address but null will do: numpy only compares addresses, and reads nothing.
            "data": ((1 << 32) + start, True),
            "shape": tuple(shape),
            "strides": strides,
            "typestr": f"|V{item}",
            "version": 3,
        }
        return start, start + (last + item if 0 not in shape else 0), layout

    def covers_same(self, other: "Region") -> bool:
        """Whether two regions of one storage are equal; False if their extent is symbolic."""
        return self.geometry == other.geometry and self.reach[2] is not None

    def overlaps(self, other: "Region") -> bool:
        """Whether two regions of one storage have a byte in common.

        Regions of unknown extent count as overlapping, and pairs that numpy cannot decide in
        bounded time, too.
        """
        start, end, layout = self.reach
        other_start, other_end, other_layout = other.reach
        if end <= other_start or other_end <= start:
            return False
        if layout is None or other_layout is None:
            return True
        import numpy

        left, right = (
            numpy.asarray(SimpleNamespace(__array_interface__=interface))
            for interface in (layout, other_layout)
        )
        try:
            return bool(numpy.shares_memory(left, right, _MOST_WORK))
        except numpy.exceptions.TooHardError:
            return True


@dataclass
class Write:
    """One in-place write: the node, its number in order of execution, the new value, the region."""

    node: Node
    order: int
    value: Value
    region: Region


class Writes:
    """The in-place writes of a run, by storage.

    Attributes:
        any: Whether the run has a write at all; most models have none, and skip the look-ups.
    """

    def __init__(self) -> None:
        self.any = False
        self._by_storage: dict[int, list[Write]] = {}
        # Weak references to storages, by address. They reserve the addresses: otherwise a storage
        # that C++ creates unnoticed could be taken for an earlier storage at its address. The
        # memory of the tensors is freed nevertheless.
        self._addresses: dict[int, StorageWeakRef] = {}

    def add(self, node: Node, order: int, value: Value, tensor: torch.Tensor) -> None:
        """Record that a node wrote into the memory of a tensor.

        Args:
            node: The node.
            order: Its number in order of execution; later nodes have greater numbers.
            value: The value of the tensor after the write.
            tensor: The written tensor, which may be a temporary view.
        """
        for key, part in _parts(tensor):
            self.any = True
            region = Region(part)
            writes = self._by_storage.get(key)
            if writes is None:
                writes = self._by_storage[key] = []
                if key not in self._addresses:
                    self._addresses[key] = StorageWeakRef(part.untyped_storage())  # type: ignore[no-untyped-call]
            elif writes and (last := writes[-1].region).covers_same(region):
                # A write to an equal region replaces the last one, since it depends on it. The
                # old region stays, as its extent may be cached.
                region = last
                writes.pop()
            writes.append(Write(node, order, value, region))

    def touching(self, tensor: torch.Tensor, since: int) -> list[Write]:
        """Return the writes after number `since` that overlap a tensor, the latest first."""
        overlapping = []
        for key, part in _parts(tensor):
            writes = self._by_storage.get(key)
            # Most storages have no later write, so the order is checked before the regions.
            if writes and writes[-1].order > since:
                region = Region(part)
                late = itertools.takewhile(lambda write: write.order > since, reversed(writes))
                overlapping += [write for write in late if write.region.overlaps(region)]
        return overlapping

    def values_in(self, storage: torch.UntypedStorage) -> list[Value]:
        """Return the values of the tensors in a storage into which operations wrote."""
        writes = self._by_storage.get(key_of_storage(storage), ())
        return list(dict.fromkeys(write.value for write in writes))

    def forget_fresh(self, results: list[torch.Tensor], read: list[torch.Tensor]) -> None:
        """Remove the writes to storages of results that are new, at the address of released ones.

        Args:
            results: The results of an operation, whose storages may be new.
            read: The tensors that existed before the operation.
        """
        by_storage = self._by_storage
        if read and len(results) == 1 and results[0] is read[0]:
            # An in-place operation returns its argument.
            return
        fresh = by_storage.keys() & storage_keys(results)
        if fresh:
            for key in fresh - storage_keys(read):
                del by_storage[key]


def _parts(tensor: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
    """Return the tensors of `memory_of` that have a storage, each with its storage key."""
    key = storage_key(tensor)
    if key is not None and type(tensor) in PLAIN:
        return [(key, tensor)]
    keyed = [(storage_key(part), part) for part in memory_of(tensor)]
    return [(key, part) for key, part in keyed if key is not None]


def same_storage(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors share a storage; False for tensors without one."""
    key = storage_key(left)
    return key is not None and key == storage_key(right)


def storage_keys(tensors: Sequence[torch.Tensor]) -> set[int]:
    """Return the keys of the storages of tensors and of their inner tensors."""
    if PLAIN.issuperset(map(type, tensors)):
        keys = set(keys_of_storages(tensors))
        if None not in keys:
            return keys  # type: ignore[return-value]
    return {key for tensor in tensors for key, _ in _parts(tensor)}


def shares_storage_with(tensor: torch.Tensor, keys: set[int]) -> bool:
    """Whether a tensor, or one of its inner tensors, is in one of these storages."""
    return not keys.isdisjoint(dict(_parts(tensor)))
