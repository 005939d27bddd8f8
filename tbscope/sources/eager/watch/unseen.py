"""Tells of what torch does where no mode looks: of stand-ins for parameters, and of new faces.

`functional_call` puts other tensors in the place of a module's own before it calls it, so
that a module which nobody knows yet would be met with what is not its own.
`Parameter(tensor)` shows a tensor as one of another class, which no operation does.
"""

from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch

from tbscope.sources.eager.active import watching
from tbscope.sources.eager.watch.replacement import Replacement
from tbscope.sources.torch.internals import face_maker, functional_calls

__all__ = ["watch_unseen"]

_functional_call = Replacement(*home) if (home := functional_calls()) else None
_make_face = Replacement(*home) if (home := face_maker()) else None


def watch_unseen() -> AbstractContextManager[Any]:
    """Have this thread's recorders told of functional calls and of new faces, during a block."""
    with ExitStack() as stack:
        if _functional_call is not None:
            stack.enter_context(_functional_call.by(_watched_functional_call))
        if _make_face is not None:
            stack.enter_context(_make_face.by(_watched_face))
        return stack.pop_all()


def _watched_functional_call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Do what `functional_call` does; the module is met before others stand in for its own."""
    assert _functional_call is not None
    with ExitStack() as stack:
        for recorder in watching.recorders:
            if not recorder.paused and isinstance(module, torch.nn.Module):
                stack.enter_context(recorder.others_stand_in(module))
        return _functional_call.original(module, *args, **kwargs)


def _watched_face(kind: type, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Do what `Tensor._make_subclass` does."""
    assert _make_face is not None
    face: torch.Tensor = _make_face.original(kind, tensor, *args, **kwargs)
    for recorder in watching.recorders:
        if not recorder.paused:
            recorder.add_face(face, tensor)
    return face
