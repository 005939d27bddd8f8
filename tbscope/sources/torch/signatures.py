"""Signatures: which parameters a callable has, and which of them each argument fills."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from types import MethodType
from typing import Any, TypeAlias

import torch

from tbscope.checks import attribute_of
from tbscope.ir.facts import Constant
from tbscope.sources.torch.module_internals import uncompiled

__all__ = [
    "Arrangements",
    "argument_names",
    "entry_point",
    "keywords_in",
    "positional_in",
    "required_in",
    "short_signature",
    "signature_of",
]

_Callable: TypeAlias = Callable[..., Any]
_DEFAULT_LENGTH = 20
_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_BY_KEYWORD = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
# The names that arguments have where no parameter is known.
_UNKNOWN = inspect.Signature(
    [Parameter("args", Parameter.VAR_POSITIONAL), Parameter("kwargs", Parameter.VAR_KEYWORD)]
)


def entry_point(model: _Callable) -> _Callable:
    """Return the function whose parameters a model's inputs fill: a module's forward."""
    if isinstance(model, torch.nn.Module):
        # What `torch.compile` made of it takes anything.
        model = uncompiled(model)
        unwritten = getattr(type(model), "forward", None) is torch.nn.Module.forward
        forward: _Callable = model.__call__ if unwritten else model.forward
        return forward
    if isinstance(model, functools.partial) and isinstance(model.func, torch.nn.Module):
        return functools.partial(entry_point(model.func), *model.args, **model.keywords)
    return model


def signature_of(fn: _Callable, *, follow_wrapped: bool = True) -> inspect.Signature | None:
    """Return the parameters of a callable as its author declares them; None if it tells none.

    Args:
        fn: The callable; a module stands for its forward.
        follow_wrapped: Whether a decorator that keeps what it wraps (`functools.wraps`) is looked
            through.
    """
    if isinstance(fn, torch.nn.Module | functools.partial):
        fn = entry_point(fn)
    try:
        return inspect.signature(fn, follow_wrapped=follow_wrapped)
    except Exception:  # noqa: BLE001  Also what the `__getattr__` of the user's raises.
        # Python cannot inspect a function or method of TorchScript.
        arguments = attribute_of(attribute_of(fn, "schema"), "arguments")
    if arguments is None:
        return None
    return inspect.Signature(
        [
            Parameter(
                argument.name,
                Parameter.POSITIONAL_OR_KEYWORD,
                default=argument.default_value if argument.has_default_value() else Parameter.empty,
            )
            for argument in arguments
            if argument.name != "self"
        ]
    )


def short_signature(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature that prints in short, `(x, mask=None)`: long defaults as `...`."""
    return inspect.Signature(
        [
            each.replace(annotation=each.empty, default=_short(each.default))
            for each in signature.parameters.values()
        ]
    )


def _short(default: Any) -> Any:
    if default is Parameter.empty:
        return default
    try:
        text = "" if isinstance(default, torch.Tensor) else repr(default)
    except Exception:  # noqa: BLE001  The user's code.
        text = ""
    return Constant(text if 0 < len(text) <= _DEFAULT_LENGTH else "...")


def positional_in(signature: inspect.Signature) -> list[str]:
    """Return the names that a positional argument can fill, in order."""
    return [each.name for each in signature.parameters.values() if each.kind in _BY_POSITION]


def keywords_in(signature: inspect.Signature) -> set[str]:
    """Return the names that a keyword can fill."""
    return {each.name for each in signature.parameters.values() if each.kind in _BY_KEYWORD}


def required_in(signature: inspect.Signature) -> list[str]:
    """Return the names without a default, in order."""
    return [
        each.name
        for each in signature.parameters.values()
        if each.default is each.empty and each.kind in _BY_POSITION + _BY_KEYWORD
    ]


def argument_names(
    fn: _Callable, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """Name the arguments of one call by the parameters that they fill.

    Args:
        fn: What is called; for a module, its `forward`.
        args: The positional arguments.
        kwargs: The keyword arguments.
    Returns:
        Pairs of name and argument in the order of the parameters. What falls into
        `*rest` is `rest.0`, `rest.1`; keywords of no written name come last.
        Positional arguments of a callable that does not take them so, or has no signature, are
        `args.0`, `args.1`.
    """
    try:
        bound = (signature_of(fn) or _UNKNOWN).bind_partial(*args, **kwargs)
    except TypeError:
        bound = _UNKNOWN.bind(*args, **kwargs)
    pairs: list[tuple[str, Any]] = []
    for name, given in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is Parameter.VAR_POSITIONAL:
            pairs += [(f"{name}.{at}", each) for at, each in enumerate(given)]
        elif kind is Parameter.VAR_KEYWORD:
            pairs += given.items()
        else:
            pairs.append((name, given))
    return pairs


class Arrangements(dict[tuple[Any, ...], list[str]]):
    """How the arguments of methods are named and ordered, found once for all calls that are alike.

    To find it takes several times as long as to look it up, and it is asked for each call of a
    module.
    """

    def of(
        self, fn: _Callable, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[str], Sequence[Any]]:
        """Return the names of the arguments of one call, and the arguments (see `argument_names`).

        Args:
            fn: What is called.
            args: The positional arguments.
            kwargs: The keyword arguments.
        """
        # One function, as many positional arguments, and the same keywords in the same order.
        method = fn.__func__ if type(fn) is MethodType else None
        alike = (method, len(args), *kwargs)
        names = None if method is None else self.get(alike)
        if names is None:
            places = [None] * len(args)
            names = [name for name, _ in argument_names(fn, places, dict.fromkeys(kwargs))]
            if method is not None:
                self[alike] = names
        return names, (*args, *[kwargs[key] for key in names[len(args) :]]) if kwargs else args
