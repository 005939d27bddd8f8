"""The borders of a program of TorchScript: what its inputs are, by name and in their nests."""

from collections.abc import Mapping, Sequence
from inspect import Signature
from typing import Any

import torch

from tbscope.errors import InputError
from tbscope.sources.programs.slots import Held, slots_of
from tbscope.sources.programs.types import type_nest, types_in
from tbscope.sources.torch.inputs import require_made
from tbscope.sources.torch.nests import tensor_leaves
from tbscope.sources.torch.signatures import signature_of
from tbscope.sources.torchscript.held import Number
from tbscope.sources.torchscript.types import gives_tensors, unknown_by
from tbscope.words import shown

__all__ = ["Inputs", "accepts"]

_NOTHING: Any = object()


class Inputs:
    """What a method or a function is given.

    Args:
        name: The name of the module or function.
        method: The method or the function, which has a schema.
        values: The inputs of its graph, without the module.
        args: The arguments by position; None where there are no inputs.
        kwargs: Those by name.
        traced_with: What it was traced with, as types, where nobody gives inputs; None for unknown.

    Attributes:
        names: The names of the parameters, in order.
        held: What each of them holds.
        as_traced: Whether the types that its graph tells hold for them.
    """

    def __init__(
        self,
        name: str,
        method: Any,
        values: Sequence[Any],
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any],
        traced_with: Sequence[Any] | None = None,
    ) -> None:
        parameters = list(method.schema.arguments)[-len(values) :] if values else []
        self.names = [str(parameter.name) for parameter in parameters]
        by_hand = bool(args or kwargs)
        given: Mapping[str, Any] = {}
        if by_hand:
            try:
                given = (signature_of(method) or Signature()).bind(*args or (), **kwargs).arguments
            except TypeError as error:
                raise InputError(
                    f"{name}() cannot be called so: {error}",
                    why=f"it takes {', '.join(self.names) or 'none'}",
                    fix="give all inputs that have no default, or no inputs at all",
                ) from error
        self.held: list[Held] = []
        self.as_traced = True
        noted = [] if by_hand or traced_with is None else list(traced_with)
        noted += [None] * (len(values) - len(noted))
        for parameter, value, known in zip(parameters, values, noted, strict=False):
            told = known or _unknown(parameter, value)
            thing = given.get(parameter.name, _NOTHING)
            if thing is not _NOTHING:
                if not _fits(thing, parameter.type):
                    raise InputError(
                        f"{name}() takes no {shown(thing)} as {parameter.name!r}",
                        why=f"it takes {parameter.type.annotation_str}",
                        fix="give what it takes, or no inputs at all",
                    )
                for path, tensor in tensor_leaves(thing, parameter.name, public=True):
                    require_made(path, tensor)
                own = type_nest(thing)
                self.as_traced &= _is_alike(own, told)
                told = own
            elif parameter.has_default_value():
                told = parameter.default_value
            self.held.append(slots_of(told))


def accepts(schema: Any, args: Sequence[Any]) -> bool:
    """Tell whether a method takes some inputs by position, as far as its types tell."""
    parameters = list(schema.arguments)[1:]
    return len(args) <= len(parameters) and all(
        _fits(thing, parameter.type) for thing, parameter in zip(args, parameters, strict=False)
    )


def _unknown(parameter: Any, value: Any) -> Any:
    """Return what is known of an input that nobody gives."""
    kind = value.type()
    if gives_tensors(kind):
        return unknown_by(kind)
    return Number(str(parameter.name))


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
    ones, others = list(types_in(own)), list(types_in(told))
    return len(ones) == len(others) and all(
        one.shape == other.shape and one.dtype == other.dtype
        for one, other in zip(ones, others, strict=True)
    )
