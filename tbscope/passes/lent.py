"""Lent parameters: one that several calls read stands beside each, where one of them is alone.

An operation that has no neighbour in its box can have no circles beside it: its parameters are
nodes there (drawing/circles.py). Were they read by other calls, too, there would be lines from
the box of the first call to those of all others, as if it fed them.
"""

from collections.abc import Iterator

from tbscope.ir.editing import read_there, replace_nodes, twin_of
from tbscope.ir.graph import Graph, Node, Value
from tbscope.ir.regions import OPERATIONS, OWNED, STATE, upward
from tbscope.ir.scopes import Scope

__all__ = ["part_lent"]


def part_lent(graph: Graph) -> None:
    """Give each further call a node for what another one, alone in its box, reads as well.

    The attribute `tied_to` tells the name of the parameter.

    Args:
        graph: Changed in place; its leaf modules are nodes.
    """
    lent = _lent(graph)
    if not lent:
        return
    nodes: list[Node] = []
    held: dict[Node, Scope | None] = {}
    made: dict[tuple[Node, Scope | None], Value] = {}
    taken = {node.name for node in graph.nodes}
    for node in graph.nodes:
        twins: dict[Value, Value] = {}
        for value in dict.fromkeys(node.inputs) if _calls(node) else ():
            source = value.producer
            if source not in lent or held.setdefault(source, node.scope) is node.scope:
                continue
            if (source, node.scope) not in made:
                twin = twin_of(source, _numbered(source.name, taken), node.scope)
                twin.attributes.setdefault("tied_to", source.name)
                nodes.append(twin)
                made[source, node.scope] = twin.outputs[0]
            twins[value] = made[source, node.scope]
        if twins:
            read_there(node, twins)
        nodes.append(node)
    replace_nodes(graph, nodes)


def _calls(node: Node) -> bool:
    """Tell whether a call runs a node: gradients and optimizers read what the model holds."""
    return node.kind in OPERATIONS and node.phase == "forward"


def _numbered(name: str, taken: set[str]) -> str:
    number = 2
    while f"{name}~{number}" in taken:
        number += 1
    taken.add(f"{name}~{number}")
    return f"{name}~{number}"


def _lent(graph: Graph) -> set[Node]:
    """Return what operations in several scopes read, one of which is alone in its box."""
    readers: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        if _calls(node):
            for value in node.inputs:
                if value.producer.kind in STATE:
                    readers.setdefault(value.producer, []).append(node)
    shared = {
        source: read_by
        for source, read_by in readers.items()
        if len(read_by) > 1 and any(node.scope is not read_by[0].scope for node in read_by)
    }
    if not shared:
        return set()
    alone = _alone(graph, {node for read_by in shared.values() for node in read_by})
    return {source for source, read_by in shared.items() if not alone.isdisjoint(read_by)}


def _alone(graph: Graph, asked: set[Node]) -> set[Node]:
    """Return those of some operations that have no neighbour in the box in which they stand."""
    found = {node: _box(node) for node in asked}
    # At the top level, the rest of the graph stands beside it.
    boxes = {node: box for node, box in found.items() if box is not None}
    alone = set(boxes)
    for node in graph.nodes:
        for source in _sources(node):
            if source in alone and boxes[source] in upward(node.scope):
                alone.discard(source)
            if node in alone and boxes[node] in upward(source.scope):
                alone.discard(node)
    return alone


def _box(node: Node) -> Scope | None:
    """Return the scope in whose box a node stands; a leaf module stands in that around it."""
    return node.scope.parent if node.kind == "module" and node.scope else node.scope


def _sources(node: Node) -> Iterator[Node]:
    for value in node.inputs:
        if value.producer.kind not in OWNED:
            yield value.producer
    yield from node.control_inputs
