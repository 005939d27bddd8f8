"""Climbs: what a scope has of those around it. Here alone scopes are climbed."""

from collections.abc import Callable, Iterable, Iterator, MutableSet, Sequence
from typing import Generic, TypeVar

from tbscope.ir.scopes import Scope

__all__ = ["Inherited", "Nearest", "add_with_above", "inside_out", "upward", "with_above"]

_Found = TypeVar("_Found")


class Inherited(Generic[_Found]):
    """What each scope has, told by the scope itself and by what the one around it has.

    Each scope is asked once, so a graph costs as many questions as it has scopes, however
    deep they stand in each other.

    Args:
        tell: What a scope has, from the scope and what the one around it has.
        top: What the top level has, where no scope is.
    """

    def __init__(self, tell: Callable[[Scope, _Found], _Found], *, top: _Found) -> None:
        self._tell = tell
        self._known: dict[Scope | None, _Found] = {None: top}

    def __call__(self, scope: Scope | None) -> _Found:
        """Return what a scope has; what the top level has for None."""
        known = self._known
        if scope in known:
            return known[scope]
        pending: list[Scope] = []
        while scope is not None and scope not in known:
            pending.append(scope)
            scope = scope.parent
        found = known[scope]
        for below in reversed(pending):
            known[below] = found = self._tell(below, found)
        return found


class Nearest(Inherited[_Found | None]):
    """What the innermost scope tells, of one and those around it, that tells something.

    Args:
        tell: What a scope tells; None where it tells nothing, and the scope around it counts.
        top: What is told where no scope tells anything.
    """

    def __init__(
        self, tell: Callable[[Scope], _Found | None], *, top: _Found | None = None
    ) -> None:
        def told(scope: Scope, above: _Found | None) -> _Found | None:
            own = tell(scope)
            return above if own is None else own

        super().__init__(told, top=top)


def upward(scope: Scope | None) -> Iterator[Scope]:
    """Return a scope and all around it, the innermost first; nothing for None."""
    while scope is not None:
        yield scope
        scope = scope.parent


def add_with_above(scope: Scope | None, found: MutableSet[Scope]) -> Sequence[Scope]:
    """Add a scope and all around it to a set that already holds, with any, all around it.

    Returns:
        The scopes that were not there, the innermost first.
    """
    # Asked for each node of a graph: nearly always its scope is there.
    if scope is None or scope in found:
        return ()
    added: list[Scope] = []
    while scope is not None and scope not in found:
        found.add(scope)
        added.append(scope)
        scope = scope.parent
    return added


def with_above(scopes: Iterable[Scope | None]) -> set[Scope]:
    """Return some scopes and all that are around one of them."""
    found: set[Scope] = set()
    for scope in scopes:
        add_with_above(scope, found)
    return found


def inside_out(scopes: Iterable[Scope]) -> Iterator[tuple[Scope, Scope]]:
    """Return each scope that stands in another one, with that one, the innermost first.

    Args:
        scopes: Parents first, as `Graph.scopes` has them.
    """
    for scope in reversed(list(scopes)):
        if scope.parent is not None:
            yield scope, scope.parent
