"""Circles: which parameters TensorBoard cannot draw as small circles without harm.

An operation that has circles and, in its own box, no neighbour is put aside by the page
(tensorboard/plugins/graph/tf_graph_common/render.ts, `extractHighDegrees`): its edges
are cut to stubs, of which it shows five. `nn.MultiheadAttention` runs one such kernel
over all of its parameters. There, parameters are better drawn as nodes.
"""

from collections.abc import Collection, Set

from tbscope.drawing.naming import Names
from tbscope.ir.graph import Graph, Node
from tbscope.ir.nodes import sources_of
from tbscope.ir.scope_io import OPERATIONS, OWNED, read_only_by

__all__ = ["is_one_alone", "move_out_of_leaves", "parameters_to_draw", "read_by_stacks"]

_CONSTANTS = frozenset({"constant"})


def parameters_to_draw(graph: Graph, names: Names, *, constants_only: bool = False) -> set[Node]:
    """Return the parameters, buffers and constants that must be nodes, for an operation's sake.

    Such an operation may be a leaf module drawn as one node: one of a list whose members are
    called one by one, with other operations in between.

    Args:
        graph: The graph.
        names: The names of its nodes.
        constants_only: Whether parameters and buffers are nodes in any case.
    Returns:
        Those that an operation reads which has no neighbour in its own box, wherever they
        stand, and those that only Python reads (`float(self.scale)`).
    """
    circles = _CONSTANTS if constants_only else OWNED
    # A circle stands beside its reader alone: those which no node reads, but Python, are nodes.
    found = {node for node in graph.nodes if node.kind in circles}
    if found:
        for output in graph.outputs:
            found.difference_update((output.value.producer, *output.control_inputs))
        for node in graph.nodes:
            found.difference_update(sources_of(node))
    for node in _without_neighbour(graph, names, circles):
        found.update(value.producer for value in node.inputs if value.producer.kind in circles)
    return found


def _without_neighbour(graph: Graph, names: Names, circles: Set[str]) -> dict[Node, str]:
    """Return each operation that has circles and no neighbour in its box, with that box."""
    alone: dict[Node, str] = {}
    named = names.nodes
    for node in graph.nodes:
        if node.kind in circles:
            continue
        sources = sources_of(node)
        name = named[node]
        box = ""
        if node.kind in OPERATIONS:
            for source in sources:
                if source.kind in circles:
                    box = name[: name.rfind("/") + 1]
                    break
        for source in sources:
            if source in alone and name.startswith(alone[source]):
                del alone[source]
            if box and source.kind not in circles and named[source].startswith(box):
                box = ""
        if box:
            alone[node] = box
    return alone


def read_by_stacks(graph: Graph, stacks: Collection[Node]) -> set[Node]:
    """Return the parameters and the like that nothing reads but stacks of blocks."""
    return read_only_by(graph, set(stacks))


def is_one_alone(graph: Graph, stacks: Collection[Node]) -> bool:
    """Tell whether a stack of blocks reads no operation, and none reads it.

    In a box around everything it would have circles and no neighbour.
    """
    joined: set[Node] = set()
    for node in graph.nodes if stacks else ():
        if node.kind in OPERATIONS:
            sources = [source for source in sources_of(node) if source.kind in OPERATIONS]
            joined.update(sources, [node] if sources else ())
    return not joined.issuperset(stacks)


def move_out_of_leaves(graph: Graph, names: Names, parameters: set[Node]) -> None:
    """Have parameters that are nodes stand beside their leaf module: below, it would be a box."""
    leaves = {node.scope for node in graph.nodes if node.kind == "module"}
    taken = {*names.nodes.values(), *names.scopes.values(), *names.outputs, *names.cards}
    for node in graph.nodes:
        if node in parameters and node.scope in leaves:
            above, _, attribute = names.nodes[node].rpartition("/")
            name = f"{above}.{attribute}"
            while name in taken:
                name += "_"
            taken.add(name)
            names.nodes[node] = name
