"""Watches module calls: while a recorder watches, modules tell it of their calls.

The method of `torch.nn.Module` that every call goes through is replaced while any
thread of the process is watched, and put back after; other threads pass through it
at the price of a look at what the module gave. No hook is registered, so nothing of the
model changes, and hooks run inside of their module's scope.
"""

import sys
from contextlib import AbstractContextManager
from typing import Any

import torch

from tbscope.sources.eager.active import abandoned, settle, watching
from tbscope.sources.eager.watch.elsewhere import came_from_here
from tbscope.sources.eager.watch.modes import lent
from tbscope.sources.eager.watch.replacement import Replacement
from tbscope.sources.torch.module_internals import call_method_name

__all__ = ["watch_modules", "watched_call"]

_call_method = Replacement(torch.nn.Module, "__call__")


def watched_call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a module, and tell this thread's recorders of it."""
    if abandoned:
        settle()
    recorders = watching.recorders
    if not recorders:
        with lent() as watched:
            if watched:
                return watched_call(module, *args, **kwargs)
        result = _call_method.original(module, *args, **kwargs)
        came_from_here(result, sys._getframe(1))
        return result
    if len(recorders) == 1:
        recorder = recorders[0]
        if recorder.paused:
            return _call_method.original(module, *args, **kwargs)
        frame = recorder.enter_call(module, args, kwargs, sys._getframe(1))
        if frame is None:
            return _call_method.original(module, *args, **kwargs)
        try:
            result = _call_method.original(module, *args, **kwargs)
        except BaseException as error:
            recorder.fail_call(frame, error)
            raise
        return recorder.leave_call(frame, args, kwargs, result)
    return _call_for_several(module, args, kwargs)


def _call_for_several(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Do what `watched_call` does where several recorders watch."""
    caller = sys._getframe(2)
    opened = [
        (recorder, recorder.enter_call(module, args, kwargs, caller))
        for recorder in watching.recorders
        if not recorder.paused
    ]
    frames = [(recorder, frame) for recorder, frame in opened if frame is not None]
    del caller
    try:
        result = _call_method.original(module, *args, **kwargs)
    except BaseException as error:
        for recorder, frame in frames:
            recorder.fail_call(frame, error)
        raise
    for recorder, frame in frames:
        result = recorder.leave_call(frame, args, kwargs, result)
    return result


def watch_modules() -> AbstractContextManager[None]:
    """Have modules tell this thread's recorders of their calls, during a block."""
    return _call_method.by(watched_call, name=call_method_name())
