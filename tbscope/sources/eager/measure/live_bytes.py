"""Bytes of live results, counted kernel by kernel.

An allocation of a kernel counts until nothing refers to it any more: no tensor, no view, and no
backward pass that will read it. Parameters, buffers, inputs and other tensors from before the run
do not count. Memory that a kernel allocates and frees while it runs is not seen, nor is the
rounding of sizes by an allocator.
"""

from collections import Counter
from functools import partial
from typing import Any
from weakref import ref

import torch

from tbscope.sources.torch.calling.argument_values import collect_tensors
from tbscope.sources.torch.compat.tensors import parts_of, storage_key, without_functions
from tbscope.sources.torch.operations import KernelInfo

# Their input is a new tensor that torch has just made of Python data, so it counts as a result.
_LIFTS = frozenset({"lift", "lift_fresh", "lift_fresh_copy"})


class LiveBytes:
    """Counter of the bytes of live results, on all devices together.

    Attributes:
        highest: The largest number of live bytes so far.
    """

    def __init__(self) -> None:
        self.highest = 0
        self._alive = 0
        self._peak = 0
        # By storage key: the storage, its counted bytes, and the call that made it.
        self._held: dict[int, tuple[ref[torch.UntypedStorage], int, int]] = {}
        # Allocations (positive) and releases (negative) by the call that made the storage; and the
        # number of entries before the highest point.
        self._changes: list[tuple[int, int]] = []
        self._until_highest = 0

    def start(self) -> int:
        """Begin a call: the next reading is the peak from here on."""
        return self.read()

    def read(self) -> int:
        """Return the largest number of live bytes since the last reading."""
        peak, self._peak = self._peak, self._alive
        return peak

    def held_at_highest(self) -> Counter[int]:
        """Return the live bytes at the highest point, by the call that made them."""
        live: Counter[int] = Counter()
        for maker, size_bytes in self._changes[: self._until_highest]:
            live[maker] += size_bytes
        return +live

    def add(
        self,
        facts: KernelInfo,
        args: tuple[object, ...],
        kwargs: dict[str, Any],
        result: object,
        *,
        maker: int = 0,
    ) -> None:
        """Count the bytes that a finished kernel allocated, in new or in larger storages.

        Args:
            facts: Facts on the kernel.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            result: Its result.
            maker: Number of the call in which it ran.
        """
        with without_functions():
            inputs = _storages(collect_tensors((args, kwargs), []))
            outputs = _storages(collect_tensors(result, []))
            for key, storage in inputs.items():
                if key in self._held:
                    self._resize(key, storage)
            for key, storage in outputs.items():
                if key not in self._held and (key not in inputs or facts.label in _LIFTS):
                    self._held[key] = (ref(storage, partial(self._free, key)), 0, maker)
                    self._resize(key, storage)

    def _resize(self, key: int, storage: torch.UntypedStorage) -> None:
        storage_ref, before, maker = self._held[key]
        size_bytes = storage.nbytes()
        if size_bytes != before:
            self._held[key] = (storage_ref, size_bytes, maker)
            self._change(maker, size_bytes - before)
            self._peak = max(self._peak, self._alive)
            if self._alive > self.highest:
                self.highest = self._alive
                self._until_highest = len(self._changes)

    def _change(self, maker: int, size_bytes: int) -> None:
        self._alive += size_bytes
        self._changes.append((maker, size_bytes))

    def _free(self, key: int, _: object) -> None:
        entry = self._held.pop(key, None)
        if entry is not None:
            self._change(entry[2], -entry[1])


def _storages(tensors: list[torch.Tensor]) -> dict[int, torch.UntypedStorage]:
    """Return the storages of tensors, and of tensors inside of wrappers, each once, by key."""
    storages: dict[int, torch.UntypedStorage] = {}
    for tensor in tensors:
        parts = parts_of(tensor)
        if parts:
            storages |= _storages(parts)
        else:
            key = storage_key(tensor)
            if key is not None:
                storages[key] = tensor.untyped_storage()
    return storages
