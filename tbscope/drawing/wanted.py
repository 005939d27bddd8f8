"""Wanted: which definitions of a graph are drawn as functions."""

from collections.abc import Callable, Collection
from typing import Any, TypeAlias

from tbscope.checks import ask
from tbscope.errors import ArgumentError
from tbscope.functions.definition import Definition
from tbscope.functions.functions import Functions
from tbscope.words import shown

__all__ = ["Wanted", "check_functions", "wanted_definitions"]

Wanted: TypeAlias = bool | Collection[type | str] | Callable[[Definition], bool]
"""Which definitions become functions: none, the outermost that have several uses, those of some
classes, or those for which a function of a `Definition` is true."""


def check_functions(wanted: object) -> None:
    """Raise ArgumentError unless this can tell which definitions become functions."""
    if isinstance(wanted, bool) or (callable(wanted) and not isinstance(wanted, type)):
        return
    listed = isinstance(wanted, list | tuple | set | frozenset)
    if listed and all(isinstance(one, str | type) for one in _entries(wanted)):
        return
    raise ArgumentError(
        f"functions cannot be {shown(wanted)}",
        why="it is True, False, a set of classes or of their names, or a function of a Definition",
        fix="functions={'LlamaDecoderLayer'}, or True for the outermost that have several uses",
    )


def wanted_definitions(functions: Functions, wanted: Wanted) -> list[Definition]:
    """Return the definitions to share in order: with True the outer ones first.

    An outer function so takes what is in it with it, and none of it becomes a function of
    its own: the page draws the calls in a function beside its flow.
    """
    if wanted is True:
        return list(functions)[::-1]
    if isinstance(wanted, Collection):
        names = {one if isinstance(one, str) else _full_name(one) for one in wanted}
        known = [
            one
            for one in functions
            if one.class_name in names or one.class_name.rpartition(".")[2] in names
        ]
        missing = names.difference(
            *({one.class_name, one.class_name.rpartition(".")[2]} for one in known)
        )
        if missing:
            raise ArgumentError(
                f"functions names {shown(min(missing))}, of which the graph has no call",
                why="its classes are those of modules that were called",
                fix="graph.functions() tells what can be drawn so",
            )
        return known
    assert callable(wanted), "nothing is chosen where functions are not wanted"
    return [one for one in functions if _asked(wanted, one)]


def _asked(wanted: Callable[[Definition], bool], definition: Definition) -> bool:
    fix = "have it give True or False for every definition"
    place = f"the definition {definition.name}"
    given: object = ask(wanted, definition, option="functions", place=place, fix=fix)
    if type(given) is not bool:
        raise ArgumentError(
            f"the functions function gave {shown(given)} for {place}",
            why=f"it tells which definitions are wanted; this is {type(given).__name__}",
            fix=fix,
        )
    return given


def _entries(wanted: Any) -> list[Any]:
    return list(wanted)


def _full_name(one: type) -> str:
    return f"{one.__module__}.{one.__qualname__}"
