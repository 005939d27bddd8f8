"""Explains the error of a traced model: where it arose, why, and what to try."""

import sys
from typing import Any

from tbscope.errors import TraceError
from tbscope.ir.graph import Call, Parameter, Value
from tbscope.ir.nests import values_in
from tbscope.ir.text import type_to_text
from tbscope.sources.eager.record.recorder import Recorder
from tbscope.sources.eager.watch import modes, module_calls
from tbscope.sources.torch.locate import OWN_FILES

__all__ = ["error_text", "trace_error"]

_MOST_TEXT = 500
# What torch says of a tensor on meta whose content somebody wants.
_HAS_NO_VALUES = ("on meta tensors", "out of meta tensor", "the 'Meta' backend")
# The model's own errors pass through these on their way.
_PASSAGES = (modes.__file__, module_calls.__file__)


def trace_error(error: Exception, recorder: Recorder, *, grad: bool, fake: bool) -> TraceError:
    """Return the error for a model that raised while it was traced.

    Args:
        error: The error that the model raised.
        recorder: The recorder of the run; it knows the innermost call that failed.
        grad: Whether gradients were recorded.
        fake: Whether it ran on stand-ins for tensors.
    """
    frame = recorder.failures.call(error)
    call = None if frame is None else frame.call
    where = f"in {_short_path(call.scope.path)}" if call else f"in {recorder.graph.name}"
    text = error_text(error)
    # Where the limit is met is chance; that it is met is the model's doing.
    if _is_ours(error) and not isinstance(error, RecursionError):
        return TraceError(
            f"tbscope itself failed while it watched the model, {where}",
            why=text,
            fix="report it with the traceback above; the model is as it was before",
        )
    return TraceError(
        f"the model raised while it was being traced, {where}",
        why=text,
        fix=_fix(text, call, grad=grad, fake=fake),
    )


def error_text(error: BaseException) -> str:
    """Return an error on one line: `RuntimeError: the message`."""
    text = " ".join(str(error).split())
    if len(text) > _MOST_TEXT:
        text = f"{text[:_MOST_TEXT]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _short_path(path: str) -> str:
    if len(path) <= _MOST_TEXT:
        return path
    levels = path.count("/") + 1
    start, end = path[: _MOST_TEXT // 4], path[-_MOST_TEXT // 4 :]
    return f"{start}.../{end.partition('/')[2]}, {levels:,} levels deep"


def _is_ours(error: Exception) -> bool:
    """Tell whether an error comes from tbscope, not from the model that it watches."""
    trace = error.__traceback__
    file = ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        trace = trace.tb_next
    return file.startswith(OWN_FILES) and file not in _PASSAGES


def _fix(text: str, call: Call | None, *, grad: bool, fake: bool) -> str:
    if "does not require grad" in text and not grad:
        return "the model differentiates in forward: pass grad=True"
    if text.startswith(RecursionError.__name__):
        return (
            "the model's calls are nested deeper than Python's limit of "
            f"{sys.getrecursionlimit()}: if they end at all, call sys.setrecursionlimit() with "
            "more before"
        )
    if any(words in text for words in _HAS_NO_VALUES) and not fake:
        return (
            "the model reads the values of tensors, and on the device meta there are none: pass "
            "fake=True, with which libraries leave such checks out, or give the model and its "
            "inputs memory: model.to_empty(device='cpu')"
        )
    if fake and ("DataDependent" in text or "data-dependent" in text.lower()):
        decides = "the model decides on the values of tensors, and fake=True has none: "
        if call is not None and _is_on_meta(call):
            return decides + (
                "give the model and its inputs memory, model.to_empty(device='cpu'), and pass "
                "fake=False"
            )
        return f"{decides}pass fake=False"
    if fake:
        return (
            "pass fake=False if the model runs when called by itself: not every operation "
            "tells its result's shape without values"
        )
    if call is None:
        return "check input_to_model and kwargs; the model must run when called by itself"
    given = [(argument.name or "", argument.nest) for argument in call.arguments]
    return _misplaced(call, given) or (
        f"check input_to_model: {_name(call)} got "
        + (", ".join(f"{name}={_short(nest)}" for name, nest in given) or "no arguments")
    )


def _is_on_meta(call: Call) -> bool:
    given = [value for argument in call.arguments for value in values_in(argument.nest)]
    return any(held.device == "meta" for held in (*given, *call.parameters))


def _misplaced(call: Call, given: list[tuple[str, Any]]) -> str:
    """Tell of an argument on another device, or of another float type, than the parameters."""
    held = [parameter for parameter in call.parameters if parameter.kind == "parameter"]
    for name, value in given:
        if not isinstance(value, Value):
            continue
        for parameter in held:
            if parameter.device != value.device:
                return (
                    f"bring input and model together: {_name(call)} has {parameter.name} on "
                    f"{parameter.device}, got {name} on {value.device}; "
                    f"use .to({parameter.device!r})"
                )
            if _is_float(parameter) and _is_float(value) and parameter.dtype != value.dtype:
                return (
                    f"give inputs of the model's dtype: {_name(call)} has {parameter.name} in "
                    f"{parameter.dtype}, got {name} in {value.dtype}; "
                    f"use .to(torch.{parameter.dtype})"
                )
    return ""


def _is_float(thing: Value | Parameter) -> bool:
    return "float" in thing.dtype


def _name(call: Call) -> str:
    label = call.scope.part.label
    return f"{label}[{call.qualified_name}]" if call.qualified_name else label


def _short(nest: Any) -> str:
    if isinstance(nest, Value):
        return type_to_text(nest)
    if isinstance(nest, dict):
        return "{" + ", ".join(f"{key}: {_short(entry)}" for key, entry in nest.items()) + "}"
    if isinstance(nest, list | tuple):
        return "[" + ", ".join(map(_short, nest)) + "]"
    return repr(nest)
