"""Which tensors share storage, and who wrote into it.

An in-place operation on one view of a storage changes what every other view reads.
The recorder asks here which earlier writes touch what an operation reads, so that
no dependency is lost; writes to other parts of the same storage do not count, so
that none is invented.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tbscope.ir.graph import Node, Value
from tbscope.sources.torch.internals import storage_key
from tbscope.sources.torch.wrapping import PLAIN, memory_of

__all__ = [
    "Addresses",
    "Region",
    "Write",
    "Writes",
    "lies_in",
    "same_storage",
    "storage_keys",
]

_MOST_WORK = 10_000
_UNKNOWN_END = (1 << 63) - 1


class Region:
    """The part of a storage that a tensor covers.

    What it is like is noted at once; where it ends is computed where somebody asks, as most
    writes are read by nobody through another tensor.

    Attributes:
        place: Its offset, shape and strides in elements, and the bytes of one.
    """

    __slots__ = ("_reach", "place")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.place = (
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
            tensor.element_size(),
        )
        self._reach: _Reach | None = None

    @property
    def reach(self) -> "_Reach":
        """Its first byte, the byte after the last, and its layout in bytes."""
        if self._reach is None:
            self._reach = _reach(*self.place)
        return self._reach

    def covers_same(self, other: "Region") -> bool:
        """Tell whether two regions of one storage are the same."""
        return self.place == other.place and self.reach.layout is not None

    def overlaps(self, other: "Region") -> bool:
        """Tell whether two regions of one storage have a byte in common."""
        one, two = self.reach, other.reach
        if one.end <= two.start or two.end <= one.start:
            return False
        if one.layout is None or two.layout is None:
            return True
        import numpy

        try:
            return bool(
                numpy.shares_memory(
                    _Phantom(one).array(numpy),
                    _Phantom(two).array(numpy),
                    _MOST_WORK,  # type: ignore[arg-type]
                )
            )
        except numpy.exceptions.TooHardError:
            return True


class _Reach(NamedTuple):
    """Where a region begins and ends in its storage, in bytes.

    Attributes:
        start: The first byte.
        end: The byte after the last.
        layout: Shape, strides in bytes and element size; None where unknown.
    """

    start: int
    end: int
    layout: tuple[Any, ...] | None


def _reach(offset: Any, sizes: torch.Size, steps: tuple[Any, ...], item: int) -> _Reach:
    shape = tuple(sizes)
    if not all(type(entry) is int for entry in shape):
        return _Reach(0, _UNKNOWN_END, None)
    strides = tuple(stride * item for stride in steps)
    start = offset * item
    reach = sum((entry - 1) * stride for entry, stride in zip(shape, strides, strict=True))
    return _Reach(start, start + (reach + item if 0 not in shape else 0), (shape, strides, item))


class _Phantom:
    """An array over addresses that are never read, for numpy's exact overlap test."""

    def __init__(self, region: _Reach) -> None:
        assert region.layout is not None
        shape, strides, size = region.layout
        # Any address that is not null will do: only differences matter.
        self.__array_interface__ = {
            "data": ((1 << 32) + region.start, True),
            "shape": shape,
            "strides": strides,
            "typestr": f"|V{size}",
            "version": 3,
        }

    def array(self, numpy: Any) -> Any:
        return numpy.asarray(self)


class Write:
    """One write: the node, when it ran, the value it gave, and the region it covered."""

    __slots__ = ("node", "order", "region", "value")

    def __init__(self, node: Node, order: int, value: Value, region: Region) -> None:
        self.node = node
        self.order = order
        self.value = value
        self.region = region


class Addresses:
    """The addresses of storages, which no other storage has for as long as they are kept.

    What C++ makes, nobody is told of: it would be taken for what was at its address before. The
    memory of tensors is free all the same.
    """

    def __init__(self) -> None:
        self._kept: dict[int, StorageWeakRef] = {}

    def keep(self, key: int, tensor: torch.Tensor) -> None:
        """Keep the address of a tensor's storage, which is its key."""
        if key not in self._kept:
            self._kept[key] = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


class Writes:
    """The writes of a run, by storage.

    Attributes:
        any: Whether there was one at all; most models write nothing.
    """

    def __init__(self) -> None:
        self.any = False
        self._by_storage: dict[int, list[Write]] = {}
        self._addresses = Addresses()

    def add(self, node: Node, order: int, value: Value, tensor: torch.Tensor) -> None:
        """Remember that a node wrote into what this tensor covers.

        Args:
            node: The node that wrote.
            order: When it ran; later ones have greater numbers.
            value: What the written tensor is now.
            tensor: The tensor written, maybe a view that nobody else holds.
        """
        for part in memory_of(tensor):
            key = storage_key(part)
            if key is None:
                continue
            self.any = True
            region = Region(part)
            kept = self._by_storage.get(key)
            if kept is None:
                kept = self._by_storage[key] = []
                self._addresses.keep(key, part)
            elif kept and (last := kept[-1].region).covers_same(region):
                # A write to the same part as the last one hides that, since it depends on it.
                # The known reach of the part stays known.
                region = last
                kept.pop()
            kept.append(Write(node, order, value, region))

    def touching(self, tensor: torch.Tensor, since: int) -> list[Write]:
        """Return the writes after `since` into the memory of this tensor, the latest first."""
        key = storage_key(tensor)
        if key is not None and type(tensor) in PLAIN:
            writes = self._by_storage.get(key)
            # Most are read that nobody has written into since.
            if not writes or writes[-1].order <= since:
                return []
            return _overlapping(writes, Region(tensor), since)
        found = []
        for part in memory_of(tensor):
            key = storage_key(part)
            if key in self._by_storage:
                found += _overlapping(self._by_storage[key], Region(part), since)
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
        fresh = {key for key in storage_keys(results) if key in by_storage}
        if fresh:
            for key in fresh - storage_keys(read):
                del by_storage[key]


def _overlapping(writes: list[Write], region: Region, since: int) -> list[Write]:
    """Return the writes after `since` into a part of one storage, the latest first."""
    found = []
    for write in reversed(writes):
        if write.order <= since:
            break
        if write.region.overlaps(region):
            found.append(write)
    return found


def same_storage(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether two tensors are views of one storage."""
    key = storage_key(one)
    return key is not None and key == storage_key(other)


def storage_keys(tensors: Iterable[torch.Tensor]) -> set[int]:
    """Return the identities of the storages in which tensors, or what they are made of, lie."""
    keys = set()
    for tensor in tensors:
        key = storage_key(tensor)
        if key is not None and type(tensor) in PLAIN:
            keys.add(key)
        else:
            parts = map(storage_key, memory_of(tensor))
            keys.update(key for key in parts if key is not None)
    return keys


def lies_in(tensor: torch.Tensor, keys: set[int]) -> bool:
    """Tell whether a tensor, or a part of what it is made of, lies in one of these storages."""
    key = storage_key(tensor)
    if key is not None and type(tensor) in PLAIN:
        return key in keys
    return not keys.isdisjoint(storage_keys([tensor]))
