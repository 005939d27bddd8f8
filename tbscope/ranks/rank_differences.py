"""Differences between ranks that ran different operations, as text."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import NamedTuple

from tbscope.analysis.units import counted
from tbscope.ir.graph import Graph, Node
from tbscope.ir.scope_io import OPERATIONS
from tbscope.messages import first_of

_MOST_TOLD = 5


class Difference(NamedTuple):
    """The difference of a rank from another one.

    Attributes:
        text: The first operation that differs, and the operations that one of them alone ran.
        at: The index of that operation in the graph of the rank; None if it only lacks some.
    """

    text: str
    at: int | None


def find_difference(graph: Graph, other: Graph) -> Difference:
    """Return how a rank differs from another one.

    Args:
        graph: The graph of the rank.
        other: The graph of the other one, which has another structure.
    """
    nodes, its_nodes = _operations(graph), _operations(other)
    keys = zip_longest(_keys(graph, nodes), _keys(other, its_nodes))
    first = next((at for at, (key, its_key) in enumerate(keys) if key != its_key), len(nodes))
    own, others = Counter(map(_line, nodes)), Counter(map(_line, its_nodes))
    changes = [
        *(counted([entry]) for entry in (own - others).items()),
        *(f"no {counted([entry])}" for entry in (others - own).items()),
    ]
    if first < len(nodes):
        where = f"from {_line(nodes[first])} on"
    else:
        where = f"after {_line(nodes[-1])}" if nodes else "from the first operation on"
    what = f"ran {first_of(changes, _MOST_TOLD)}" if changes else "ran the same on other tensors"
    at = graph.nodes.index(nodes[first]) if first < len(nodes) else None
    return Difference(f"{where}: {what}", at)


def _operations(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.kind in OPERATIONS]


def _keys(graph: Graph, nodes: Iterable[Node]) -> Iterator[object]:
    number = {node: at for at, node in enumerate(graph.nodes)}
    for node in nodes:
        reads = [(number[value.producer], value.index) for value in node.inputs]
        yield (
            _line(node),
            reads,
            [value.dtype for value in node.outputs],
            node.collective and node.collective.kind,
        )


def _line(node: Node) -> str:
    return node.op if node.scope is None else f"{node.op} in {node.scope}"
