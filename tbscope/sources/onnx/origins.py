"""Origins of the nodes of an ONNX model: from their metadata, names, parameters or neighbours."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, TypeAlias

from tbscope.sources.onnx.metadata import (
    ModuleRef,
    Origin,
    calls_in_names,
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
    "nodes_in",
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


def nodes_in(nodes: "Iterable[NodeProto]") -> "Iterator[NodeProto]":
    """Yield nodes, and those in their bodies."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            yield from nodes_in(attribute.g.node)


def origin_finder(
    nodes: "Iterable[NodeProto]", functions: "Iterable[FunctionProto]", parameters: Set[str]
) -> tuple[Way, Mapping[str, Sequence[int]] | None]:
    """Return the function that finds the origins of a model's nodes, and the numbers of calls.

    Metadata, node names and parameters are tried in this order: the first that has the origin of
    any node is used for all. A model with a function that is a module uses metadata only.

    Args:
        nodes: Its nodes.
        functions: Its functions.
        parameters: The names of its parameters.
    Returns:
        The function, and the numbers of the calls around a node, by its name, as far as names have
        them; None for origins from metadata.
    """
    listed = list(nodes_in(nodes))
    first, numbers = calls_in_names([node.name for node in listed], parameters)

    def by_metadata(node: "NodeProto") -> Origin | None:
        return origin_by_metadata(properties(node.metadata_props))

    def by_name(node: "NodeProto") -> Origin | None:
        origin = origin_by_name(first.get(node.name, node.name), node.op_type)
        return origin and origin._replace(name=node.name)

    def by_parameters(node: "NodeProto") -> Origin | None:
        read = [name for name in node.input if name in parameters]
        return origin_by_parameters(read, node.op_type)

    ways = (by_metadata, by_name, by_parameters)
    if any(map(is_module, functions)):
        return by_metadata, None
    found = (way for way in ways if any(origin.levels for origin in map(way, listed) if origin))
    way = next(found, by_metadata)
    return way, None if way is by_metadata else numbers


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


def fill_from_neighbours(
    known: Sequence[Origin | None], values: Sequence[tuple[Iterable[str], Iterable[str]]]
) -> list[Origin | None]:
    """Return origins; a missing origin is the innermost module on both sides of the node.

    A node that a tool inserted between two nodes of a module belongs to that module, wherever it is
    in the file. Sides are the nearest nodes with an origin along the data flow.

    Args:
        known: The origins of the nodes, in order.
        values: The names of the values that each node reads, and of those that it computes.
    """
    first = next((origin.levels[:1] for origin in known if origin and origin.levels), ())
    model = first if first and not first[0].name else ()
    origins = [origin and origin._replace(levels=origin.levels or model) for origin in known]
    producers = {name: index for index, (_, results) in enumerate(values) for name in results}
    links = [
        (producers[name], index)
        for index, (reads, _) in enumerate(values)
        for name in reads
        if name in producers
    ]
    # By the nodes' numbers: the latest node before each, the first and the last one behind it.
    latest, first_reader, last_reader = ([absent] * len(known) for absent in (-1, len(known), -1))
    for source, index in links:
        latest[index] = max(latest[index], source if origins[source] else latest[source])
    for source, index in reversed(links):
        is_known = origins[index] is not None
        first_reader[source] = min(first_reader[source], index if is_known else first_reader[index])
        last_reader[source] = max(last_reader[source], index if is_known else last_reader[index])
    for index, origin in enumerate(known):
        if origin is None:
            # A node that reads none of the others is in the modules of all its readers.
            sides = latest[index] if latest[index] >= 0 else last_reader[index], first_reader[index]
            levels = model
            if last_reader[index] >= 0:
                before, after = (origins[side] or Origin((), "", "") for side in sides)
                levels = common(before.levels, after.levels)
            origins[index] = Origin(levels, "", "") if levels else None
    return origins


def common(left: Sequence[ModuleRef], right: Sequence[ModuleRef]) -> tuple[ModuleRef, ...]:
    """Return the common prefix of two sequences of levels."""
    pairs = zip(left, right, strict=False)
    return tuple([level for level, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)])
