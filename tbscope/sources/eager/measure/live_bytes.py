"""Counts the bytes of results that are alive, kernel by kernel.

What a kernel allocated counts from then on until nobody holds it any more: no tensor,
no view of it, no backward pass that will read it. Parameters, buffers, inputs and
whatever else was there before the run count nothing. Memory that a kernel takes and
gives back on its way is not seen, and neither is what an allocator adds to round sizes
up.
"""

from collections import Counter
from functools import partial
from typing import Any
from weakref import ref

import torch

from tbscope.sources.torch.calling.argument_values import collect_tensors
from tbscope.sources.torch.compat.tensors import parts_of, storage_key, without_functions
from tbscope.sources.torch.operations import KernelFacts

__all__ = ["LiveBytes"]

# What they read is data that torch has just made of Python's: new, though it was given.
_LIFTS = frozenset({"lift", "lift_fresh", "lift_fresh_copy"})


class LiveBytes:
    """The bytes of results that are alive, on all devices together.

    Attributes:
        highest: The most that were alive at one moment so far.
    """

    def __init__(self) -> None:
        self.highest = 0
        self._alive = 0
        self._peak = 0
        # By storage: the storage, its bytes, and by which call it was made.
        self._held: dict[int, tuple[ref[torch.UntypedStorage], int, int]] = {}
        # What was taken and given back, by which call it was made; how much of that was
        # before the highest.
        self._changes: list[tuple[int, int]] = []
        self._until_highest = 0

    def read(self) -> int:
        """Return the most bytes that were alive at one moment since the last reading."""
        peak, self._peak = self._peak, self._alive
        return peak

    def held_at_highest(self) -> Counter[int]:
        """Return the bytes that were alive when most were, by the call that made them."""
        held: Counter[int] = Counter()
        for maker, size_bytes in self._changes[: self._until_highest]:
            held[maker] += size_bytes
        return +held

    def add(
        self,
        facts: KernelFacts,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        *,
        maker: int = 0,
    ) -> None:
        """Count the bytes that a finished kernel allocated, in new storages or in grown ones.

        Args:
            facts: What it is.
            args: What it was given.
            kwargs: What it was given by name.
            result: What it gave.
            maker: The number of the call in which it ran.
        """
        with without_functions():
            given = _storages(collect_tensors((args, kwargs), []))
            made = _storages(collect_tensors(result, []))
            for key, storage in given.items():
                if key in self._held:
                    self._resize(key, storage)
            for key, storage in made.items():
                if key not in self._held and (key not in given or facts.label in _LIFTS):
                    self._held[key] = (ref(storage, partial(self._free, key)), 0, maker)
                    self._resize(key, storage)

    def _resize(self, key: int, storage: torch.UntypedStorage) -> None:
        held, before, maker = self._held[key]
        size_bytes = storage.nbytes()
        if size_bytes != before:
            self._held[key] = (held, size_bytes, maker)
            self._change(maker, size_bytes - before)
            self._peak = max(self._peak, self._alive)
            if self._alive > self.highest:
                self.highest = self._alive
                self._until_highest = len(self._changes)

    def _change(self, maker: int, size_bytes: int) -> None:
        self._alive += size_bytes
        self._changes.append((maker, size_bytes))

    def _free(self, key: int, _: object) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            self._change(held[2], -held[1])


def _storages(tensors: list[torch.Tensor]) -> dict[int, torch.UntypedStorage]:
    """Return the storages of tensors, and of the tensors that wrappers hold, each once, by key."""
    found: dict[int, torch.UntypedStorage] = {}
    for tensor in tensors:
        parts = parts_of(tensor)
        if parts:
            found |= _storages(parts)
        else:
            key = storage_key(tensor)
            if key is not None:
                found[key] = tensor.untyped_storage()
    return found
