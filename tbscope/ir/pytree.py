"""Nests: a value, a constant, or a list, tuple or dict of nests, and the ways to walk them."""

import marshal
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias

__all__ = ["PLAIN", "Nest", "Replacement", "form_of", "map_nest", "map_values", "values_in", "walk"]

Nest: TypeAlias = Any
"""A `Value`, a constant (bool, int, float, complex, str, None, or a `Constant` text),
or a list, tuple or dict of nests."""

PLAIN = frozenset({int, float, bool, complex, str, type(None)})
"""The types of constants that hold nothing."""


def walk(nest: Nest, path: str = "") -> Iterator[tuple[str, Nest]]:
    """Yield each value and constant of a nest with its path (`tensors.0`), from left to right.

    Args:
        nest: The nest.
        path: The name of the whole.
    """
    kind = type(nest)
    if kind is list or kind is tuple:
        for index, entry in enumerate(nest):
            yield from walk(entry, f"{path}.{index}" if path else str(index))
    elif kind is dict:
        for key, entry in nest.items():
            yield from walk(entry, f"{path}.{key}" if path else str(key))
    else:
        yield path, nest


def form_of(nest: Nest) -> bytes | None:
    """Return a form on which no two nests agree that differ in a constant or in its type.

    It is made in half the time of their text. None for a nest with anything in it but plain
    constants, in lists, tuples and dicts: a value, or a `Constant`.
    """
    try:
        return marshal.dumps(nest, 2)
    except ValueError:
        return None


def values_in(nest: Nest) -> Iterator[Any]:
    """Yield the values of a nest from left to right."""
    kind = type(nest)
    if kind is list or kind is tuple:
        for entry in nest:
            yield from values_in(entry)
    elif kind is dict:
        for entry in nest.values():
            yield from values_in(entry)
    # A value is known by its producer, for this file stands below nodes.py.
    elif kind not in PLAIN and hasattr(nest, "producer"):
        yield nest


def map_nest(nest: Nest, change: Callable[[Any], Nest]) -> Nest:
    """Return a nest with something else for each value and constant of it."""
    kind = type(nest)
    if kind is list:
        return [map_nest(entry, change) for entry in nest]
    if kind is tuple:
        return tuple([map_nest(entry, change) for entry in nest])
    if kind is dict:
        return {key: map_nest(entry, change) for key, entry in nest.items()}
    return change(nest)


class Replacement(Protocol):
    """What stands instead of values, as a mapping from values to nests has it."""

    def get(self, value: Any, default: Nest, /) -> Nest:
        """Return what stands instead of a value; the default where it stays."""


def map_values(nest: Nest, values: Replacement) -> Nest:
    """Return a nest with other values in place of some."""
    kind = type(nest)
    # Not by `map_nest`: this is much of the time that a graph takes to be copied.
    if kind is list:
        return [map_values(entry, values) for entry in nest]
    if kind is tuple:
        return tuple([map_values(entry, values) for entry in nest])
    if kind is dict:
        return {key: map_values(entry, values) for key, entry in nest.items()}
    if kind in PLAIN or not hasattr(nest, "producer"):
        return nest
    return values.get(nest, nest)
