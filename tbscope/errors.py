"""The errors that tbscope raises, in one tree.

    TbscopeError
    ├── ArgumentError (TypeError, ValueError)   an argument of the caller cannot be used
    │   ├── InputError                          the inputs do not fit the model's forward
    │   └── WriterError                         the writer takes no events, or cannot write them
    ├── TraceError (RuntimeError)               the model raised while it was traced
    ├── ScopeError (RuntimeError)               user scopes, or recordings, end out of order
    ├── RanksError (RuntimeError)               ranks of a distributed run sent no graph in time
    ├── GraphError (ValueError)                 a graph breaks an invariant
    ├── ConversionError (ValueError)            a graph has no form as a GraphDef
    └── NotFoundError (LookupError)             a graph has no node, call or scope of that name

Every message has three parts: the failure, its reason, and a fix. Each part is cut at a length
that fits on a screen, and escaped so that any terminal can print it.
"""

from functools import partial

from tbscope.messages import printable

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
]

_MOST_OF_A_PART = 1500


class TbscopeError(Exception):
    """The root of all errors that tbscope raises.

    Args:
        what: The failure, with the user's own value and the scope path.
        why: The reason, one clause; empty if `what` already contains it.
        fix: The remedy, as code or a command that can be typed.
    """

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        self.what = printable(what, _MOST_OF_A_PART)
        self.why = printable(why, _MOST_OF_A_PART)
        self.fix = printable(fix, _MOST_OF_A_PART)
        lines = [self.what]
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with keyword arguments, so that errors cross processes."""
        return partial(type(self), self.what, why=self.why, fix=self.fix), ()


class ArgumentError(TbscopeError, TypeError, ValueError):
    """An argument of the caller cannot be used as it is."""


class InputError(ArgumentError):
    """The inputs do not fit the parameters of the model's forward."""


class WriterError(ArgumentError):
    """The writer offers no way to write an event, or its file cannot be written."""


class TraceError(TbscopeError, RuntimeError):
    """The model raised while it was traced; `__cause__` is the error that it raised."""


class ScopeError(TbscopeError, RuntimeError):
    """A user scope, or a recording, ended twice, not at all, out of order, or elsewhere."""


class RanksError(TbscopeError, RuntimeError):
    """Ranks of a distributed run sent no graph: they raised, timed out, or are gone."""


class GraphError(TbscopeError, ValueError):
    """A graph breaks one of the invariants of every graph (see `Graph.verify`)."""


class ConversionError(TbscopeError, ValueError):
    """A part of a graph has no form in the target format."""


class NotFoundError(TbscopeError, LookupError):
    """A graph has no call, node or scope of the requested name."""
