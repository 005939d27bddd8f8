"""Misfits: in words, why arguments do not fit the parameters of what they are given to."""

from collections.abc import Mapping, Sequence
from inspect import Signature
from typing import Any

import torch

from tbscope.errors import InputError
from tbscope.sources.torch.signatures import (
    keywords_in,
    positional_in,
    required_in,
    short_signature,
)
from tbscope.sources.torch.sizes import size_advice
from tbscope.words import shown

__all__ = ["misfit_error", "nothing_given_error", "with_article"]

_SHOWN_ITEMS = 6
_SHOWN_TEXT = 30
_LEAVE_OUT = ", and leave out what it does not take"


def nothing_given_error(name: str, signature: Signature, *, why: str) -> InputError:
    """Return the error for a model that needs inputs and was called without any."""
    return InputError(
        f"{name}() needs {_listed(required_in(signature))}, and no inputs were given",
        why=f"input_to_model is None, and {why}",
        fix=_how_to_give(signature),
    )


def misfit_error(
    name: str,
    signature: Signature,
    fault: str,
    given: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> InputError:
    """Return the error for arguments that do not fit.

    Args:
        name: The callee, as its author wrote it (`Net.forward`).
        signature: Its parameters.
        fault: Why the arguments do not fit, as Python says it.
        given: The `input_to_model` that the arguments were made from.
        args: All positional arguments.
        kwargs: All keyword arguments.
    """
    written = f"{name.rpartition('.')[2]}{short_signature(signature)}"
    why = f"{written} was given ({_show_arguments(args, kwargs)})"
    if isinstance(given, Mapping) and any(arg is given for arg in args):
        others = [str(key) for key in given if key not in keywords_in(signature)]
        if others:
            why += f"; the mapping is one argument, as {_listed(others[:_SHOWN_ITEMS])} "
            why += "is no parameter" if len(others) == 1 else "are no parameters"
    fix = _how_to_give(signature)
    if len(args) > len(positional_in(signature)):
        fix += _LEAVE_OUT
        if isinstance(given, tuple | list):
            one = "[img]" if isinstance(given, list) else "inputs"
            fix += f"; to give all of it as one argument, wrap it: input_to_model=({one},)"
        fix = size_advice(given) or fix
    elif any(key not in signature.parameters for key in kwargs):
        fix += _LEAVE_OUT
    return InputError(f"{name}() cannot be called so: {fault}", why=why, fix=fix)


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


def _how_to_give(signature: Signature) -> str:
    """Say what to write for the parameters that have no default."""
    taken, required = positional_in(signature), required_in(signature)
    positional = [name for name in required if name in taken]
    keywords = [name for name in required if name not in taken]
    ways = []
    if len(positional) == 1:
        ways.append(f"input_to_model={positional[0]}")
    elif positional:
        ways.append(f"input_to_model=({', '.join(positional)})")
    if keywords:
        ways.append(f"kwargs={{{', '.join(f'{name!r}: {name}' for name in keywords)}}}")
    return f"give {' and '.join(ways) or 'no inputs'}"


def _listed(names: Sequence[str]) -> str:
    """Return the quoted names as a list in prose: `'x'`, `'x' and 'y'`, `'x', 'y' and 'z'`."""
    quoted = [shown(name) for name in names]
    return " and ".join(filter(None, (", ".join(quoted[:-1]), quoted[-1])))


def _show_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
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
        return f"{name} of {', '.join(keys[:_SHOWN_ITEMS]) or 'nothing'}"
    return f"{name} of {len(value)}" if isinstance(value, list | tuple) else name
