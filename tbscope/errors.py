"""The errors that tbscope raises, in one tree.

    TbscopeError
    ├── ArgumentError (TypeError, ValueError)   what the caller gave cannot be used
    │   ├── InputError                          the inputs do not fit the model's forward
    │   └── WriterError                         the writer takes no events, or cannot write them
    ├── TraceError (RuntimeError)               the model raised while it was watched; also an
    │                                           instance of the class of what it raised
    ├── ScopeError (RuntimeError)               scopes by hand, or recordings, end out of order
    ├── RanksError (RuntimeError)               ranks of a distributed run sent no graph in time
    ├── GraphError (ValueError)                 a graph breaks an invariant
    ├── ConversionError (ValueError)            a graph has no form as a GraphDef
    └── NotFoundError (LookupError)             a graph holds nothing of that name

Every message has three parts: what happened, why, and what to do. None is longer than a screen,
and each can be printed anywhere.
"""

import sys
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

from tbscope.words import printable

__all__ = [
    "ArgumentError",
    "ConversionError",
    "GraphError",
    "InputError",
    "NotFoundError",
    "RanksError",
    "ScopeError",
    "TbscopeError",
    "TraceError",
    "WriterError",
    "trace_error_like",
]

_MOST_OF_A_PART = 1500


class TbscopeError(Exception):
    """The root of all errors that tbscope raises.

    Args:
        what: What happened, with the user's own value and the scope path.
        why: The reason, one clause; empty where `what` says it all.
        fix: What to do about it, in something one can type.
    """

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        self.what = printable(what, _MOST_OF_A_PART)
        self.why = printable(why, _MOST_OF_A_PART)
        self.fix = printable(fix, _MOST_OF_A_PART)
        # By name, as the next class may be that of an error of the user's, which takes others.
        Exception.__init__(self, self._text())

    def __str__(self) -> str:
        # Not that of a class which `trace_error_like` adds: a KeyError prints in quotes.
        return self._text()

    def _text(self) -> str:
        lines = [self.what]
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuild with keywords, so that errors cross processes."""
        return _rebuild, (type(self), self.what, self.why, self.fix)


def _rebuild(cls: type[TbscopeError], what: str, why: str, fix: str) -> TbscopeError:
    return cls(what, why=why, fix=fix)


class ArgumentError(TbscopeError, TypeError, ValueError):
    """Something the caller gave cannot be used as it is."""


class InputError(ArgumentError):
    """The inputs given do not fit the parameters of the model's forward."""


class WriterError(ArgumentError):
    """The writer offers no way to write an event, or its file cannot be written."""


class TraceError(TbscopeError, RuntimeError):
    """The model raised while it was watched; `__cause__` is the error that it raised.

    It is an instance of that error's class, too, where the class allows it, so that
    `except KeyError` around a call of `add_graph` catches what it would catch around the model.
    """


class ScopeError(TbscopeError, RuntimeError):
    """A scope by hand, or a recording, ended twice, not at all, out of order, or elsewhere."""


class RanksError(TbscopeError, RuntimeError):
    """Ranks of a distributed run sent no graph: they raised, were too slow, or are gone."""


class GraphError(TbscopeError, ValueError):
    """A graph breaks one of the invariants that every graph keeps."""


class ConversionError(TbscopeError, ValueError):
    """A part of a graph has no form in the target format."""


class NotFoundError(TbscopeError, LookupError):
    """A graph holds no call, node or scope of the name asked for."""


# These end a loop or a generator silently, wherever they pass.
_NEVER_ADDED = (StopIteration, StopAsyncIteration)
_OWN_STATE = frozenset({"args", "what", "why", "fix"})


def trace_error_like(error: Exception, what: str, *, why: str = "", fix: str = "") -> TraceError:
    """Return the error for a model that raised, as an instance of what it raised, too.

    Args:
        error: What the model raised.
        what: As for any error.
        why: As for any error.
        fix: As for any error.
    Returns:
        A `TraceError` with the attributes of the original (`errno`, `filename`), where the class
        of that can be joined with ours; else one without.
    """
    kind = type(error)
    if issubclass(TraceError, kind) or issubclass(kind, _NEVER_ADDED):
        return TraceError(what, why=why, fix=fix)
    try:
        joined = _joined(kind)(what, why=why, fix=fix)
    except Exception:  # noqa: BLE001  Whatever that class wants, it allows no other base.
        return TraceError(what, why=why, fix=fix)
    _take_over(joined, error)
    return joined


def _joined(kind: type[Exception]) -> type[TraceError]:
    """Return a class of both kinds, which is called like ours."""
    bases = (kind,) if issubclass(kind, TraceError) else (TraceError, kind)
    told = {"__module__": TraceError.__module__, "__reduce__": _reduce_joined, "_original": kind}
    return type("TraceError", bases, told)


def _reduce_joined(error: Any) -> tuple[object, ...]:
    # Where the original's class cannot be found by its name, the error goes without it.
    found: Any = sys.modules.get(error._original.__module__)
    for name in error._original.__qualname__.split("."):
        found = getattr(found, name, None)
    kind = found if found is error._original else Exception
    return _rebuild_joined, (kind, error.what, error.why, error.fix)


def _rebuild_joined(kind: type[Exception], what: str, why: str, fix: str) -> TraceError:
    if kind is Exception:
        return TraceError(what, why=why, fix=fix)
    return _joined(kind)(what, why=why, fix=fix)


def _take_over(joined: TraceError, error: Exception) -> None:
    """Give an error the attributes of another one, as far as it has a place for them."""
    fields = [
        name
        for base in type(error).__mro__
        for name, held in vars(base).items()
        if isinstance(held, MemberDescriptorType | GetSetDescriptorType)
    ]
    for name in {*fields, *getattr(error, "__dict__", ())} - _OWN_STATE:
        if name.startswith("__"):
            continue
        try:
            setattr(joined, name, getattr(error, name))
        except (AttributeError, TypeError):
            continue
