"""Inputs of a TorchScript program: names, types, and the containers that they are in."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tbscope.errors import InputError
from tbscope.messages import shown
from tbscope.sources.fx.aliasing import Content, Types, slots_of, types_in, types_of_metadata
from tbscope.sources.torch.calling.bind import require_made
from tbscope.sources.torch.calling.pytree import tensor_leaves
from tbscope.sources.torch.calling.signatures import argument_names
from tbscope.sources.torchscript.types import (
    ScriptType,
    ScriptValue,
    gives_tensors,
    types_from_kind,
)
from tbscope.sources.torchscript.values import UnknownValue

__all__ = ["inputs_of"]


def inputs_of(
    name: str,
    method: Any,
    values: Sequence[ScriptValue],
    given: tuple[Sequence[object], Mapping[str, object]] | None,
    traced_with: Sequence[Types] | None,
) -> tuple[dict[str, Content], bool]:
    """Return the inputs of a method or a function, by name.

    Args:
        name: The name of the module or function, for errors.
        method: The method or function, with a schema.
        values: The inputs of its graph, without `self`.
        given: The positional and the keyword arguments; None if there are no inputs.
        traced_with: The inputs of the trace as types, used if there are no arguments; None if
            they are unknown.
    Returns:
        The inputs, and whether the types in the graph are valid for them.
    Raises:
        InputError: An argument has the wrong type.
    """
    # The schema of a method begins with `self`, which is not among the values.
    parameters = list(method.schema.arguments)[-len(values) :]
    bound: Mapping[str, object] = {}
    if given is not None:
        traced_with = None
        bound = dict(argument_names(method, *given))
    inputs: dict[str, Content] = {}
    as_traced = True
    traced_types = [*(traced_with or ()), *[None] * len(values)]
    for parameter, value, traced_type in zip(parameters, values, traced_types, strict=False):
        script_type = value.type()
        typed = traced_type or (
            types_from_kind(script_type)
            if gives_tensors(script_type)
            else UnknownValue(parameter.name)
        )
        if parameter.name in bound:
            arg = bound[parameter.name]
            if not _fits(arg, parameter.type):
                raise InputError(
                    f"{name}() takes no {shown(arg)} as {parameter.name!r}",
                    why=f"it takes {parameter.type.annotation_str}",
                    fix="pass an input of this type, or no inputs at all",
                )
            for path, tensor in tensor_leaves(arg, parameter.name, public=True):
                require_made(path, tensor)
            arg_type = types_of_metadata(arg)
            as_traced &= _is_alike(arg_type, typed)
            typed = arg_type
        elif parameter.has_default_value():
            typed = parameter.default_value
        inputs[parameter.name] = slots_of(typed)
    return inputs, as_traced


def _fits(argument: object, kind: ScriptType) -> bool:
    """Whether an argument fits the type of a parameter; types without a check accept anything."""
    name = kind.kind()
    if name == "OptionalType":
        return argument is None or _fits(argument, kind.containedTypes()[0])
    if name == "ListType":
        entry_type = kind.containedTypes()[0]
        return type(argument) is list and all(_fits(entry, entry_type) for entry in argument)
    if name == "TupleType":
        kinds = kind.containedTypes()
        if not isinstance(argument, tuple) or len(argument) != len(kinds):
            return False
        return all(map(_fits, argument, kinds))
    accepted = _TAKEN.get(name)
    # `bool` is a subclass of `int` in Python, but no number in TorchScript.
    is_bool = isinstance(argument, bool) and name in ("IntType", "FloatType")
    return accepted is None or (isinstance(argument, accepted) and not is_bool)


_TAKEN: dict[str, type | tuple[type, ...]] = {
    "TensorType": torch.Tensor,
    "IntType": int,
    "FloatType": (int, float),
    "NumberType": (int, float, complex),
    "BoolType": bool,
    "StringType": str,
    "DictType": dict,
}


def _is_alike(own: object, graph: object) -> bool:
    """Whether the tensors of an input have the shapes and dtypes that the graph has for it."""
    arg_types, graph_types = (
        [(tensor.shape, tensor.dtype) for tensor in types_in(nest)] for nest in (own, graph)
    )
    return arg_types == graph_types
