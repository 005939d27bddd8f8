"""Pytrees: a value, a constant, or a list, tuple or dict of pytrees, and functions to walk them."""

import marshal
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, TypeVar

_Value = TypeVar("_Value")

Nest: TypeAlias = Any
"""A `Value`, a constant (bool, int, float, complex, str, None, or a `Constant` text),
or a list, tuple or dict of pytrees."""

PLAIN = frozenset({int, float, bool, complex, str, type(None)})
"""The types of plain constants, which contain no values."""


def walk(nest: Nest, path: str = "") -> list[tuple[str, Nest]]:
    """Return each value and constant of a pytree with its path (`tensors.0`), from left to right.

    Args:
        nest: The pytree.
        path: The path of the pytree itself.
    """
    leaves: list[tuple[str, Nest]] = []
    pending = [(path, nest)]
    while pending:
        path, nest = pending.pop()
        kind = type(nest)
        if kind is list or kind is tuple or kind is dict:
            entries = nest.items() if kind is dict else enumerate(nest)
            pending += reversed([(f"{path}.{key}" if path else str(key), e) for key, e in entries])
        else:
            leaves.append((path, nest))
    return leaves


def form_of(nest: Nest) -> bytes | None:
    """Return a key that differs for pytrees which differ in a constant or in a constant's type.

    The key takes half the time of the pytree's text. It is None for a pytree with leaves other
    than plain constants, or containers other than lists, tuples and dicts: with a value, or a
    `Constant`.
    """
    try:
        return marshal.dumps(nest, 2)
    except ValueError:
        return None


def values_in(nest: Nest) -> list[Any]:
    """Return the values of a pytree from left to right."""
    values = []
    pending = [nest]
    while pending:
        entry = pending.pop()
        kind = type(entry)
        if kind is list or kind is tuple:
            pending += reversed(entry)
        elif kind is dict:
            pending += reversed(entry.values())
        # Values are recognised by their producer, because `nodes.py` imports this file.
        elif kind not in PLAIN and hasattr(entry, "producer"):
            values.append(entry)
    return values


def map_tree(nest: Nest, change: Callable[[Any], Nest]) -> Nest:
    """Return a pytree with each value and constant replaced by `change` of it."""
    kind = type(nest)
    if kind is list:
        return [map_tree(entry, change) for entry in nest]
    if kind is tuple:
        return tuple([map_tree(entry, change) for entry in nest])
    if kind is dict:
        return {key: map_tree(entry, change) for key, entry in nest.items()}
    return change(nest)


class Replacement(Protocol):
    """A mapping from values to the pytrees that replace them."""

    def __getitem__(self, value: Any, /) -> Nest:
        """Return the replacement of a value, or the value itself if it stays."""


class Replacements(dict[_Value, _Value]):
    """The replacements of some values; every other value stays."""

    def __missing__(self, value: _Value) -> _Value:
        return value


def map_values(nest: Nest, values: Replacement) -> Nest:
    """Return a pytree with some values replaced."""
    kind = type(nest)
    # A loop of its own instead of `map_tree`: copying a graph spends much of its time here.
    if kind is list or kind is tuple:
        if PLAIN.issuperset(map(type, nest)):
            return nest
        entries = [map_values(entry, values) for entry in nest]
        return entries if kind is list else tuple(entries)
    if kind is dict:
        return {key: map_values(entry, values) for key, entry in nest.items()}
    if kind in PLAIN or not hasattr(nest, "producer"):
        return nest
    return values[nest]
