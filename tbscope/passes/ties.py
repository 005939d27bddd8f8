"""Ties: a parameter that several modules hold stands beside each of them, by its name there."""

from collections import defaultdict

from tbscope.ir.editing import read_there, replace_nodes, twin_of
from tbscope.ir.graph import Graph, Node, Value
from tbscope.ir.regions import OPERATIONS, STATE

__all__ = ["name_ties"]


def name_ties(graph: Graph) -> None:
    """Give what reads a tied parameter in another of its modules a node under the name there.

    So a search for any of its keys in the `state_dict` finds one. Its attribute `tied_to` tells
    the name under which the parameter is known elsewhere in the graph.

    Args:
        graph: Changed in place.
    """
    others = _other_names(graph)
    if not others:
        return
    # What nothing reads is not drawn: where no reader would be left, the first one keeps it.
    left = {
        value.producer
        for node in graph.nodes
        for value in node.inputs
        if node.scope is None or (value.producer, node.scope.qualified_name) not in others
    }
    nodes: list[Node] = []
    made: dict[str, Node] = {}
    for node in graph.nodes:
        if node.kind in OPERATIONS and node.scope is not None:
            module = node.scope.qualified_name
            for value in dict.fromkeys(node.inputs):
                name = others.get((value.producer, module))
                if name is None:
                    continue
                if value.producer not in left:
                    left.add(value.producer)
                    continue
                if name not in made:
                    made[name] = _under(name, value, node)
                    nodes.append(made[name])
                twin = {value: made[name].outputs[0]}
                read_there(node, twin)
        nodes.append(node)
    replace_nodes(graph, nodes)


def _other_names(graph: Graph) -> dict[tuple[Node, str | None], str]:
    """Return for each tied parameter, and each module that holds it too, its name there."""
    numbers = [one.number for module in graph.modules for one in module.parameters]
    known = [number for number in numbers if number >= 0]
    if len(set(known)) == len(known):
        # In most models each parameter has one name.
        return {}
    names: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for module in graph.modules:
        for parameter in module.parameters:
            if parameter.number >= 0:
                name = f"{module.name}.{parameter.name}" if module.name else parameter.name
                names[parameter.number].append((module.name, name))
    tied = {name: held for held in names.values() if len(held) > 1 for _, name in held}
    taken = {node.name for node in graph.nodes} if tied else set()
    return {
        (node, module): name
        for node in graph.nodes
        if node.kind in STATE and node.name in tied
        for module, name in tied[node.name]
        if name not in taken
    }


def _under(name: str, value: Value, reader: Node) -> Node:
    """Return a node that stands for a parameter under another name, beside what reads it."""
    held = value.producer
    node = twin_of(held, name, reader.scope)
    node.attributes["tied_to"] = held.name
    return node
