"""The names of the positional arguments of torch functions, as far as they are known."""

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import get_testing_overrides

from tbscope.sources.torch.internals import schema_of

__all__ = ["add_signature", "positional_names"]

_KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@functools.lru_cache(maxsize=4096)
def positional_names(
    function: Callable[..., Any], kinds: tuple[type, ...] = ()
) -> tuple[str | None, ...]:
    """Return the names of a torch function's positional arguments, in order.

    Args:
        function: A function as passed to `__torch_function__`, or an ATen operator.
        kinds: The classes of the positional arguments of a call, which choose among overloads;
            empty for any call.
    Returns:
        The names; None at a place where overloads of the function differ, as `Tensor.to`
        takes a dtype, a device or a tensor. Nothing for a function that nobody describes.
    """
    schema = schema_of(function)
    if schema is not None:
        return tuple(argument.name for argument in schema.arguments if not argument.kwarg_only)
    described = get_testing_overrides().get(function, _nothing)
    try:
        # One that hands all on to others has none (`boolean_dispatch`): torch's stand-in tells.
        named = _of_signature(function) or _of_signature(described)
        return named or _of_overloads(function, kinds)
    except (TypeError, ValueError):
        # A builtin has no signature: its operator's schemas tell, or else torch's stand-in.
        return _of_overloads(function, kinds) or _of_signature(described)


def _of_signature(function: Callable[..., Any]) -> tuple[str | None, ...]:
    parameters = inspect.signature(function).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.kind in _KINDS)


def add_signature(
    signatures: dict[str, tuple[str | None, ...]],
    name: str,
    function: Callable[..., Any],
    kinds: tuple[type, ...] = (),
) -> None:
    """Add the names of an operation's positional arguments to those of a graph.

    Where functions or calls of one name differ, it has those names on which they agree.
    """
    names = positional_names(function, kinds)
    known = signatures.setdefault(name, names)
    if known != names:
        signatures[name] = tuple(
            one if one == two else None for one, two in zip(known, names, strict=False)
        )


def _nothing() -> None:
    """Stand in for a function that nobody describes."""


def _of_overloads(function: Callable[..., Any], kinds: tuple[type, ...]) -> tuple[str | None, ...]:
    """Return the argument names on which the overloads of the ATen operator of that name agree."""
    name = getattr(function, "__name__", "")
    packets = (
        function,
        *(getattr(torch.ops.aten, one, None) for one in (name, name.strip("_"))),
    )
    packet = next((one for one in packets if hasattr(one, "overloads")), None)
    if packet is None:
        return ()
    said: list[set[str]] = []
    schemas = _on_tensors(packet)
    taking = [schema for schema in schemas if _takes(schema, kinds)]
    # An int stands for a list of one only where no overload takes an int.
    taking = taking or [schema for schema in schemas if _takes(schema, kinds, alone="List[int]")]
    for schema in taking or schemas:
        for place, argument in enumerate(schema.arguments):
            if argument.kwarg_only:
                break
            if place == len(said):
                said.append(set())
            said[place].add(_IN_PYTHON.get(argument.name, argument.name))
    return tuple(names.pop() if len(names) == 1 else None for names in said)


def _takes(schema: Any, kinds: tuple[type, ...], alone: str = "int") -> bool:
    """Whether an overload takes positional arguments of these classes, and an int as one type."""
    arguments = [argument for argument in schema.arguments if not argument.kwarg_only]
    types = [_OPTIONAL.sub(r"\1", str(argument.real_type)) for argument in arguments]
    if len(kinds) > len(types) and types[-1:] == ["List[int]"]:
        # Sizes are given one by one.
        types = [*types[:-1], *["int"] * (len(kinds) - len(types) + 1)]
    return (
        len(kinds) <= len(types)
        and all(argument.has_default_value() for argument in arguments[len(kinds) :])
        and all(
            _fits(declared, kind) or (kind is int and declared == alone)
            for declared, kind in zip(types, kinds, strict=False)
        )
    )


def _fits(declared: str, kind: type) -> bool:
    if issubclass(kind, torch.Tensor):
        return declared == "Tensor"
    if issubclass(kind, tuple | list):
        return declared.startswith("List[")
    taken = next((taken for known, taken in _TAKEN.items() if issubclass(kind, known)), None)
    return taken is None or declared in taken


# What schemas name otherwise than the functions in Python.
_IN_PYTHON = {"self": "input", "t": "data"}
_OPTIONAL = re.compile(r"Optional\[(.*)\]")
# By class the types of schemas that take its instances.
_TAKEN: dict[type, tuple[str, ...]] = {
    bool: ("bool", "number"),
    int: ("int", "number", "float"),
    float: ("float", "number"),
    str: ("str", "Device"),
    torch.device: ("Device",),
    torch.dtype: ("ScalarType",),
}


def _on_tensors(packet: Any) -> list[Any]:
    """Return the schemas of the overloads on tensors; others are for numbers and strings.

    Those on named dimensions only repeat others, and those that fill what they are given
    (`out`) are called by keyword.
    """
    schemas = [schema_of(getattr(packet, overload)) for overload in packet.overloads()]
    schemas = [
        schema
        for schema in schemas
        if "Dimname" not in str(schema) and not any(each.is_out for each in schema.arguments)
    ]
    on_tensors = [schema for schema in schemas if "Tensor" in str(schema).partition("->")[0]]
    # What makes a tensor takes none.
    return on_tensors or schemas
