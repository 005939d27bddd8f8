"""Explains the error of a traced model: where it arose, why, and what to try."""

import re
import sys
from linecache import getline
from typing import Any, NamedTuple

import torch

from tbscope.errors import TraceError
from tbscope.ir.graph import Call, Parameter, Source, Value
from tbscope.ir.nests import values_in
from tbscope.ir.nodes import type_to_text
from tbscope.sources.eager.record.recorder import Recorder
from tbscope.sources.eager.watch import inside, modes, module_calls
from tbscope.sources.torch.locate import OWN_FILES, raised_at
from tbscope.sources.torch.sizes import size_advice
from tbscope.words import cut, error_text, shown

__all__ = ["Told", "trace_error"]

# What torch says of a tensor on meta whose content somebody wants.
_HAS_NO_VALUES = ("on meta tensors", "out of meta tensor", "the 'Meta' backend")
# The model's own errors pass through these on their way.
_PASSAGES = (modes.__file__, inside.__file__, module_calls.__file__)
# How functions that stand in the place of torch's call these.
_CALLS_TORCH = ".original("
_NO_MEMORY = re.compile(r"can't allocate memory|out of memory|not enough memory", re.IGNORECASE)
# Slips of whoever wrote the model, and files that it lacks: no other input would mend them.
_SLIPS = (AttributeError, KeyError, NameError, ImportError, OSError)
_ABOUT_TYPES = re.compile(
    r"dtype|scalar type|should be the same|not implemented for|data ?type|type promoting|"
    r"must have the type",  # So torch 2.6 says of an LSTM.
    re.IGNORECASE,
)
_WANTS_WHOLE = "scalar types: Long, Int"
_MOST_OF_VALUE = 200
_MOST_OF_PATH = 500


class Told(NamedTuple):
    """What is known of a run that raised.

    Attributes:
        grad: Whether gradients were recorded.
        fake: Whether it ran on stand-ins for tensors.
        given: The `input_to_model` of the caller.
        measured: Whether it is to be measured.
    """

    grad: bool
    fake: bool
    given: Any = None
    measured: bool = False


def trace_error(error: Exception, recorder: Recorder, told: Told) -> TraceError:
    """Return the error for a model that raised while it was traced.

    Args:
        error: The error that the model raised.
        recorder: The recorder of the run; it knows the innermost call that failed.
        told: How it was run.
    Returns:
        An error that names the module and the way out.
    """
    frame = recorder.failures.call(error)
    call = None if frame is None else frame.call
    where = f"in {_short_path(call.scope.path)}" if call else f"in {recorder.graph.name}"
    text = error_text(error)
    place = raised_at(error.__traceback__)
    # Where the limit is met is chance; that it is met is the model's doing.
    if _is_ours(error) and not isinstance(error, RecursionError):
        return TraceError(
            f"tbscope itself failed while it watched the model, {cut(where, _MOST_OF_PATH)}",
            why=text,
            fix="report it with the traceback above; the model is as it was before",
        )
    return TraceError(
        f"the model raised while it was being traced, {cut(where, _MOST_OF_PATH)}",
        why=text,
        fix=_fix(error, text, call, place, told),
    )


def _short_path(path: str) -> str:
    if len(path) <= _MOST_OF_PATH:
        return path
    levels = path.count("/") + 1
    start, end = path[: _MOST_OF_PATH // 4], path[-_MOST_OF_PATH // 4 :]
    return f"{start}.../{end.partition('/')[2]}, {levels:,} levels deep"


def _is_ours(error: Exception) -> bool:
    """Tell whether an error comes from tbscope, not from the model that it watches."""
    trace = error.__traceback__
    file, line = "", 0
    while trace is not None:
        file, line = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next
    if not file.startswith(OWN_FILES) or file in _PASSAGES:
        return False
    # What torch is written in without Python has no frame of its own below the one that calls it.
    return _CALLS_TORCH not in getline(file, line)


def _fix(error: Exception, text: str, call: Call | None, place: Source | None, told: Told) -> str:
    if "does not require grad" in text and not told.grad:
        return "the model differentiates in forward: pass grad=True"
    if _lacks_memory(error, text) and not told.fake:
        without = "leave profile out and " if told.measured else ""
        return f"{without}pass fake=True, which takes no memory, or give smaller inputs"
    if isinstance(error, RecursionError):
        return (
            "the model's calls are nested deeper than Python's limit of "
            f"{sys.getrecursionlimit()}{_at(place)}: if they end at all, call "
            "sys.setrecursionlimit() with more before"
        )
    if any(words in text for words in _HAS_NO_VALUES) and not told.fake:
        return (
            "the model reads the values of tensors, and on the device meta there are none: pass "
            "fake=True, with which libraries leave such checks out, or give the model and its "
            "inputs memory: model.to_empty(device='cpu')"
        )
    if told.fake and ("DataDependent" in text or "data-dependent" in text.lower()):
        decides = "the model decides on the values of tensors, and fake=True has none: "
        if call is not None and _is_on_meta(call):
            return decides + (
                "give the model and its inputs memory, model.to_empty(device='cpu'), and pass "
                "fake=False"
            )
        return f"{decides}pass fake=False"
    sizes = "" if isinstance(error, KeyError | NameError) else size_advice(told.given)
    if isinstance(error, _SLIPS) and place is not None and not sizes:
        fake = "; or pass fake=False, as stand-ins have no values" if told.fake else ""
        return f"see {place}: the model's own code raised, or what it calls there{fake}"
    given = [] if call is None else [(each.name or "", each.nest) for each in call.arguments]
    advice = sizes or (call and _misplaced(call, given, text))
    if advice:
        return advice
    if told.fake:
        return (
            "pass fake=False if the model runs when called by itself: not every operation "
            "tells its result's shape without values"
        )
    if isinstance(told.given, list) and told.given:
        return (
            "check input_to_model: a list holds the positional arguments; for a model that "
            "takes a list of tensors give input_to_model=([img],)"
        )
    if call is None:
        return "check input_to_model and kwargs; the model must run when called by itself"
    return f"check input_to_model: {_name(call)} got " + (
        ", ".join(f"{name}={cut(_short(nest), _MOST_OF_VALUE)}" for name, nest in given)
        or "no arguments"
    )


def _at(place: Source | None) -> str:
    return f", at {place}" if place else ""


def _lacks_memory(error: Exception, text: str) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or bool(_NO_MEMORY.search(text))


def _is_on_meta(call: Call) -> bool:
    given = [value for argument in call.arguments for value in values_in(argument.nest)]
    return any(held.device == "meta" for held in (*given, *call.parameters))


def _misplaced(call: Call, given: list[tuple[str, Any]], text: str) -> str:
    """Tell of an argument on another device, or of another type, than the parameters."""
    held = [parameter for parameter in call.parameters if parameter.kind == "parameter"]
    for name, value in given:
        if not isinstance(value, Value):
            continue
        if _WANTS_WHOLE in text and _is_float(value):
            return f"{_name(call)} takes whole numbers, got {name} in {value.dtype}; use .long()"
        for parameter in held:
            if parameter.device != value.device:
                return (
                    f"bring input and model together: {_name(call)} has {parameter.name} on "
                    f"{parameter.device}, got {name} on {value.device}; "
                    f"use .to({parameter.device!r})"
                )
            if parameter.dtype == value.dtype or not _is_float(parameter):
                continue
            if _is_float(value) or _ABOUT_TYPES.search(text):
                whole = not _is_float(value) and parameter.dtype == "float32"
                cast = ".float()" if whole else f".to(torch.{parameter.dtype})"
                return (
                    f"give inputs of the model's dtype: {_name(call)} has {parameter.name} in "
                    f"{parameter.dtype}, got {name} in {value.dtype}; use {cast}"
                )
    return ""


def _is_float(thing: Value | Parameter) -> bool:
    return "float" in thing.dtype


def _name(call: Call) -> str:
    label = cut(call.scope.part.label, _MOST_OF_VALUE)
    return f"{label}[{cut(call.qualified_name, _MOST_OF_VALUE)}]" if call.qualified_name else label


def _short(nest: Any) -> str:
    if isinstance(nest, Value):
        return type_to_text(nest)
    if isinstance(nest, dict):
        return "{" + ", ".join(f"{key}: {_short(entry)}" for key, entry in nest.items()) + "}"
    if isinstance(nest, list | tuple):
        return "[" + ", ".join(map(_short, nest)) + "]"
    return shown(nest, _MOST_OF_VALUE)
