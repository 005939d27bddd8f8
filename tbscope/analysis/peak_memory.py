"""The peak: which results were alive at the moment when most bytes were.

Where memory was measured, that tells it. Elsewhere it follows from the graph: what an operation
allocated is alive until the last one has run that reads it, or reads a view of it. A variable of
Python may hold it longer; parameters, buffers and inputs count nothing.
"""

from collections import defaultdict
from collections.abc import Iterable

from tbscope.ir.graph import Graph, Node, Value
from tbscope.ir.scope_io import OPERATIONS

__all__ = ["bytes_at_peak"]


def bytes_at_peak(graph: Graph) -> dict[Node, int]:
    """Return for each operation the bytes of its results that are alive at the peak.

    Args:
        graph: A graph as it was recorded.
    Returns:
        Their sum is the peak: `graph.profile.peak_bytes`, where that was measured.
    """
    operations = [node for node in graph.nodes if node.kind in OPERATIONS]
    measured = {node: node.at_peak_bytes for node in operations if node.at_peak_bytes is not None}
    if measured:
        return measured
    last = _last_places(graph, operations)
    freed: dict[int, list[Node]] = defaultdict(list)
    alive = highest = moment = 0
    for place, node in enumerate(operations):
        alive += node.allocated_bytes
        freed[last[node]].append(node)
        if alive > highest:
            highest, moment = alive, place
        alive -= sum(gone.allocated_bytes for gone in freed.pop(place, ()))
    return {
        node: node.allocated_bytes if place <= moment <= last[node] else 0
        for place, node in enumerate(operations)
    }


def _last_places(graph: Graph, operations: list[Node]) -> dict[Node, int]:
    """Return for each operation the place of the last one that needs what it allocated."""
    makers: dict[Value, set[Node]] = {}
    last = {node: place for place, node in enumerate(operations)}
    for place, node in enumerate(operations):
        read = _all_of(makers, node.inputs)
        last.update(dict.fromkeys(read, place))
        # What allocates nothing hands on what it was given.
        if node.allocated_bytes:
            read = {node} | _all_of(makers, [node.inputs[at] for at in node.writes])
        makers.update(dict.fromkeys(node.outputs, read))
    ends = _all_of(makers, [output.value for output in graph.outputs])
    return last | dict.fromkeys(ends, len(operations))


def _all_of(makers: dict[Value, set[Node]], values: Iterable[Value]) -> set[Node]:
    return set().union(*(makers.get(value, ()) for value in values))
