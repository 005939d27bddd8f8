"""Watches module calls: while a recorder watches, modules tell it of their calls.

The method of `torch.nn.Module` that every call goes through is replaced while any
thread of the process is watched, and put back after; other threads pass through it. No hook is
registered, so nothing of the model changes, and hooks run inside of their module's scope.
"""

import sys
from typing import Any

import torch

from tbscope.sources.eager.thread_state import abandoned, settle, watching
from tbscope.sources.eager.watch.modes import lent
from tbscope.sources.eager.watch.patch import Replacements
from tbscope.sources.torch.compat.modules import call_method_name

__all__ = ["MODULE_CALLS", "watched_call"]

MODULE_CALLS = Replacements()
"""Has modules tell this thread's recorders of their calls."""


def watched_call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a module, and tell this thread's recorders of it."""
    if abandoned:
        settle()
    recorders = watching.recorders
    if not recorders:
        with lent() as watched:
            if watched:
                return watched_call(module, *args, **kwargs)
        return _call.original(module, *args, **kwargs)
    opened = []
    for recorder in recorders:
        if not recorder.paused:
            frame = recorder.enter_call(module, args, kwargs, sys._getframe(1))
            if frame is not None:
                opened.append((recorder, frame))
    try:
        result = _call.original(module, *args, **kwargs)
    except BaseException as error:
        for recorder, frame in opened:
            recorder.fail_call(frame, error)
        raise
    for recorder, frame in opened:
        result = recorder.leave_call(frame, args, kwargs, result)
    return result


_call = MODULE_CALLS.of(torch.nn.Module, call_method_name)(watched_call)
