"""Where each node of an ONNX model comes from, in whichever way the file tells it."""

from collections.abc import Callable, Iterable, Sequence, Set
from itertools import takewhile
from typing import Any, TypeAlias

from tbscope.sources.onnx.metadata import (
    Level,
    Origin,
    origin_by_metadata,
    origin_by_name,
    origin_by_parameters,
    properties,
)

__all__ = ["OF_MODULE", "Way", "common", "filled", "is_module", "joined", "way_of", "within"]

OF_MODULE = "tbscope.module"
"""The metadata of a function that is a module: the full name of its class.

What the nodes of its body tell of their modules is counted from that module, as several modules
may share one function.
"""

Way: TypeAlias = Callable[[Any], Origin | None]
"""Tells the origin of a node, or None."""


def joined(outer: str, inner: str) -> str:
    """Return the qualified name of what has a name inside of a module.

    >>> joined("layers.0", "q"), joined("", "fc"), joined("fc", "")
    ('layers.0.q', 'fc', 'fc')
    """
    return ".".join(filter(None, [outer, inner]))


def way_of(nodes: Iterable[Any], functions: Iterable[Any], parameters: Set[str]) -> Way:
    """Return the way by which a model tells where its nodes come from.

    Args:
        nodes: Its nodes.
        functions: Its functions.
        parameters: The names of its parameters.
    """

    def by_metadata(node: Any) -> Origin | None:
        return origin_by_metadata(properties(node.metadata_props))

    def by_name(node: Any) -> Origin | None:
        return origin_by_name(node.name, node.op_type)

    def by_parameters(node: Any) -> Origin | None:
        read = [name for name in node.input if name in parameters]
        return origin_by_parameters(read, node.op_type)

    ways = (by_metadata, by_name, by_parameters)
    if any(map(is_module, functions)):
        return by_metadata
    return next((way for way in ways if any(map(way, nodes))), by_metadata)


def within(module: str, node: Any) -> Origin | None:
    """Return the origin of a node of a function, from the module that the function is."""
    origin = origin_by_metadata(properties(node.metadata_props))
    if origin is None:
        return None
    levels = [level._replace(name=joined(module, level.name)) for level in origin.levels[1:]]
    return origin._replace(levels=tuple(levels))


def is_module(function: Any) -> bool:
    """Whether a function is a module, of which its nodes tell in their metadata."""
    return any(entry.key == OF_MODULE for entry in function.metadata_props)


def filled(told: Sequence[Origin | None]) -> list[Origin | None]:
    """Return origins, with the modules around both neighbours where nothing is told.

    What an exporter put between two nodes of a module stands in that module.
    """
    found = list(told)
    after: list[Origin | None] = []
    following: Origin | None = None
    for origin in reversed(told):
        after.append(following)
        following = origin or following
    before: Origin | None = None
    for place, (origin, later) in enumerate(zip(told, reversed(after), strict=True)):
        if origin is None and (before is not None or later is not None):
            if before is not None and later is not None:
                levels = common(before.levels, later.levels)
            else:
                # At the ends it is known to be in the model, and no more.
                levels = (before or later or Origin((), "", "")).levels[:1]
            found[place] = Origin(levels, "", "") if levels else None
        before = origin or before
    return found


def common(one: Sequence[Level], other: Sequence[Level]) -> tuple[Level, ...]:
    """Return the levels with which two sequences begin alike."""
    pairs = zip(one, other, strict=False)
    return tuple([level for level, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)])
