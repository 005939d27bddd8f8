"""What a value was before it was looked at otherwise (a view), or written into."""

from collections import deque
from collections.abc import Iterable, Iterator

from tbscope.ir.graph import Node, Value

__all__ = ["not_behind", "origin_of", "way_back"]


def origin_of(value: Value) -> Node:
    """Return what a value is a view of, and what that was before it was written into."""
    *_, origin = way_back(value)
    return origin


def not_behind(values: Iterable[Value], others: Iterable[Value]) -> list[Value]:
    """Return those of some values of which none of the others was made."""
    values = list(values)
    left = {value.producer for value in values}
    # The nearest first: mostly all are found soon.
    pending = deque(dict.fromkeys(value.producer for value in others))
    seen = set(pending)
    while pending and left:
        node = pending.popleft()
        left.discard(node)
        before = dict.fromkeys((*(value.producer for value in node.inputs), *node.control_inputs))
        found = [each for each in before if each not in seen]
        seen.update(found)
        pending += found
    return [value for value in values if value.producer in left]


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
