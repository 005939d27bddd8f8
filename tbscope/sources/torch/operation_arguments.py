"""The names of the positional arguments of torch functions, as far as they are known."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import get_testing_overrides

from tbscope.sources.torch.internals import schema_of

__all__ = ["add_signature", "positional_names"]

_KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@functools.lru_cache(maxsize=4096)
def positional_names(function: Callable[..., Any]) -> tuple[str | None, ...]:
    """Return the names of a torch function's positional arguments, in order.

    Args:
        function: A function as passed to `__torch_function__`, or an ATen operator.
    Returns:
        The names; None at a place where overloads of the function differ, as `Tensor.to`
        takes a dtype, a device or a tensor. Nothing for a function that nobody describes.
    """
    schema = schema_of(function)
    if schema is not None:
        return tuple(argument.name for argument in schema.arguments if not argument.kwarg_only)
    try:
        return _of_signature(function)
    except (TypeError, ValueError):
        # A builtin has no signature: its operator's schemas tell, or else torch's stand-in.
        return _of_overloads(function) or _of_signature(_described().get(function, _nothing))


def _of_signature(function: Callable[..., Any]) -> tuple[str | None, ...]:
    parameters = inspect.signature(function).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind in _KINDS)


def add_signature(
    signatures: dict[str, tuple[str | None, ...]], name: str, function: Callable[..., Any]
) -> None:
    """Add the names of an operation's positional arguments to those of a graph.

    Where functions of one name differ, it has those names on which they agree.
    """
    names = positional_names(function)
    known = signatures.setdefault(name, names)
    if known != names:
        signatures[name] = tuple(
            one if one == two else None for one, two in zip(known, names, strict=False)
        )


@functools.cache
def _described() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return for each builtin a Python function with the same parameters."""
    return dict(get_testing_overrides())


def _nothing() -> None:
    """Stand in for a function that nobody describes."""


def _of_overloads(function: Callable[..., Any]) -> tuple[str | None, ...]:
    """Return the argument names on which all overloads of the ATen operator of that name agree."""
    name = getattr(function, "__name__", "")
    packets = (getattr(torch.ops.aten, one, None) for one in (name, name.strip("_")))
    packet = next((one for one in packets if hasattr(one, "overloads")), None)
    if packet is None:
        return ()
    said: list[set[str]] = []
    for schema in _on_tensors(packet):
        for place, argument in enumerate(schema.arguments):
            if argument.kwarg_only:
                break
            if place == len(said):
                said.append(set())
            said[place].add("input" if argument.name == "self" else argument.name)
    return tuple(names.pop() if len(names) == 1 else None for names in said)


def _on_tensors(packet: Any) -> list[Any]:
    """Return the schemas of the overloads on tensors; others are for numbers and strings.

    Those on named dimensions only repeat others, and those that fill what they are given
    (`out`) are called by keyword.
    """
    schemas = [schema_of(getattr(packet, overload)) for overload in packet.overloads()]
    return [
        schema
        for schema in schemas
        if any("Tensor" in str(argument.type) for argument in schema.arguments)
        and not any("Dimname" in str(argument.type) for argument in schema.arguments)
        and not any(argument.is_out for argument in schema.arguments)
    ]
