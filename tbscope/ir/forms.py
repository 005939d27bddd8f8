"""Forms: tells whether something is a graph at all.

Whoever takes a graph from a user asks here first.
"""

from tbscope.errors import ArgumentError
from tbscope.ir.graph import Graph
from tbscope.words import shown

__all__ = ["require_graph"]


def require_graph(thing: object, doing: str = "this") -> None:
    """Check that something is a graph.

    Args:
        thing: Anything.
        doing: What is to be done with it, for the message.
    Raises:
        ArgumentError: It is none.
    """
    if not isinstance(thing, Graph):
        raise ArgumentError(
            f"{doing} takes a graph, and was given {shown(thing)}",
            why="a graph is what tbscope.trace, tbscope.record and add_graph give",
            fix="graph = tbscope.trace(model, input)",
        )
