"""Explanation of a traced model's error: the module that raised, the cause, and advice."""

import re
from linecache import getline
from traceback import walk_tb
from typing import Any, NamedTuple

from tbscope.errors import TraceError
from tbscope.ir.graph import Call, Parameter, Source, Value
from tbscope.ir.nodes import nest_to_text, type_to_text
from tbscope.ir.pytree import Nest
from tbscope.messages import cut, error_text, shown
from tbscope.sources.eager.record.recorder import Recorder
from tbscope.sources.eager.watch import dtensor_mode, modes, module_calls
from tbscope.sources.torch.calling.dummy_inputs import size_advice
from tbscope.sources.torch.source_location import OWN_FILES, raised_at

# Files of tbscope that are on the traceback of every error of the model.
_PASSAGES = (modes.__file__, dtensor_mode.__file__, module_calls.__file__)
# Text in the line in which one of our patches calls torch's original function.
_CALLS_TORCH = ".original("
# Errors in the model's code, and missing files: other inputs would not help.
_SLIPS = (AttributeError, KeyError, NameError, ImportError, OSError, RecursionError)
_NO_MEMORY = re.compile(r"MemoryError|allocate memory|out of memory|not enough memory", re.I)
_NO_VALUES = re.compile(r"on meta tensors|out of meta tensor|the 'Meta' backend")
_DECIDES = re.compile(r"data.?dependent", re.I)
_ABOUT_TYPES = re.compile(
    r"dtype|scalar type|should be the same|not implemented for|data ?type|type promoting|"
    r"must have the type",  # So torch 2.6 says of an LSTM.
    re.I,
)
_WANTS_WHOLE = "scalar types: Long, Int"
_MOST_OF_VALUE = 200
_MOST_OF_PATH = 400


class RunContext(NamedTuple):
    """Circumstances of a run that raised.

    Attributes:
        grad: Whether gradients were recorded.
        fake: Whether the model ran on fake tensors.
        inputs: The `input_to_model` of the caller.
    """

    grad: bool
    fake: bool
    inputs: Any = None


def trace_error(error: Exception, recorder: Recorder, context: RunContext) -> TraceError:
    """Return the error for a model that raised while it was traced.

    Args:
        error: The error that the model raised.
        recorder: The recorder of the run, which has the innermost call that failed.
        context: Circumstances of the run.
    Returns:
        An error that names the module and a remedy.
    """
    frame = recorder.calls.failed.of(error)
    call = None if frame is None else frame.call
    where = cut(f"in {call.scope.path if call else recorder.graph.name}", _MOST_OF_PATH)
    text = error_text(error)
    # A RecursionError may be raised in any frame, ours included, but its cause is the model.
    if _is_ours(error) and not isinstance(error, RecursionError):
        return TraceError(
            f"tbscope itself failed while it watched the model, {where}",
            why=text,
            fix="report it with the traceback above; the model is as it was before",
        )
    source = raised_at(error.__traceback__)
    return TraceError(
        f"the model raised while it was being traced, {where}",
        why=text,
        fix=_by_text(text, context)
        or _by_code(error, source, context)
        or _by_call(call, text, context),
    )


def _is_ours(error: Exception) -> bool:
    """Whether an error comes from tbscope, not from the watched model."""
    *_, (frame, line) = walk_tb(error.__traceback__)
    file = frame.f_code.co_filename
    if not file.startswith(OWN_FILES) or file in _PASSAGES:
        return False
    # Functions of torch in C++ have no Python frame; the last frame is our patch that calls them.
    return _CALLS_TORCH not in getline(file, line)


def _by_text(text: str, context: RunContext) -> str:
    """Return advice that follows from the text of an error, or ""."""
    if "does not require grad" in text and not context.grad:
        return "the model differentiates in forward: pass grad=True"
    if context.fake:
        return (
            "the model decides on the values of tensors, and fake=True has none: pass fake=False, "
            "on the device meta after model.to_empty(device='cpu')"
            if _DECIDES.search(text)
            else ""
        )
    if _NO_MEMORY.search(text):
        return "pass fake=True, which takes no memory, or give smaller inputs"
    if _NO_VALUES.search(text):
        return (
            "the model reads the values of tensors, and on the device meta there are none: pass "
            "fake=True, with which libraries leave such checks out, or give the model and its "
            "inputs memory: model.to_empty(device='cpu')"
        )
    return ""


def _by_code(error: Exception, source: Source | None, context: RunContext) -> str:
    """Return advice on a size passed as input, or on a mistake in the model's own code."""
    sizes = "" if isinstance(error, KeyError | NameError) else size_advice(context.inputs)
    if sizes or source is None or not isinstance(error, _SLIPS):
        return sizes
    fake = "; or pass fake=False, as stand-ins have no values" if context.fake else ""
    return f"see {source}: the model's own code raised, or what it calls there{fake}"


def _by_call(call: Call | None, text: str, context: RunContext) -> str:
    """Return advice on the arguments of the innermost call that failed."""
    advice = "" if call is None else _misplaced(call, text)
    if advice:
        return advice
    if context.fake:
        return (
            "pass fake=False if the model runs when called by itself: not every operation "
            "tells its result's shape without values"
        )
    if isinstance(context.inputs, list) and context.inputs:
        return (
            "check input_to_model: a list contains the positional arguments; for a model that "
            "takes a list of tensors give input_to_model=([img],)"
        )
    if call is None:
        return "check input_to_model and kwargs; the model must run when called by itself"
    got = [
        f"{name}={cut(nest_to_text(nest, _entry), _MOST_OF_VALUE)}" for name, nest in call.arguments
    ]
    return f"check input_to_model: {_name(call)} got {', '.join(got) or 'no arguments'}"


def _entry(entry: Nest) -> str:
    return type_to_text(entry) if isinstance(entry, Value) else shown(entry, _MOST_OF_VALUE)


def _misplaced(call: Call, text: str) -> str:
    """Return advice on an argument whose device or type differs from the parameters', or ""."""
    label = _name(call)
    for name, value in call.arguments:
        if not isinstance(value, Value):
            continue
        if _WANTS_WHOLE in text and _is_float(value):
            return f"{label} takes whole numbers, got {name} in {value.dtype}; use .long()"
        for parameter in call.parameters:
            if parameter.kind != "parameter":
                continue
            if parameter.device != value.device:
                return (
                    f"bring input and model together: {label} has {parameter.name} on "
                    f"{parameter.device}, got {name} on {value.device}; "
                    f"use .to({parameter.device!r})"
                )
            if parameter.dtype == value.dtype or not _is_float(parameter):
                continue
            if _is_float(value) or _ABOUT_TYPES.search(text):
                whole = not _is_float(value) and parameter.dtype == "float32"
                cast = ".float()" if whole else f".to(torch.{parameter.dtype})"
                return (
                    f"give inputs of the model's dtype: {label} has {parameter.name} in "
                    f"{parameter.dtype}, got {name} in {value.dtype}; use {cast}"
                )
    return ""


def _is_float(value: Value | Parameter) -> bool:
    return "float" in value.dtype


def _name(call: Call) -> str:
    label = cut(call.scope.part.label, _MOST_OF_VALUE)
    return f"{label}[{cut(call.qualified_name, _MOST_OF_VALUE)}]" if call.qualified_name else label
