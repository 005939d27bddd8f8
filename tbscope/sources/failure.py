"""Says what went wrong in a traced model: where, why, and what to try."""

from typing import Any

from tbscope.errors import TraceError
from tbscope.graph import Call, Value
from tbscope.sources.recorder import Recorder
from tbscope.text import type_to_text

__all__ = ["trace_error"]

_NEEDS_GRAD = "does not require grad"


def trace_error(error: Exception, recorder: Recorder, *, grad: bool) -> TraceError:
    """Give the error for a model that raised while it was traced.

    Args:
        error: What the model raised.
        recorder: Who watched; it knows the innermost call that failed.
        grad: Whether gradients were recorded.
    """
    call = None
    if recorder.failed is not None and recorder.failed[0] is error:
        call = recorder.failed[1].call
    where = f", in {call.scope}" if call else f", in {recorder.graph.name}"
    text = " ".join(str(error).split())
    if len(text) > 500:
        text = f"{text[:500]}..."
    return TraceError(
        f"the model raised while it was being traced{where}",
        why=f"{type(error).__name__}: {text}" if text else type(error).__name__,
        fix=_fix(text, call, grad),
    )


def _fix(text: str, call: Call | None, grad: bool) -> str:
    if _NEEDS_GRAD in text and not grad:
        return "the model differentiates in forward: pass grad=True"
    if call is None:
        return "check input_to_model and kwargs; the model must run when called by itself"
    given = ", ".join(f"{argument.name}={_short(argument.nest)}" for argument in call.arguments)
    name = (
        f"{call.scope.part.label}[{call.qualified_name}]"
        if call.qualified_name
        else (call.scope.part.label)
    )
    return f"check input_to_model: {name} got {given or 'no arguments'}"


def _short(nest: Any) -> str:
    if isinstance(nest, Value):
        return type_to_text(nest)
    if isinstance(nest, dict):
        return "{" + ", ".join(f"{key}: {_short(entry)}" for key, entry in nest.items()) + "}"
    if isinstance(nest, list | tuple):
        return "[" + ", ".join(map(_short, nest)) + "]"
    return repr(nest)
