"""Watches module calls: while a recorder watches, `torch.nn.Module.__call__` tells it.

The method is replaced while any thread of the process is watched, and put back
after; other threads pass through it at the price of one look-up. No hook is
registered, so nothing of the model changes, and hooks run inside of their
module's scope.
"""

import sys
import threading
from typing import Any

import torch

from tbscope.sources.active import watching

__all__ = ["unwatch_modules", "watch_modules", "watched_call"]

_lock = threading.Lock()
_watchers = 0
_original = torch.nn.Module.__call__


def watched_call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a module, and tell this thread's recorders of it."""
    recorders = watching.recorders
    if not recorders:
        return _original(module, *args, **kwargs)
    caller = sys._getframe(1)
    frames = [
        (recorder, recorder.enter_call(module, args, kwargs, caller))
        for recorder in recorders
        if not recorder.paused
    ]
    del caller
    try:
        result = _original(module, *args, **kwargs)
    except BaseException as error:
        for recorder, frame in frames:
            recorder.fail_call(frame, error)
        raise
    for recorder, frame in frames:
        recorder.leave_call(frame, args, kwargs, result)
    return result


def watch_modules() -> None:
    """Begin to watch; each call needs one of `unwatch_modules`."""
    global _watchers, _original
    with _lock:
        if _watchers == 0:
            _original = torch.nn.Module.__call__
            torch.nn.Module.__call__ = watched_call  # type: ignore[method-assign]
        _watchers += 1


def unwatch_modules() -> None:
    """End what one call of `watch_modules` began."""
    global _watchers
    with _lock:
        _watchers -= 1
        if _watchers == 0 and torch.nn.Module.__call__ is watched_call:
            torch.nn.Module.__call__ = _original  # type: ignore[method-assign]
