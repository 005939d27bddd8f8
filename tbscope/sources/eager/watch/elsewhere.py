"""Takes note of tensors that come from threads which nobody watches.

A worker that ran before does what it does unseen. What it hands on, and what its modules give,
is remembered for as long as somebody is watched: where one of these turns up in the run, the
graph can tell whose it is.
"""

import queue
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType
from typing import Any
from weakref import ref

from tbscope.sources.eager.active import Arrival, arrivals, watching
from tbscope.sources.eager.watch.replacement import Replaced, Replacement
from tbscope.sources.torch.locate import Locator
from tbscope.sources.torch.nests import tensor_leaves

__all__ = ["came_from_here", "watch_elsewhere"]

_put = Replacement(queue.Queue, "put")
_set_result = Replacement(Future, "set_result")


@contextmanager
def watch_elsewhere() -> Iterator[None]:
    """Have noted what other threads hand on, during a block."""
    try:
        with Replaced({_put: _watched_put, _set_result: _watched_set_result}):
            yield
    finally:
        arrivals.clear()


def came_from_here(nest: Any, frame: FrameType | None) -> None:
    """Take note that this thread has made the tensors of a nest, unless it is watched.

    Args:
        nest: What it hands on.
        frame: The Python frame that does.
    """
    if watching.recorders:
        return
    leaves = tensor_leaves(nest, "")
    if leaves:
        arrival = threading.current_thread().name, _locator.source(frame, None)
        for _, tensor in leaves:
            arrivals[id(tensor)] = Arrival(ref(tensor), *arrival)


_locator = Locator(came_from_here.__code__)


def _watched_put(waiting: Any, item: Any, *args: Any, **kwargs: Any) -> Any:
    came_from_here(item, sys._getframe(1))
    return _put.original(waiting, item, *args, **kwargs)


def _watched_set_result(future: Any, result: Any) -> Any:
    came_from_here(result, sys._getframe(1))
    return _set_result.original(future, result)
