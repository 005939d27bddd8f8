"""The borders of a program of TorchScript: what its inputs are, by name and in their nests."""

from collections.abc import Mapping, Sequence
from inspect import Signature
from typing import Any

import torch

from tbscope.errors import InputError
from tbscope.messages import shown
from tbscope.sources.fx.aliasing import Held, slots_of, type_nest, types_in
from tbscope.sources.torch.calling.bind import require_made
from tbscope.sources.torch.calling.pytree import tensor_leaves
from tbscope.sources.torch.calling.signatures import signature_of
from tbscope.sources.torchscript.types import gives_tensors, unknown_by
from tbscope.sources.torchscript.values import Number

__all__ = ["inputs_of"]


def inputs_of(
    name: str,
    method: Any,
    values: Sequence[Any],
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any],
    traced_with: Sequence[Any] | None,
) -> tuple[dict[str, Held], bool]:
    """Return the inputs of a method or a function, by name.

    Args:
        name: The name of the module or function.
        method: The method or the function, which has a schema.
        values: The inputs of its graph, without the module.
        args: The arguments by position; None where there are no inputs.
        kwargs: Those by name.
        traced_with: What it was traced with, as types, where no inputs are given; None for unknown.
    Returns:
        The inputs, and whether the types that its graph tells hold for them.
    Raises:
        InputError: They are more, fewer, or others than it takes.
    """
    parameters = list(method.schema.arguments)[-len(values) :] if values else []
    given: Mapping[str, Any] = {}
    if args or kwargs:
        traced_with = None
        try:
            given = (signature_of(method) or Signature()).bind(*args or (), **kwargs).arguments
        except TypeError as error:
            names = ", ".join(parameter.name for parameter in parameters)
            raise InputError(
                f"{name}() cannot be called so: {error}",
                why=f"it takes {names or 'none'}",
                fix="give all inputs that have no default, or no inputs at all",
            ) from error
    inputs: dict[str, Held] = {}
    as_traced = True
    noted = [*(traced_with or ()), *[None] * len(values)]
    for parameter, value, known in zip(parameters, values, noted, strict=False):
        kind = value.type()
        told = known or (unknown_by(kind) if gives_tensors(kind) else Number(parameter.name))
        if parameter.name in given:
            thing = given[parameter.name]
            if not _fits(thing, parameter.type):
                raise InputError(
                    f"{name}() takes no {shown(thing)} as {parameter.name!r}",
                    why=f"it takes {parameter.type.annotation_str}",
                    fix="give what it takes, or no inputs at all",
                )
            for path, tensor in tensor_leaves(thing, parameter.name, public=True):
                require_made(path, tensor)
            own = type_nest(thing)
            as_traced &= _is_alike(own, told)
            told = own
        elif parameter.has_default_value():
            told = parameter.default_value
        inputs[parameter.name] = slots_of(told)
    return inputs, as_traced


def _fits(thing: Any, kind: Any) -> bool:
    """Tell whether an input is what a parameter takes, as far as its type tells."""
    name = kind.kind()
    if name == "OptionalType":
        return thing is None or _fits(thing, kind.containedTypes()[0])
    if name == "ListType":
        inner = kind.containedTypes()[0]
        return type(thing) is list and all(_fits(each, inner) for each in thing)
    if name == "TupleType":
        kinds = kind.containedTypes()
        fits = isinstance(thing, tuple) and len(thing) == len(kinds)
        return fits and all(map(_fits, thing, kinds))
    taken = _TAKEN.get(name)
    # A truth value is no number.
    other = isinstance(thing, bool) and name in ("IntType", "FloatType")
    return taken is None or (isinstance(thing, taken) and not other)


_TAKEN: dict[str, type | tuple[type, ...]] = {
    "TensorType": torch.Tensor,
    "IntType": int,
    "FloatType": (int, float),
    "NumberType": (int, float, complex),
    "BoolType": bool,
    "StringType": str,
    "DictType": dict,
}


def _is_alike(own: Any, told: Any) -> bool:
    """Tell whether inputs are as those with which a graph was traced."""
    ones, others = ([(each.shape, each.dtype) for each in types_in(one)] for one in (own, told))
    return ones == others
