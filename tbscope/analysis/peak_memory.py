"""Peak memory: the results that are live at the moment with the most live bytes.

The measurement is used if there is one. Otherwise lifetimes are derived from the graph: the results
of an operation are live until the last operation that reads them, or a view of them. A Python
variable may keep them alive longer; parameters, buffers and inputs do not count.
"""

from collections import defaultdict
from collections.abc import Iterable

from tbscope.ir.graph import Graph, Node, Value
from tbscope.ir.scope_io import OPERATIONS


def bytes_at_peak(graph: Graph) -> dict[Node, int]:
    """Return for each operation the bytes of its results that are live at the peak.

    Args:
        graph: A graph as recorded.
    Returns:
        The bytes by operation; their sum is the peak: `graph.profile.peak_bytes`, if measured.
    """
    operations = [node for node in graph.nodes if node.kind in OPERATIONS]
    measured = {node: node.at_peak_bytes for node in operations if node.at_peak_bytes is not None}
    if measured:
        return measured
    last = _last_places(graph, operations)
    freed: dict[int, list[Node]] = defaultdict(list)
    alive = highest = peak_index = 0
    for index, node in enumerate(operations):
        alive += node.allocated_bytes
        freed[last[node]].append(node)
        if alive > highest:
            highest, peak_index = alive, index
        alive -= sum(dead.allocated_bytes for dead in freed.pop(index, ()))
    return {
        node: node.allocated_bytes if index <= peak_index <= last[node] else 0
        for index, node in enumerate(operations)
    }


def _last_places(graph: Graph, operations: list[Node]) -> dict[Node, int]:
    """Return for each operation the index of the last operation that needs its allocation."""
    makers: dict[Value, set[Node]] = {}
    last = {node: index for index, node in enumerate(operations)}
    for index, node in enumerate(operations):
        read = _all_of(makers, node.inputs)
        last.update(dict.fromkeys(read, index))
        # An operation that allocates nothing returns its inputs, or views of them.
        if node.allocated_bytes:
            read = {node} | _all_of(makers, [node.inputs[at] for at in node.writes])
        makers.update(dict.fromkeys(node.outputs, read))
    live_at_end = _all_of(makers, [output.value for output in graph.outputs])
    return last | dict.fromkeys(live_at_end, len(operations))


def _all_of(makers: dict[Value, set[Node]], values: Iterable[Value]) -> set[Node]:
    return set().union(*(makers.get(value, ()) for value in values))
