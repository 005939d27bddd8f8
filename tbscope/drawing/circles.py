"""Circles: which parameters TensorBoard cannot draw as small circles without harm.

An operation that has circles and, in its own box, no neighbour is put aside by the page
(tensorboard/plugins/graph/tf_graph_common/render.ts, `extractHighDegrees`): its edges
are cut to stubs, of which it shows five. `nn.MultiheadAttention` runs one such kernel
over all of its parameters. There, parameters are better drawn as nodes.
"""

from collections.abc import Iterator, Set

from tbscope.drawing.naming import Names
from tbscope.ir.graph import Graph, Node
from tbscope.ir.regions import OPERATIONS, OWNED

__all__ = ["parameters_to_draw"]

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
        stand.
    """
    circles = _CONSTANTS if constants_only else OWNED
    alone = _without_neighbour(graph, names, circles)
    if not alone:
        return set()
    return {
        value.producer for node in alone for value in node.inputs if value.producer.kind in circles
    }


def _without_neighbour(graph: Graph, names: Names, circles: Set[str]) -> dict[Node, str]:
    """Return each operation that has circles and no neighbour in its box, with that box."""
    alone: dict[Node, str] = {}
    for node in graph.nodes:
        if node.kind in circles:
            continue
        name = names.nodes[node]
        box = ""
        if node.kind in OPERATIONS and any(value.producer.kind in circles for value in node.inputs):
            box = name[: name.rfind("/") + 1]
        for source in _sources(node):
            if source in alone and name.startswith(alone[source]):
                del alone[source]
            if box and source.kind not in circles and names.nodes[source].startswith(box):
                box = ""
        if box:
            alone[node] = box
    return alone


def _sources(node: Node) -> Iterator[Node]:
    for value in node.inputs:
        yield value.producer
    yield from node.control_inputs
