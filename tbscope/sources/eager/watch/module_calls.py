"""Watching of module calls: modules report their calls to the recorders of their thread.

The method of `torch.nn.Module` that every call goes through is replaced while any thread of the
process is watched, and restored afterwards; calls in other threads pass through the replacement. No
hook is registered, so the model does not change, and hooks run inside of their module's scope.
"""

import sys
from typing import Any

import torch

from tbscope.sources.eager.thread_state import abandoned, finalize_abandoned, watching
from tbscope.sources.eager.watch.patch import Patches
from tbscope.sources.torch.compat.modules import call_method_name

MODULE_CALLS = Patches()
"""Block in which modules report their calls to the recorders of their thread."""


def watched_call(module: torch.nn.Module, /, *args: object, **kwargs: object) -> Any:
    """Call a module, and report the call to the recorders of this thread."""
    # A watch that its thread has not ended ends at the thread's next module call.
    if abandoned:
        finalize_abandoned()
    recorders = watching.recorders
    if not recorders:
        return _call.original(module, *args, **kwargs)
    opened = []
    for recorder in recorders:
        if not recorder.suspended:
            frame = recorder.events.call_begins(module, args, kwargs, sys._getframe(1))
            if frame is not None:
                opened.append((recorder, frame))
    try:
        result = _call.original(module, *args, **kwargs)
    except BaseException as error:
        for recorder, frame in opened:
            recorder.events.call_failed(frame, error)
        raise
    for recorder, frame in opened:
        result = recorder.events.call_ended(frame, args, kwargs, result)
    return result


_call = MODULE_CALLS.of(torch.nn.Module, call_method_name)(watched_call)
