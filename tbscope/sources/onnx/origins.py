"""Origins of the nodes of an ONNX model: from their metadata, names, parameters or neighbours."""

from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, TypeAlias

from tbscope.sources.onnx.metadata import (
    ModuleRef,
    Origin,
    origin_by_metadata,
    origin_by_name,
    origin_by_parameters,
    properties,
)

if TYPE_CHECKING:
    from onnx import FunctionProto, NodeProto

__all__ = [
    "OF_MODULE",
    "Way",
    "common",
    "fill_from_neighbours",
    "is_module",
    "join_name",
    "origin_finder",
    "origin_in_function",
]

OF_MODULE = "tbscope.module"
"""Metadata key of a function that is a module, with the full name of its class.

Module names in the nodes of the function are relative to this module, as several modules may share
one function.
"""

Way: TypeAlias = "Callable[[NodeProto], Origin | None]"
"""Function that returns the origin of a node, or None."""


def join_name(outer: str, inner: str) -> str:
    """Return the qualified name of an object from its name inside of a module.

    >>> join_name("layers.0", "q"), join_name("", "fc"), join_name("fc", "")
    ('layers.0.q', 'fc', 'fc')
    """
    return ".".join(filter(None, [outer, inner]))


def origin_finder(
    nodes: "Iterable[NodeProto]", functions: "Iterable[FunctionProto]", parameters: Set[str]
) -> Way:
    """Return the function that finds the origins of a model's nodes.

    Metadata, node names and parameters are tried in this order: the first that has the origin of
    any node is used for all. A model with a function that is a module uses metadata only.

    Args:
        nodes: Its nodes.
        functions: Its functions.
        parameters: The names of its parameters.
    """

    def by_metadata(node: "NodeProto") -> Origin | None:
        return origin_by_metadata(properties(node.metadata_props))

    def by_name(node: "NodeProto") -> Origin | None:
        return origin_by_name(node.name, node.op_type)

    def by_parameters(node: "NodeProto") -> Origin | None:
        read = [name for name in node.input if name in parameters]
        return origin_by_parameters(read, node.op_type)

    ways = (by_metadata, by_name, by_parameters)
    if any(map(is_module, functions)):
        return by_metadata
    return next((way for way in ways if any(map(way, nodes))), by_metadata)


def origin_in_function(module: str, node: "NodeProto") -> Origin | None:
    """Return the origin of a node in a function, with full module names, or None.

    Args:
        module: The qualified name of the module whose function this call runs.
        node: The node.
    """
    origin = origin_by_metadata(properties(node.metadata_props))
    if origin is None:
        return None
    # The first level is the module of the function itself.
    levels = [level.renamed(partial(join_name, module)) for level in origin.levels[1:]]
    return origin._replace(levels=tuple(levels))


def is_module(function: "FunctionProto") -> bool:
    """Whether a function is a module, with the origins of its nodes in their metadata."""
    return any(entry.key == OF_MODULE for entry in function.metadata_props)


def fill_from_neighbours(known: Sequence[Origin | None]) -> list[Origin | None]:
    """Return origins; a missing origin has the modules that both neighbours have in common.

    A node that an exporter inserted between two nodes of a module belongs to that module.
    """
    origins = list(known)
    next_origins: list[Origin | None] = []
    next_origin: Origin | None = None
    for origin in reversed(known):
        next_origins.append(next_origin)
        next_origin = origin or next_origin
    previous: Origin | None = None
    for index, (origin, later) in enumerate(zip(known, reversed(next_origins), strict=True)):
        if origin is None and (previous is not None or later is not None):
            if previous is not None and later is not None:
                levels = common(previous.levels, later.levels)
            else:
                # A node with one neighbour alone is placed in the outermost module.
                levels = (previous or later or Origin((), "", "")).levels[:1]
            origins[index] = Origin(levels, "", "") if levels else None
        previous = origin or previous
    return origins


def common(left: Sequence[ModuleRef], right: Sequence[ModuleRef]) -> tuple[ModuleRef, ...]:
    """Return the common prefix of two sequences of levels."""
    pairs = zip(left, right, strict=False)
    return tuple([level for level, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)])
