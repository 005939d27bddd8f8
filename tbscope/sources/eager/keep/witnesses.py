"""What a run may change and nobody can put back, but everybody can see: iterators, files, locks.

Each of them is asked before the run and after it, in a way that changes nothing.
"""

import _thread
import functools
import gc
import io
import itertools
import queue
import threading
from collections.abc import Callable
from operator import length_hint
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, TypeAlias

from tbscope.sources.torch.internals import is_stand_in
from tbscope.sources.torch.nests import tensor_leaves

__all__ = ["CACHE", "Witness", "forget", "witness_of"]

Witness: TypeAlias = Callable[[Any], Any]
"""Returns what tells, by its difference, that a thing has changed."""


def witness_of(cls: type) -> Witness | None:
    """Return what sees whether an instance of a class has changed; None where nobody does."""
    return next((ask for base, ask in _WITNESSES if issubclass(cls, base)), None)


def _place_of(file: Any) -> Any:
    """Return the place at which a file is read or written; None where it has none."""
    if file.closed:
        return "closed"
    try:
        return file.tell()
    except (OSError, ValueError):
        # A pipe, a terminal, or a file that is being iterated over.
        return None


def _filling(cache: Any) -> Any:
    """Return how often a cache was filled, and how much it holds."""
    info = cache.cache_info()
    return info.misses, info.currsize


def forget(cache: Any, before: Any) -> None:
    """Empty a cache that a run has filled, where it was empty or holds stand-ins now.

    What it remembers may have no gradients, or no content, and whoever asks it after the run
    needs both. Others may rely on what it held before, so that is not forgotten for nothing.
    """
    held = gc.get_referents(cache)
    entries = [entry for table in held if type(table) is dict for entry in table.values()]
    found = [tensor for _, tensor in tensor_leaves([*held, *entries], "")]
    if before == (0, 0) or any(map(is_stand_in, found)):
        cache.cache_clear()


CACHE: Any = type(functools.lru_cache(lambda: None))
"""The class of functions that remember what they returned."""

# Iterators that know how much is left of what they go through.
_COUNTED: tuple[type, ...] = (
    *(type(iter(made())) for made in (list, tuple, dict, set, str, bytes)),
    *(type(iter({}.values())), type(iter({}.items())), type(iter(range(0)))),
    *(type(reversed([])), itertools.repeat),
)

_WITNESSES: tuple[tuple[Any, Witness], ...] = (
    (GeneratorType, lambda made: made.gi_frame and made.gi_frame.f_lasti),
    (CoroutineType, lambda made: made.cr_frame and made.cr_frame.f_lasti),
    (AsyncGeneratorType, lambda made: made.ag_frame and made.ag_frame.f_lasti),
    (itertools.count, repr),
    (_COUNTED, lambda iterator: length_hint(iterator, -1)),
    (CACHE, _filling),
    (io.IOBase, _place_of),
    (_thread.LockType, lambda lock: lock.locked()),
    (_thread.RLock, repr),
    (threading.Event, lambda event: event.is_set()),
    ((queue.Queue, queue.SimpleQueue), lambda held: held.qsize()),
)
