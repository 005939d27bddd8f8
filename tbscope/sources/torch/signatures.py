"""Signatures: which parameters a callable has, and which of them each argument fills."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch

from tbscope.checks import attribute_of
from tbscope.sources.torch.module_internals import uncompiled

__all__ = [
    "Arrangements",
    "Mismatch",
    "Signature",
    "argument_names",
    "entry_point",
    "signature_of",
    "real_signature_of",
]

_Callable: TypeAlias = Callable[..., Any]
_DEFAULT_LENGTH = 20


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of a callable, without `self` where it is bound.

    Attributes:
        positional: The names that a positional argument can fill, in order.
        by_position_only: Those among them that no keyword can fill.
        varargs: The name of `*args`; None where there is none.
        keyword_only: The names that only a keyword can fill, in order.
        extra: The name of `**kwargs`; None where there is none.
        defaults: The text of the default by name, for each parameter that has one.
        order: The place of each name that is written out.
    """

    positional: tuple[str, ...]
    by_position_only: frozenset[str]
    varargs: str | None
    keyword_only: tuple[str, ...]
    extra: str | None
    defaults: Mapping[str, str]
    order: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        places = {name: place for place, name in enumerate(self.names)}
        object.__setattr__(self, "order", places)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that are written out, in order."""
        return (*self.positional, *self.keyword_only)

    @property
    def keywords(self) -> frozenset[str]:
        """The names that a keyword can fill."""
        return frozenset(self.names) - self.by_position_only

    @property
    def required(self) -> tuple[str, ...]:
        """The names without a default, in order."""
        return tuple(name for name in self.names if name not in self.defaults)

    def __str__(self) -> str:
        """Print as `(x, mask=None, *rest, scale, **options)`."""
        shown = [self._show(name) for name in self.positional]
        if self.varargs:
            shown.append(f"*{self.varargs}")
        elif self.keyword_only:
            shown.append("*")
        shown += [self._show(name) for name in self.keyword_only]
        if self.extra:
            shown.append(f"**{self.extra}")
        return f"({', '.join(shown)})"

    def _show(self, name: str) -> str:
        return f"{name}={self.defaults[name]}" if name in self.defaults else name


class Mismatch:
    """What keeps arguments from filling parameters: a kind, and the names it is about."""

    __slots__ = ("kind", "names")

    def __init__(self, kind: str, names: Sequence[str]) -> None:
        self.kind = kind
        self.names = names

    @classmethod
    def find(
        cls, signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> "Mismatch | None":
        """Return the first fault, wrong names first; None where the arguments fit."""
        filled = signature.positional[: len(args)]
        by_position = [name for name in kwargs if name in signature.by_position_only]
        faults = {
            "by position": [] if signature.extra else by_position,
            "twice": [name for name in filled if name in kwargs and name not in by_position],
            "unexpected": []
            if signature.extra
            else [name for name in kwargs if name not in signature.names],
            "too many": [""]
            if len(args) > len(signature.positional) and not signature.varargs
            else [],
            "missing": [
                name
                for name in signature.required
                if name not in filled and (name not in kwargs or name in by_position)
            ],
        }
        return next((cls(kind, names) for kind, names in faults.items() if names), None)


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


def signature_of(fn: _Callable) -> Signature | None:
    """Return the parameters of a callable as its author declares them; None if it tells none.

    A decorator that keeps what it wraps (`functools.wraps`) is looked through, and a
    module stands for its forward.
    """
    if isinstance(fn, torch.nn.Module | functools.partial):
        fn = entry_point(fn)
    table, key = (_BOUND, fn.__func__) if isinstance(fn, MethodType) else (_FREE, fn)
    try:
        if key in table:
            return table[key]
        table[key] = signature = _read_signature(fn, follow_wrapped=True)
    except TypeError:  # What can be no key of a weak table is read anew each time.
        signature = _read_signature(fn, follow_wrapped=True)
    return signature


def real_signature_of(fn: _Callable) -> Signature | None:
    """Return the parameters that the outermost function takes, decorators not looked through."""
    return _read_signature(fn, follow_wrapped=False)


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
        Positional arguments of a callable without a signature are `args.0`, `args.1`.
    """
    # Called for each module call of a trace, so the usual ones are looked up first.
    if isinstance(fn, MethodType):
        signature = _BOUND.get(fn.__func__)
    else:
        signature = _FREE.get(fn) if type(fn) is FunctionType else None
    if signature is None:
        signature = signature_of(fn)
    if signature is None:  # It tells no signature at all.
        return [(f"args.{at}", arg) for at, arg in enumerate(args)] + list(kwargs.items())
    names = signature.positional
    pairs = list(zip(names, args, strict=False))
    if len(args) > len(names):
        rest = signature.varargs or "args"
        pairs += [(f"{rest}.{at}", arg) for at, arg in enumerate(args[len(names) :])]
    if kwargs:
        order = signature.order
        named = [pair for pair in kwargs.items() if pair[0] in order]
        if len(named) > 1:
            named.sort(key=lambda pair: order[pair[0]])
        pairs += named
        if len(named) < len(kwargs):
            pairs += [pair for pair in kwargs.items() if pair[0] not in order]
    return pairs


class Arrangements(dict[tuple[Any, ...], tuple[list[str], list[str]]]):
    """How the arguments of methods are named and ordered, found once for all calls that are alike.

    That is half of what `argument_names` costs, which is asked for each call of a module.
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
        alike = (fn.__func__ if type(fn) is MethodType else None, len(args), *kwargs)
        found = self.get(alike) if alike[0] is not None else None
        if found is None:
            places = [None] * len(args)
            names = [name for name, _ in argument_names(fn, places, dict.fromkeys(kwargs))]
            found = names, names[len(args) :]
            if alike[0] is not None:
                self[alike] = found
        names, keywords = found
        return names, (*args, *[kwargs[key] for key in keywords]) if keywords else args


# Signatures by function: of methods whose first parameter is bound, and of all others.
_BOUND: WeakKeyDictionary[Any, Signature | None] = WeakKeyDictionary()
_FREE: WeakKeyDictionary[Any, Signature | None] = WeakKeyDictionary()


def _read_signature(fn: _Callable, *, follow_wrapped: bool) -> Signature | None:
    try:
        signature = inspect.signature(fn, follow_wrapped=follow_wrapped)
    except (ValueError, TypeError, NameError):
        return _signature_of_schema(fn)
    except Exception:  # noqa: BLE001  The user's `__getattr__`: its class tells as much.
        if isinstance(fn, MethodType):
            return None
        return _read_signature(MethodType(type(fn).__call__, fn), follow_wrapped=follow_wrapped)
    parameters = signature.parameters.values()
    return Signature(
        positional=_names_of(parameters, inspect.Parameter.POSITIONAL_ONLY)
        + _names_of(parameters, inspect.Parameter.POSITIONAL_OR_KEYWORD),
        by_position_only=frozenset(_names_of(parameters, inspect.Parameter.POSITIONAL_ONLY)),
        varargs=next(iter(_names_of(parameters, inspect.Parameter.VAR_POSITIONAL)), None),
        keyword_only=_names_of(parameters, inspect.Parameter.KEYWORD_ONLY),
        extra=next(iter(_names_of(parameters, inspect.Parameter.VAR_KEYWORD)), None),
        defaults={
            parameter.name: _default_text(parameter.default)
            for parameter in parameters
            if parameter.default is not parameter.empty
        },
    )


def _names_of(parameters: Any, kind: Any) -> tuple[str, ...]:
    return tuple(parameter.name for parameter in parameters if parameter.kind is kind)


def _default_text(default: Any) -> str:
    if isinstance(default, torch.Tensor):
        return "..."
    try:
        text = repr(default)
    except Exception:  # noqa: BLE001  The user's code.
        return "..."
    return text if len(text) <= _DEFAULT_LENGTH and " at 0x" not in text else "..."


def _signature_of_schema(fn: _Callable) -> Signature | None:
    """Return the parameters of a TorchScript function or method, which Python cannot inspect."""
    arguments = attribute_of(attribute_of(fn, "schema"), "arguments")
    if arguments is None:
        return None
    own = [argument for argument in arguments if argument.name != "self"]
    return Signature(
        positional=tuple(argument.name for argument in own),
        by_position_only=frozenset(),
        varargs=None,
        keyword_only=(),
        extra=None,
        defaults={
            argument.name: _default_text(argument.default_value)
            for argument in own
            if argument.has_default_value()
        },
    )
