"""Scopes named by the user, for code outside of modules.

    with tbscope.scope("loss"):
        loss = criterion(output, target)

Outside of a trace a scope has no effect and costs about a microsecond at most.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tbscope.errors import ArgumentError
from tbscope.messages import shown
from tbscope.sources.eager.thread_state import watching
from tbscope.sources.torch.captured_scopes import close_captured, open_captured
from tbscope.sources.torch.compat.compiler import is_captured
from tbscope.utils.validation import attribute_of

P = ParamSpec("P")
R = TypeVar("R")


class scope:  # noqa: N801 (used as a statement, like contextlib.suppress)
    """Put the operations of a block, or of a function, into a scope of their own.

    Scopes can be nested, in each other and in the scopes of modules. The second scope with a name
    in one parent is numbered, `loss.1`. An object may be entered again, even while it is open.
    Outside of a trace, a scope has no effect.

    >>> import torch, tbscope
    >>> @tbscope.scope("double")
    ... def double(x):
    ...     return x * 2
    >>> def model(x):
    ...     with tbscope.scope("shift"):
    ...         x = x + 1
    ...     return double(x)
    >>> [str(scope) for scope in tbscope.trace(model, torch.rand(3)).scopes()]
    ['model', 'model/shift', 'model/double']

    Args:
        name: Name of the scope: any text that is not empty.
    Raises:
        ArgumentError: The name is no text, or empty.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        if type(name) is not str or not name:
            raise _bad_name(name)
        self.name = name

    def __enter__(self) -> "scope":
        if is_captured():
            open_captured(self.name)
        for recorder in watching.active:
            recorder.events.scope_opened(self.name)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if is_captured():
            close_captured(self.name)
        for recorder in watching.active:
            recorder.events.scope_closed(self.name, failed=error is not None)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Wrap a function so that each of its calls runs in this scope.

        Args:
            function: The function.
        Returns:
            A function with the same signature.
        Raises:
            ArgumentError: `function` is not callable.
        """
        if not callable(function):
            raise ArgumentError(
                f"the scope {shown(self.name)} cannot wrap {shown(function)}",
                why="it wraps a function, or a block",
                fix=f"with tbscope.scope({shown(self.name)}):",
            )

        copied = [name for name in functools.WRAPPER_ASSIGNMENTS if attribute_of(function, name)]

        @functools.wraps(function, assigned=copied)
        def scoped(*args: P.args, **kwargs: P.kwargs) -> R:
            if not (is_captured() or watching.recorders):
                return function(*args, **kwargs)
            # Dynamo enters no object from outside of the code that it compiles.
            with scope(self.name):
                return function(*args, **kwargs)

        return scoped


def push_scope(name: str) -> None:
    """Open a scope that `pop_scope` closes, for code that cannot use a `with` block.

    >>> import torch, tbscope
    >>> def model(x):
    ...     tbscope.push_scope("shift")
    ...     x = x + 1
    ...     tbscope.pop_scope("shift")
    ...     return x * 2
    >>> [str(node.scope) for node in tbscope.trace(model, torch.rand(3)).nodes]
    ['None', 'model/shift', 'model']

    Args:
        name: Name of the scope: any text that is not empty.
    Raises:
        ArgumentError: The name is no text, or empty.
    """
    scope(name).__enter__()


def pop_scope(name: str | None = None) -> None:
    """Close the innermost scope of the user.

    >>> import tbscope
    >>> tbscope.push_scope("shift")
    >>> tbscope.pop_scope()

    Args:
        name: Name of the scope, which is checked; None for the innermost scope, whatever its name.
    Raises:
        ScopeError: No scope of the user is open in the running module call, or the innermost
            scope has another name.
        ArgumentError: The name is neither a text nor None.
    """
    if name is not None and type(name) is not str:
        raise _bad_name(name)
    if is_captured():
        close_captured(name)
    for recorder in watching.active:
        recorder.events.scope_closed(name)


def _bad_name(name: object) -> ArgumentError:
    return ArgumentError(
        f"a scope cannot be named {shown(name)}",
        why="the name of a scope is a text that is not empty",
        fix='name it, as in tbscope.scope("loss")',
    )
