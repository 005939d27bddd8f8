"""Levels: how what stands right in a scope reads each other, operations and boxes."""

from collections.abc import Collection, Mapping
from typing import Literal, TypeAlias

from tbscope.ir.graph import Graph, Node
from tbscope.ir.nodes import sources_of
from tbscope.ir.scope_io import OWNED
from tbscope.ir.scopes import Scope

__all__ = ["Unit", "level_links", "unit_of"]

Unit: TypeAlias = Node | Scope
"""What stands right on a level: an operation, or a box."""

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
    """Return which unit on a level is read by which other one; lists are no boxes.

    Args:
        graph: The graph.
        holder: The scope whose level it is; None for the top level.
        hosts: The scope in which a scope stands that is not the one around it.
        nodes: The scope in which a node stands that is not its own.
        boxes: Modules that are never called, and yet are boxes.
        beyond: Whether the operations of all other levels are units, too.
    """
    known: dict[Scope | None, Unit | Literal["here", "elsewhere"]] = {
        None: "elsewhere" if holder else "here"
    }
    if holder is not None:
        known[holder] = "here"
    places: dict[Node, Unit] = {}
    links: dict[tuple[Unit, Unit], None] = {}
    for node in graph.nodes:
        if node.kind in OWNED or node.phase != "forward":
            continue
        box = _find_unit(nodes.get(node, node.scope), hosts, known, boxes)
        if box == "elsewhere" and not beyond:
            continue
        places[node] = here = box if isinstance(box, Scope) else node
        for source in sources_of(node):
            if source in places and places[source] is not here:
                links[places[source], here] = None
    return links


def unit_of(scope: Scope, holder: Scope | None) -> Scope | None:
    """Return the box on the level of a holder around a scope in it; None for the holder itself."""
    known: dict[Scope | None, Unit | Literal["here", "elsewhere"]] = {holder: "here"}
    found = _find_unit(scope, _NOWHERE, known)
    return found if isinstance(found, Scope) else None


def _find_unit(
    scope: Scope | None,
    hosts: Mapping[Scope, Scope],
    known: dict[Scope | None, Unit | Literal["here", "elsewhere"]],
    boxes: Collection[Scope] = (),
) -> Unit | Literal["here", "elsewhere"]:
    """Return the box around all in a scope; remember what is found on the way up."""
    way: list[Scope] = []
    while scope is not None and scope not in known:
        way.append(scope)
        scope = hosts.get(scope, scope.parent)
    found = known[scope]
    for inner in reversed(way):
        if found == "here" and (inner.kind != "container" or inner in boxes):
            found = inner
        known[inner] = found
    return found
