"""Signatures of callables: their parameters, the names of arguments, errors for wrong arguments."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from types import MethodType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch

from tbscope.errors import InputError
from tbscope.messages import first_of, shown
from tbscope.sources.torch.calling.dummy_inputs import size_advice
from tbscope.sources.torch.compat.modules import uncompiled
from tbscope.utils.validation import attribute_of

_Callable: TypeAlias = Callable[..., Any]
_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_BY_KEYWORD = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
# The signature of a callable without one: its arguments are `args.0`, `args.1` and by keyword.
_UNKNOWN = inspect.Signature(
    [Parameter("args", Parameter.VAR_POSITIONAL), Parameter("kwargs", Parameter.VAR_KEYWORD)]
)


def entry_point(model: _Callable) -> _Callable:
    """Return the function that receives a model's inputs: for a module, its `forward`.

    For a module without a `forward`, it is `__call__`; for a `partial` of a module, a `partial` of
    its `forward`.
    """
    if isinstance(model, torch.nn.Module):
        # The wrapper of `torch.compile` accepts any arguments.
        model = uncompiled(model)
        is_unwritten = getattr(type(model), "forward", None) is torch.nn.Module.forward
        forward: _Callable = model.__call__ if is_unwritten else model.forward
        return forward
    if isinstance(model, functools.partial) and isinstance(model.func, torch.nn.Module):
        return functools.partial(entry_point(model.func), *model.args, **model.keywords)
    return model


def signature_of(fn: _Callable, *, follow_wrapped: bool = True) -> inspect.Signature | None:
    """Return the signature of a callable as its author declares it, or None without one.

    Args:
        fn: The callable; for a module, its `forward` is read.
        follow_wrapped: Whether to return the signature of the function inside a decorator
            (`functools.wraps`).
    """
    if isinstance(fn, torch.nn.Module | functools.partial):
        fn = entry_point(fn)
    try:
        return inspect.signature(fn, follow_wrapped=follow_wrapped)
    except Exception:  # noqa: BLE001  A `__getattr__` of the user may raise any error.
        # Python cannot inspect functions and methods of TorchScript, which have a schema instead.
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


def positional_in(signature: inspect.Signature) -> list[str]:
    """Return the names of parameters that accept a positional argument, in order."""
    return [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind in _BY_POSITION
    ]


def keywords_in(signature: inspect.Signature) -> set[str]:
    """Return the names of parameters that accept a keyword argument."""
    return {
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind in _BY_KEYWORD
    }


def required_in(signature: inspect.Signature) -> list[str]:
    """Return the names of parameters without a default, in order."""
    return [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.default is parameter.empty and parameter.kind in _BY_POSITION + _BY_KEYWORD
    ]


def argument_names(
    fn: _Callable, args: Sequence[object], kwargs: Mapping[str, object]
) -> list[tuple[str, object]]:
    """Name the arguments of one call by the parameters that they fill.

    Args:
        fn: The callable; for a module, its `forward` is meant.
        args: The positional arguments.
        kwargs: The keyword arguments.
    Returns:
        Pairs of name and argument in the order of the parameters. Arguments in `*rest` are
        `rest.0`, `rest.1`; keywords in `**kwargs` come last. If the arguments do not fit, or the
        callable has no signature, the positional arguments are `args.0`, `args.1`.
    """
    try:
        bound = (signature_of(fn) or _UNKNOWN).bind_partial(*args, **kwargs)
    except TypeError:
        bound = _UNKNOWN.bind(*args, **kwargs)
    pairs: list[tuple[str, object]] = []
    for name, argument in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is Parameter.VAR_POSITIONAL:
            pairs += [(f"{name}.{index}", item) for index, item in enumerate(argument)]
        elif kind is Parameter.VAR_KEYWORD:
            pairs += argument.items()
        else:
            pairs.append((name, argument))
    return pairs


# The names of arguments, by function; then by the number of arguments and the keywords in order.
_NAMES: WeakKeyDictionary[object, dict[tuple[object, ...], list[str]]] = WeakKeyDictionary()


def bound_arguments(
    fn: _Callable, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[list[str], Sequence[object]]:
    """Return the names of the arguments of one call, and the arguments (see `argument_names`).

    Calls of a method with equal numbers of positional arguments and equal keywords share the names:
    Python needs longer to bind the arguments of a call than some modules need to run.

    Args:
        fn: The callable; the names are cached for methods alone.
        args: The positional arguments.
        kwargs: The keyword arguments.
    """
    cached = _NAMES.setdefault(fn.__func__, {}) if type(fn) is MethodType else {}
    call_kind = len(args), *kwargs
    names = cached.get(call_kind)
    if names is None:
        placeholders = [None] * len(args)
        names = [name for name, _ in argument_names(fn, placeholders, dict.fromkeys(kwargs))]
        cached[call_kind] = names
    return names, (*args, *[kwargs[key] for key in names[len(args) :]]) if kwargs else args


# -- errors for wrong arguments

_SHOWN_ITEMS = 6
_SHOWN_TEXT = 30


def nothing_given_error(name: str, signature: inspect.Signature, *, why: str) -> InputError:
    """Return the error for a model that needs inputs and was called without any.

    Args:
        name: The callee, as its author wrote it (`Net.forward`).
        signature: Its parameters.
        why: The reason why the model's own example inputs were not used.
    """
    return InputError(
        f"{name}() needs {', '.join(map(shown, required_in(signature)))}: no inputs were given",
        why=f"input_to_model is None, and {why}",
        fix=_how_to_give(signature),
    )


def argument_error(
    name: str,
    signature: inspect.Signature,
    fault: str,
    inputs: object,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> InputError:
    """Return the error for arguments that do not fit.

    Args:
        name: The callee, as its author wrote it (`Net.forward`).
        signature: Its parameters.
        fault: Python's reason why the arguments do not fit.
        inputs: The `input_to_model` from which the arguments were made.
        args: All positional arguments.
        kwargs: All keyword arguments.
    """
    written = f"{name.rpartition('.')[2]}({', '.join(signature.parameters)})"
    texts = [_show(arg) for arg in args] + [f"{name}={_show(arg)}" for name, arg in kwargs.items()]
    fix = size_advice(inputs) or _how_to_give(signature)
    if isinstance(inputs, list) and len(args) > len(positional_in(signature)):
        fix += "; to give the whole list as one argument, wrap it: input_to_model=([img],)"
    return InputError(
        f"{name}() cannot be called: {fault}",
        why=f"{written} was given ({first_of(texts, _SHOWN_ITEMS)})",
        fix=fix,
    )


def _how_to_give(signature: inspect.Signature) -> str:
    """Return advice how to pass the parameters without a default (`give input_to_model=x`)."""
    accepted, required = positional_in(signature), required_in(signature)
    positional = [name for name in required if name in accepted]
    keywords = [name for name in required if name not in accepted]
    options = []
    if len(positional) == 1:
        options.append(f"input_to_model={positional[0]}")
    elif positional:
        options.append(f"input_to_model=({', '.join(positional)})")
    if keywords:
        options.append(f"kwargs={{{', '.join(f'{name!r}: {name}' for name in keywords)}}}")
    return f"give {' and '.join(options) or 'no inputs'}"


def _show(value: object) -> str:
    """Return a short text for an argument: `Tensor(2, 3)`, `4`, `dict of 'x', 'y'`."""
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
        except Exception:  # noqa: BLE001  An unreadable mapping is shown by its class.
            return name
        return f"{name} of {', '.join(keys[:_SHOWN_ITEMS]) or 'nothing'}"
    return f"{name} of {len(value)}" if isinstance(value, list | tuple) else name
