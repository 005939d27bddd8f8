"""What a value was before it was looked at otherwise (a view), or written into."""

from collections.abc import Iterator

from tbscope.ir.graph import Node, Value

__all__ = ["origin_of", "way_back"]


def origin_of(value: Value) -> Node:
    """Return what a value is a view of, and what that was before it was written into."""
    *_, origin = way_back(value)
    return origin


def way_back(value: Value) -> Iterator[Node]:
    """Yield what gave a value, what gave that of which it is a view, and so on."""
    while True:
        node = value.producer
        yield node
        if node.role == "view" and node.inputs:
            value = node.inputs[0]
        elif value.index < len(node.writes):
            value = node.inputs[node.writes[value.index]]
        else:
            return
