"""Misfits: in words, why arguments do not fit the parameters of what they are given to."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tbscope.errors import InputError
from tbscope.sources.torch.contents import content_of
from tbscope.sources.torch.literals import collect_tensors
from tbscope.sources.torch.signatures import Mismatch, Signature
from tbscope.sources.torch.sizes import size_advice
from tbscope.words import error_text, near_names, shown

__all__ = ["Attempt", "index_advice", "misfit_error", "nothing_given_error", "with_article"]

_SHOWN_ITEMS = 6
_SHOWN_TEXT = 30
_OUT_OF_RANGE = re.compile(
    r"out of (range|bounds|data bounds)|not in the valid range|must be smaller than", re.IGNORECASE
)
_OF_INDICES = (IndexError, RuntimeError)
# How many indices there are: by operation, the dimension of its tensor of numbers, and its name.
_COUNTS = {
    **dict.fromkeys(("embedding", "embedding_bag"), (0, "num_embeddings")),
    **dict.fromkeys(("cross_entropy", "nll_loss"), (1, "the number of classes")),
}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to call something.

    Attributes:
        name: What is called, as its author wrote it (`Net.forward`).
        signature: Its parameters.
        given: The `input_to_model` that the arguments were made from.
        keywords: The `kwargs` that stand among the keyword arguments.
        args: All positional arguments.
        kwargs: All keyword arguments.
    """

    name: str
    signature: Signature
    given: Any
    keywords: Mapping[str, Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def nothing_given_error(name: str, signature: Signature, *, why: str) -> InputError:
    """Return the error for a model that needs inputs and was called without any."""
    return InputError(
        f"{name}() needs {_listed(signature.required)}, and no inputs were given",
        why=f"input_to_model is None, and {why}",
        fix=_how_to_give(signature),
    )


def misfit_error(attempt: Attempt, fault: Mismatch) -> InputError:
    """Return the error for one fault of an attempt."""
    what, fix = _TELLERS[fault.kind](attempt, fault.names)
    shown = _show_arguments(attempt.args, attempt.kwargs)
    why = f"{attempt.name.rpartition('.')[2]}{attempt.signature} was given ({shown})"
    if fault.kind == "missing":
        why += _why_one_argument(attempt)
    return InputError(f"{attempt.name}() {what}", why=why, fix=fix)


def with_article(value: Any) -> str:
    """Name a value that stands where it cannot be used (`a str 'resnet'`)."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    article = "an" if name[0].lower() in "aeiou" else "a"
    text = f" {shown(value)}" if isinstance(value, str | int | float) else ""
    return f"{article} {name}{text[:_SHOWN_TEXT]}"


def _tell_missing(attempt: Attempt, names: Sequence[str]) -> tuple[str, str]:
    return f"is missing {_listed(names)}", _how_to_give(attempt.signature)


def _tell_unexpected(attempt: Attempt, names: Sequence[str]) -> tuple[str, str]:
    held = "kwargs" if set(names) <= attempt.keywords.keys() else "input_to_model"
    fix = f"leave {_listed(names)} out of {held}"
    near = near_names(names[0], sorted(attempt.signature.keywords), most=1, cutoff=0.6)
    return f"takes no {_listed(names)}", f"did you mean {near[0]!r}? Else {fix}" if near else fix


def _tell_by_position(attempt: Attempt, names: Sequence[str]) -> tuple[str, str]:
    return f"takes {_listed(names)} by position only", _how_to_give(attempt.signature)


def _tell_twice(attempt: Attempt, names: Sequence[str]) -> tuple[str, str]:
    fix = f"leave {_listed(names)} out of kwargs or out of input_to_model"
    return f"is given {_listed(names)} twice", fix


def _tell_too_many(attempt: Attempt, names: Sequence[str]) -> tuple[str, str]:
    taken, given = len(attempt.signature.positional), len(attempt.args)
    takes = f"{taken or 'no'} positional argument{'' if taken == 1 else 's'}"
    advice = size_advice(attempt.given)
    if advice:
        return f"takes {takes}, and {given} {'was' if given == 1 else 'were'} given", advice
    fix = "leave out what it does not take"
    if isinstance(attempt.given, tuple | list):
        word = type(attempt.given).__name__
        fix += f"; to give the {word} as one argument, wrap it: "
        fix += "input_to_model=([img],)" if word == "list" else "input_to_model=(inputs,)"
    return f"takes {takes}, and {given} {'was' if given == 1 else 'were'} given", fix


_TELLERS = {
    "missing": _tell_missing,
    "unexpected": _tell_unexpected,
    "by position": _tell_by_position,
    "twice": _tell_twice,
    "too many": _tell_too_many,
}


def _why_one_argument(attempt: Attempt) -> str:
    """Tell which keys keep a mapping from being keyword arguments."""
    given = attempt.given
    if not isinstance(given, Mapping) or not any(arg is given for arg in attempt.args):
        return ""
    others = [str(key) for key in given if key not in attempt.signature.keywords][:_SHOWN_ITEMS]
    verb = "is no parameter" if len(others) == 1 else "are no parameters"
    return f"; the mapping is one argument, as {_listed(others)} {verb}" if others else ""


def _how_to_give(signature: Signature) -> str:
    """Say what to write for the parameters that have no default."""
    positional = [name for name in signature.required if name in signature.positional]
    keywords = [name for name in signature.required if name in signature.keyword_only]
    ways = []
    if len(positional) == 1:
        ways.append(f"input_to_model={positional[0]}")
    elif positional:
        ways.append(f"input_to_model=({', '.join(positional)})")
    if keywords:
        ways.append(f"kwargs={{{', '.join(f'{name!r}: {name}' for name in keywords)}}}")
    return f"give {' and '.join(ways)}"


def _listed(names: Sequence[str]) -> str:
    """Return the quoted names as a list in prose: `'x'`, `'x' and 'y'`, `'x', 'y' and 'z'`."""
    quoted = [shown(name) for name in names]
    return " and ".join(filter(None, (", ".join(quoted[:-1]), quoted[-1])))


def _show_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    shown = [_show(arg) for arg in args] + [f"{name}={_show(arg)}" for name, arg in kwargs.items()]
    rest = [f"and {len(shown) - _SHOWN_ITEMS} more"] if len(shown) > _SHOWN_ITEMS else []
    return ", ".join(shown[:_SHOWN_ITEMS] + rest)


def _show(value: Any) -> str:
    """Show one argument in a few words: `Tensor(2, 3)`, `4`, `dict of 'x', 'y'`."""
    name = type(value).__name__
    if isinstance(value, torch.Tensor):
        # A nested tensor has no one shape.
        return name if value.is_nested else f"{name}({', '.join(map(str, value.shape))})"
    if isinstance(value, str) and len(value) > _SHOWN_TEXT:
        return f"{name} of length {len(value)}"
    if value is None or isinstance(value, bool | int | float | complex | str):
        return shown(value)
    if isinstance(value, Mapping):
        try:
            keys = [repr(key) if type(key) is str else shown(key) for key in value]
        except Exception:  # noqa: BLE001  It cannot be read, and is shown by its class.
            return name
        return f"{name} of {', '.join(keys[:_SHOWN_ITEMS])}" if keys else f"{name} of nothing"
    return f"{name} of {len(value)}" if isinstance(value, list | tuple) else name


def index_advice(
    operation: str, args: Sequence[Any], kwargs: Mapping[str, Any], error: BaseException
) -> str:
    """Return the index that an operation cannot find and the size that it has to be below.

    Args:
        operation: The name of the operation that raised.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        error: What it raised.
    Returns:
        One sentence, or nothing for another error and for indices whose values are not known.
    """
    if not isinstance(error, _OF_INDICES) or not _OUT_OF_RANGE.search(error_text(error)):
        return ""
    tensors = collect_tensors((args, kwargs), [])
    indices = [tensor for tensor in tensors if tensor.dtype in (torch.int64, torch.int32)]
    if operation in _COUNTS:
        dimension, name = _COUNTS[operation]
        tables = [tensor for tensor in tensors if tensor.dtype.is_floating_point]
    else:
        # The tensor comes first, then a dimension.
        dimension = kwargs.get("dim", args[1] if len(args) > 1 else None)
        name, tables = f"the size of dimension {dimension}", tensors[:1]
        indices = [tensor for tensor in indices if tensor is not tensors[0]]
    if not indices or not tables or type(dimension) is not int:
        return ""
    sizes = tables[0].shape
    if not -len(sizes) <= dimension or not sizes:
        return ""
    size = sizes[min(dimension, len(sizes) - 1)]
    beyond = [one for one in _ends(indices[0]) if not 0 <= one < size]
    if not beyond:
        return ""
    return f"{operation} got the index {beyond[0]}, and {name} is {size}: give 0 to {size - 1}"


def _ends(indices: torch.Tensor) -> list[int]:
    """Return the largest and the smallest of some indices, or nothing where they have no values."""
    content = content_of(indices)
    if "maximum" in content:
        return [content["maximum"], content["minimum"]]
    values = content.get("value", [])
    values = values if isinstance(values, list) else [values]
    return [max(values), min(values)] if values else []
