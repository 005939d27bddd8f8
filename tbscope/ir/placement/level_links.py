"""Links of a level: the data flow between the nodes and boxes directly inside a scope.

A unit of a level is an operation or a box directly inside the scope. A link leads from a unit to a
unit that reads one of its values, or has a control dependency on it.
"""

from collections.abc import Collection, Mapping
from typing import Literal, TypeAlias

from tbscope.ir.graph import Graph, Node
from tbscope.ir.nodes import sources_of
from tbscope.ir.scope_io import OWNED
from tbscope.ir.scopes import Scope

__all__ = ["Unit", "level_links", "unit_of"]

Unit: TypeAlias = Node | Scope
"""A child of a level: an operation, or a box."""

_NOWHERE: dict[Scope, Scope] = {}
_NONE: dict[Node, Scope] = {}


def level_links(
    graph: Graph,
    holder: Scope | None,
    *,
    hosts: Mapping[Scope, Scope] = _NOWHERE,
    nodes: Mapping[Node, Scope] = _NONE,
    boxes: Collection[Scope] = (),
    beyond: bool = False,
) -> dict[tuple[Unit, Unit], None]:
    """Return the links between the units of a level, as pairs of producer and reader.

    Containers (module lists) are not boxes: their contents are units of the level.

    Args:
        graph: The graph.
        holder: The scope whose level it is; None for the top level.
        hosts: The placement of scopes that are drawn outside of their parent.
        nodes: The placement of nodes that are drawn outside of their own scope.
        boxes: Containers that are boxes nevertheless, because operations run in them.
        beyond: Whether the operations of all other levels are units, too.
    """
    # For each scope its enclosing box on the level, or whether the scope's nodes are on the level
    # themselves ("here") or on other levels ("elsewhere").
    units: dict[Scope | None, Unit | Literal["here", "elsewhere"]] = {
        None: "elsewhere" if holder else "here"
    }
    if holder is not None:
        units[holder] = "here"
    unit_of_node: dict[Node, Unit] = {}
    links: dict[tuple[Unit, Unit], None] = {}
    for node in graph.nodes:
        if node.kind in OWNED or node.phase != "forward":
            continue
        box = _find_unit(nodes.get(node, node.scope), hosts, units, boxes)
        if box == "elsewhere" and not beyond:
            continue
        unit_of_node[node] = here = box if isinstance(box, Scope) else node
        for source in sources_of(node):
            if source in unit_of_node and unit_of_node[source] is not here:
                links[unit_of_node[source], here] = None
    return links


def unit_of(scope: Scope, holder: Scope | None) -> Scope | None:
    """Return the box on the level of `holder` that encloses a scope; None for `holder` itself."""
    units: dict[Scope | None, Unit | Literal["here", "elsewhere"]] = {holder: "here"}
    unit = _find_unit(scope, _NOWHERE, units)
    return unit if isinstance(unit, Scope) else None


def _find_unit(
    scope: Scope | None,
    hosts: Mapping[Scope, Scope],
    known: dict[Scope | None, Unit | Literal["here", "elsewhere"]],
    boxes: Collection[Scope] = (),
) -> Unit | Literal["here", "elsewhere"]:
    """Return the unit that encloses a scope, and cache it for the scopes on the way up."""
    path: list[Scope] = []
    while scope is not None and scope not in known:
        path.append(scope)
        scope = hosts.get(scope, scope.parent)
    unit = known[scope]
    for inner in reversed(path):
        if unit == "here" and (inner.kind != "container" or inner in boxes):
            unit = inner
        known[inner] = unit
    return unit
