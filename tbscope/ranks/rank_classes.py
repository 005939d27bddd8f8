"""Classes of equivalent ranks: their graphs have the same structure, whatever their sizes are.

A structure is a graph without the properties that may differ between ranks of one program: sizes,
constants, devices, times, the numbers of modules in lists (experts), the ranks of a collective, and
the index of a part of a tensor (`x.chunk(4)[rank]`).
Ranks of a pipeline are equivalent only if their peers are, too: the classes are refined until they
are stable. In a ring no rank is first or last, so all its ranks are equivalent.
"""

import hashlib
import re
from collections.abc import Hashable, Iterator, Sequence
from itertools import islice, takewhile

from tbscope.ir.graph import Graph, Node, Value
from tbscope.ir.scopes import self_and_ancestors

# A decimal part of a dotted name, and a member of a list in the path of a scope.
_NUMBER = re.compile(r"(?<![^.])[0-9]+(?![^.])")
_MEMBER = re.compile(r"\[[0-9]+\]")


def is_message(node: Node) -> bool:
    """Whether a node sends to one rank, or receives from one."""
    return node.collective is not None and node.collective.is_message


def groups_of(graphs: Sequence[Graph]) -> list[list[Graph]]:
    """Return the graphs of different ranks in groups of equal structure.

    Args:
        graphs: One graph for each rank, in the order of ranks.
    Returns:
        Groups in the order of their first ranks, each in the order of its ranks.
    """
    # Graphs of different ranks may share their node list; each list is hashed once.
    digests: dict[int, str] = {}
    for graph in graphs:
        if id(graph.nodes) not in digests:
            digests[id(graph.nodes)] = structure_of(graph)
    classes: dict[int, Hashable] = {graph.rank: digests[id(graph.nodes)] for graph in graphs}
    peers = {graph.rank: _peers(graph) for graph in graphs}
    while True:
        # A rank with peers of another class leaves its class, which may split its peers' class in
        # turn.
        refined = {
            rank: (of_rank, tuple([classes.get(peer) for peer in peers[rank]]))
            for rank, of_rank in classes.items()
        }
        numbers = {key: number for number, key in enumerate(dict.fromkeys(refined.values()))}
        stable = len(numbers) == len({*classes.values()})
        classes = {rank: numbers[key] for rank, key in refined.items()}
        if stable:
            break
    groups: dict[Hashable, list[Graph]] = {}
    for graph in graphs:
        groups.setdefault(classes[graph.rank], []).append(graph)
    return list(groups.values())


def structure_of(graph: Graph) -> str:
    """Return a digest that is equal for graphs of equal structure."""
    text = hashlib.sha256()
    for row in _rows(graph):
        text.update(repr(row).encode())
    return text.hexdigest()


def shared_nodes(graphs: Sequence[Graph]) -> int:
    """Return the number of leading nodes that are equal in graphs of different structure.

    They are whole phases of a training step: with the first operation that differs, the whole
    backward pass or optimizer step differs that contains it, and all after it. In a forward pass,
    the number is 0.
    """
    keys = []
    for graph in graphs:
        rows = islice(_rows(graph), len([*graph.scopes()]), None)
        paths = [_MEMBER.sub("[]", str(node.scope)) for node in graph.nodes]
        keys.append([*zip(map(repr, rows), paths, strict=False)])
    equal = takewhile(lambda same: len({*same}) == 1, zip(*keys, strict=False))
    shared = start = len([*equal])
    for graph in graphs:
        roots = [[None, *self_and_ancestors(node.scope)][-1] for node in graph.nodes]
        if shared < len(roots):
            root = roots[shared]
            is_phase = root is not None and root.phase != "forward"
            start = min(start, roots.index(root)) if is_phase else 0
    return start


def parts_of(node: Node) -> list[str]:
    """Return the parts of split tensors that a node reads: `chunk:2`."""
    return [f"{value.producer.op}:{value.index}" for value in node.inputs if _is_part(value)]


def _is_part(value: Value) -> bool:
    """Whether a value is one of several views of a tensor, as `chunk` and `unbind` return them."""
    node = value.producer
    return len(node.outputs) > 1 == len(node.inputs) and not node.allocated_bytes


def sizes_of(node: Node) -> tuple[Hashable, ...]:
    """Return the sizes of a node's outputs; of a sharded tensor the sizes of the local shard."""
    return tuple(
        [value.shape if value.sharding is None else value.sharding.shape for value in node.outputs]
    )


def _peers(graph: Graph) -> list[int]:
    """Return the peer rank of each message of a rank, in order."""
    messages = (node.collective for node in graph.nodes if is_message(node))
    return [
        message.peer for message in messages if message is not None and message.peer is not None
    ]


def _rows(graph: Graph) -> Iterator[Hashable]:
    """Yield rows that are equal for two graphs if and only if they have the same structure."""
    scopes = {scope: number for number, scope in enumerate(graph.scopes())}
    for scope in scopes:
        part, parent = scope.part, -1 if scope.parent is None else scopes[scope.parent]
        numbered = part.attribute is not None and part.attribute.isdecimal()
        attribute = "" if numbered else part.attribute
        yield parent, part.label, attribute, part.index, scope.kind, scope.phase
    numbers = {node: number for number, node in enumerate(graph.nodes)}

    def position(value: Value) -> tuple[int, int]:
        return numbers[value.producer], -1 if _is_part(value) else value.index

    for node in graph.nodes:
        collective = node.collective
        yield (
            (node.op, node.kind, None if node.scope is None else scopes[node.scope], node.phase),
            "" if node.kind == "op" else _NUMBER.sub("*", node.name),
            [position(value) for value in node.inputs],
            [numbers[source] for source in node.control_inputs],
            [
                (value.dtype, value.sharding and (value.sharding.placements, value.sharding.mesh))
                for value in node.outputs
            ],
            node.writes,
            collective and (collective.kind, collective.reduction, collective.mesh),
        )
    for output in graph.outputs:
        yield output.name, position(output.value)
    for call in graph.calls:
        yield scopes[call.scope], call.class_name, call.number, len(call.parameters)
