"""The pipeline from a graph to a GraphDef: verify, copy, tidy, convert."""

from typing import Literal, TypeAlias, get_args

from tensorboard.compat.proto.graph_pb2 import GraphDef

from tbscope.collector import collecting_rarely
from tbscope.errors import ArgumentError
from tbscope.graph import Graph
from tbscope.graphdef.build import build_graph_def
from tbscope.graphdef.naming import Style, check_style
from tbscope.invariants import verify
from tbscope.passes.leaves import collapse_leaves

__all__ = ["Leaves", "Style", "check_options", "to_graph_def"]

Leaves: TypeAlias = Literal["node", "box"]
"""How a module of one operation is drawn: as that node, or as a box around it."""


def to_graph_def(graph: Graph, *, style: Style = "tf", leaves: Leaves = "node") -> GraphDef:
    """Give the GraphDef that TensorBoard draws as this graph.

    Args:
        graph: Any graph; it stays as it is.
        style: How names are made of scopes: "tf" (`Net/layer1/0`), "torch"
            (`Net/Sequential[layer1]/Linear[0]`), or a function that gives the whole name
            of a `Scope`.
        leaves: "node" draws a module of one operation as one node, with its parameters as
            small circles beside it; "box" draws every module as a box.
    Returns:
        A new message; the same graph always gives the same one.
    Raises:
        ArgumentError: `style` or `leaves` is none, or a style function gave no name.
        GraphError: The graph breaks an invariant.
    """
    check_options(style, leaves)
    with collecting_rarely():
        verify(graph)
        if leaves == "box":
            return build_graph_def(graph, style=style, circles=False)
        drawn = graph.copy()
        collapse_leaves(drawn)
        message = build_graph_def(drawn, style=style)
        for node in drawn.nodes:
            # A node and its values refer to each other: garbage that only the collector finds.
            node.outputs.clear()
        return message


def check_options(style: Style, leaves: Leaves) -> None:
    """Check the options of `to_graph_def`, before anything has been run for it.

    Raises:
        ArgumentError: One of them is none.
    """
    check_style(style)
    if leaves not in get_args(Leaves):
        raise ArgumentError(
            f"leaf modules cannot be drawn as {leaves!r}",
            why="leaves is 'node' or 'box'",
            fix="leaves='box' to give every module a box",
        )
