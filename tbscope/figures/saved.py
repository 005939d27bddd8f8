"""What the forward pass keeps for the backward pass, where that was recorded."""

from collections.abc import Iterable

from tbscope.ir.graph import Graph, Node, Value
from tbscope.ir.nodes import OPERATIONS

__all__ = ["has_backward", "saved_bytes"]


def has_backward(graph: Graph) -> bool:
    """Tell whether a backward pass was recorded."""
    return any(node.phase == "backward" for node in graph.nodes)


def saved_bytes(graph: Graph) -> dict[Node, int]:
    """Return the bytes that each operation has made and a backward pass has read.

    They are alive from the one pass to the other. Views are counted once, with what they show;
    parameters and inputs are there anyhow. A loss, at which a pass begins, is not saved.
    """
    saved: dict[Value, None] = {}
    for node in graph.nodes:
        if node.phase == "backward" and node.role != "maker" and node.op != "ones_like":
            saved.update(dict.fromkeys(_bases(node.inputs)))
    found: dict[Node, int] = {}
    for value in saved:
        maker = value.producer
        if maker.kind in OPERATIONS and maker.phase == "forward":
            found[maker] = found.get(maker, 0) + (value.size_bytes or 0)
    return found


def _bases(values: Iterable[Value]) -> Iterable[Value]:
    """Return what these values are views of, or they themselves."""
    for value in values:
        base = value
        while _hands_on(base.producer):
            base = base.producer.inputs[0]
        yield base


def _hands_on(node: Node) -> bool:
    """Tell whether a node gives what it reads, or a view of it."""
    return bool(node.inputs) and (node.role == "view" or not node.kernels)
