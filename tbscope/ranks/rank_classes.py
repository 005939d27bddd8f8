"""Which ranks ran the same: those whose graphs have one structure, whatever their sizes are.

A structure is a graph without what may differ from rank to rank of one program: sizes, constants,
devices, times, the numbers of modules in lists (experts), and with whom a collective is done. Ranks
of a pipeline are alike if those are, too, to which they send and from which they receive; in a ring
no rank is first or last.
"""

import hashlib
import re
from collections.abc import Hashable, Iterator, Sequence

from tbscope.ir.graph import Graph, Node, Value

__all__ = ["groups_of", "is_message", "sizes_of"]

# A step of a path that is a number.
_NUMBER = re.compile(r"(?<![^.])[0-9]+(?![^.])")


def is_message(node: Node) -> bool:
    """Tell whether a node sends to one rank, or receives from one."""
    return node.collective is not None and node.collective.kind in ("send", "recv")


def groups_of(graphs: Sequence[Graph]) -> list[list[Graph]]:
    """Return the graphs of different ranks in groups that ran the same.

    Args:
        graphs: One for each rank.
    Returns:
        Groups in the order of their first ranks, each in the order of its ranks.
    """
    ordered = sorted(graphs, key=lambda graph: graph.rank)
    # Ranks that recorded the same may share all but what tells them apart.
    digests: dict[int, str] = {}
    for graph in ordered:
        if id(graph.nodes) not in digests:
            text = hashlib.sha256()
            for row in _rows(graph):
                text.update(repr(row).encode())
            digests[id(graph.nodes)] = text.hexdigest()
    classes: dict[int, Hashable] = {graph.rank: digests[id(graph.nodes)] for graph in ordered}
    peers = {graph.rank: _peers(graph) for graph in ordered}
    while True:
        # Whoever talks to others than its like is no longer alike, and so may be who talks to it.
        refined = {
            rank: (of_rank, tuple([classes.get(peer) for peer in peers[rank]]))
            for rank, of_rank in classes.items()
        }
        numbers = {key: number for number, key in enumerate(dict.fromkeys(refined.values()))}
        done = len(numbers) == len({*classes.values()})
        classes = {rank: numbers[key] for rank, key in refined.items()}
        if done:
            break
    groups: dict[Hashable, list[Graph]] = {}
    for graph in ordered:
        groups.setdefault(classes[graph.rank], []).append(graph)
    return list(groups.values())


def sizes_of(node: Node) -> tuple[Hashable, ...]:
    """Return the sizes of what a node gives: of each value those that this rank holds."""
    return tuple(
        [value.shape if value.sharding is None else value.sharding.shape for value in node.outputs]
    )


def _peers(graph: Graph) -> list[int]:
    """Return with whom each message of a rank is exchanged, in order."""
    joined = (node.collective for node in graph.nodes if is_message(node))
    return [one.peer for one in joined if one is not None and one.peer is not None]


def _rows(graph: Graph) -> Iterator[Hashable]:
    """Yield what graphs of one structure share, and no others."""
    scopes = {scope: number for number, scope in enumerate(graph.scopes())}
    for scope in scopes:
        part, above = scope.part, -1 if scope.parent is None else scopes[scope.parent]
        numbered = part.attribute is not None and part.attribute.isdecimal()
        attribute = "" if numbered else part.attribute
        yield above, part.label, attribute, part.index, scope.kind, scope.phase
    numbers = {node: number for number, node in enumerate(graph.nodes)}

    def place(value: Value) -> tuple[int, int]:
        return numbers.get(value.producer, -1), value.index

    for node in graph.nodes:
        joined = node.collective
        yield (
            (node.op, node.kind, None if node.scope is None else scopes[node.scope], node.phase),
            "" if node.kind == "op" else _NUMBER.sub("*", node.name),
            [place(value) for value in node.inputs],
            [numbers.get(other, -1) for other in node.control_inputs],
            [
                (value.dtype, value.sharding and (value.sharding.placements, value.sharding.mesh))
                for value in node.outputs
            ],
            node.writes,
            joined and (joined.kind, joined.reduction, joined.mesh),
        )
    for output in graph.outputs:
        yield output.name, place(output.value)
    for call in graph.calls:
        yield scopes[call.scope], call.class_name, call.number, len(call.parameters)
