"""Passes for shared parameters: each module or call that reads one may get a node of its own.

A tied parameter (two names in the `state_dict`, one tensor) is drawn in each module that
registers it, under its name there. A parameter that several calls read is drawn beside each of
these calls if one of them is alone in its box: an operation without a neighbour cannot have
circles beside it, so that its parameters are nodes there (`drawing/const_nodes.py`). If other
calls read that node, too, edges would run from the box of the first call to the boxes of all
others, as if it fed them.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from tbscope.ir.builder import claim_name
from tbscope.ir.editing import copy_source, replace_inputs, replace_nodes
from tbscope.ir.graph import Graph, Node, Value
from tbscope.ir.nodes import sources_of
from tbscope.ir.pytree import Replacements
from tbscope.ir.scope_io import OPERATIONS, OWNED, STATE, self_and_ancestors

if TYPE_CHECKING:
    from tbscope.ir.scopes import Scope


def copy_tied_parameters(graph: Graph) -> None:
    """Add a node for each further name of a tied parameter, beside the readers in that module.

    So a search for any of its keys in the `state_dict` finds a node. The attribute `tied_to` of
    that node is the name of the parameter's first node.

    Args:
        graph: Changed in place.
    """
    other_names = _other_names(graph)
    if not other_names:
        return
    # Parameters that keep a reader under their own name. A node without readers would not be
    # drawn, so the first module that reads any other parameter keeps reading the original.
    still_read = {
        value.producer
        for node in graph.nodes
        for value in node.inputs
        if node.scope is None or (value.producer, node.scope.qualified_name) not in other_names
    }

    keepers: dict[Node, str | None] = {}

    def named(source: Node, reader: Node) -> str | None:
        module = reader.scope.qualified_name if reader.scope else None
        name = other_names.get((source, module)) if reader.scope else None
        if name is not None and source not in still_read:
            # Each call of the first module that reads it keeps reading the original.
            return None if keepers.setdefault(source, module) == module else name
        return name

    _give_twins(graph, named)


def _other_names(graph: Graph) -> dict[tuple[Node, str | None], str]:
    """Return the further names of each tied parameter.

    Returns:
        The name in a module, by parameter node and qualified name of that module. Names that a
        node of the graph already has are left out.
    """
    names: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for module in graph.modules:
        for parameter in module.parameters:
            if parameter.number >= 0:
                name = f"{module.name}.{parameter.name}" if module.name else parameter.name
                names[parameter.number].append((module.name, name))
    tied = {name: entries for entries in names.values() if len(entries) > 1 for _, name in entries}
    if not tied:
        # In most models each parameter has one name.
        return {}
    taken = {node.name for node in graph.nodes}
    return {
        (node, module): name
        for node in graph.nodes
        if node.kind in STATE and node.name in tied
        for module, name in tied[node.name]
        if name not in taken
    }


def copy_shared_parameters(graph: Graph) -> None:
    """Add a node of a shared parameter for each further call, if one call is alone in its box.

    The node is named like the parameter, with `~2`, `~3` and so on behind it; its attribute
    `tied_to` is the name of the parameter.

    Args:
        graph: Changed in place; its leaf modules are nodes.
    """
    lent = _lent(graph)
    if not lent:
        return
    first_scopes: dict[Node, Scope | None] = {}
    names: dict[tuple[Node, Scope | None], str] = {}
    taken = {node.name for node in graph.nodes}

    def named(source: Node, reader: Node) -> str | None:
        if source not in lent or not _calls(reader):
            return None
        if first_scopes.setdefault(source, reader.scope) is reader.scope:
            return None
        if (source, reader.scope) not in names:
            names[source, reader.scope] = claim_name(source.name, taken)
        return names[source, reader.scope]

    _give_twins(graph, named)


def _give_twins(graph: Graph, named: Callable[[Node, Node], str | None]) -> None:
    """Insert copies of parameters, and redirect operations to them.

    Args:
        graph: Changed in place.
        named: Returns the name of the copy that an operation (second argument) is to read
            instead of a source (first argument), or None if it keeps reading the source.
    """
    nodes: list[Node] = []
    copies: dict[str, Node] = {}
    for node in graph.nodes:
        twins = Replacements[Value]()
        for value in dict.fromkeys(node.inputs) if node.kind in OPERATIONS else ():
            name = named(value.producer, node)
            if name is None:
                continue
            if name not in copies:
                copied = copies[name] = copy_source(value.producer, name, node.scope)
                copied.attributes.setdefault("tied_to", value.producer.name)
                # The copy precedes its first reader.
                nodes.append(copied)
            twins[value] = copies[name].outputs[0]
        if twins:
            replace_inputs(node, twins)
        nodes.append(node)
    replace_nodes(graph, nodes)


def _calls(node: Node) -> bool:
    """Whether a node is an operation of a forward pass.

    Nodes of the backward pass and of the optimizer keep reading the model's own parameter.
    """
    return node.kind in OPERATIONS and node.phase == "forward"


def _lent(graph: Graph) -> set[Node]:
    """Return the parameters and buffers with readers in several scopes, one alone in its box."""
    readers: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        if node.inputs and _calls(node):
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
    """Return the operations among `asked` that have no neighbour in their box.

    A neighbour is a node other than a parameter, buffer or constant that shares an edge with
    the operation and is in the same box, at any depth.
    """
    # A leaf module is drawn in the enclosing box. Operations at the top level are left out: the
    # rest of the graph is beside them.
    box_of = {
        node: node.scope.parent if node.kind == "module" and node.scope else node.scope
        for node in asked
    }
    boxes = {node: box for node, box in box_of.items() if box is not None}
    alone = set(boxes)
    for node in graph.nodes:
        for source in sources_of(node) if node.kind in OPERATIONS else ():
            if source.kind in OWNED:
                continue
            if source in alone and boxes[source] in self_and_ancestors(node.scope):
                alone.discard(source)
            if node in alone and boxes[node] in self_and_ancestors(source.scope):
                alone.discard(node)
    return alone
