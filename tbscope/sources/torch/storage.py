"""Which tensors share storage, and who wrote into it.

An in-place operation on one view of a storage changes what every other view reads.
The recorder asks here which earlier writes touch what an operation reads, so that
no dependency is lost; writes to other parts of the same storage do not count, so
that none is invented.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tbscope.ir.graph import Node, Value
from tbscope.sources.torch.internals import storage_key
from tbscope.sources.torch.wrapping import PLAIN, memory_of

__all__ = [
    "Region",
    "Write",
    "Writes",
    "lies_in",
    "same_storage",
    "storage_keys",
]

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
