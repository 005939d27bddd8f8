"""Edges of gradients: the page draws them in the colour of its references.

It has no colour for an edge but this one, which the first thing that `Assign` reads comes by. So
what reads a gradient on its way to the parameter reads it first, and is drawn as `Assign`; the
card tells which operation it is.

Source: tensorboard/plugins/graph/tf_graph_common/graph.ts:1000-1016, `refEdges`
"""

from collections.abc import Collection, Iterable

from tbscope.ir.graph import Graph, Node, Value

__all__ = ["find_gradients", "first_of", "reader_op"]


def find_gradients(graph: Graph) -> dict[Node, Collection[Value]]:
    """Find the nodes that gradients flow through on their way to the parameters.

    Returns:
        The gradients that each of them reads: what the backward pass gives a parameter, and from
        there on that gradient itself, also after an operation wrote into it (clipping). A
        node that reads none is left out.
    """
    flowing: dict[Value, None] = {}
    readers: dict[Node, Collection[Value]] = {}
    for node in graph.nodes:
        if "gradient_of" in node.attributes:
            flowing.update(dict.fromkeys(node.outputs))
            if node.inputs:
                # What was there is read first, and added to.
                readers[node] = node.inputs[-1:]
        elif node.phase == "optimizer" and node.kind == "op":
            read = [value for value in node.inputs if value in flowing]
            if read:
                readers[node] = read
            if any(node.inputs[place] in flowing for place in node.writes):
                flowing.update(dict.fromkeys(node.outputs))
    return readers


def reader_op(node: Node) -> str:
    """Return the op type of a node that reads gradients."""
    return "AssignAdd" if node.attributes.get("accumulates") else "Assign"


def first_of(inputs: Iterable[Value], gradients: Collection[Value]) -> list[Value]:
    """Return what a node reads with the gradients first."""
    return sorted(inputs, key=lambda value: value not in gradients)
