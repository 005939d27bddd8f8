"""Which ranks ran the same: those whose graphs have one structure, whatever their sizes are.

A structure is what a graph is without what may differ from rank to rank of one program: sizes,
constants, devices, times, and with whom a collective is done. Ranks of a pipeline are alike if
those are, too, to which they send and from which they receive; in a ring nobody is first or last.
"""

import hashlib
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence

from tbscope.ir.graph import Graph, Node, Value
from tbscope.ir.scopes import Scope

__all__ = ["groups_of", "is_message", "sizes_of"]

# A step of a path that is a number.
_NUMBER = re.compile(r"(?<![^.])[0-9]+(?![^.])")
_MESSAGES = frozenset({"send", "recv"})


def is_message(node: Node) -> bool:
    """Tell whether a node sends to one rank, or receives from one."""
    return node.collective is not None and node.collective.kind in _MESSAGES


def groups_of(graphs: Sequence[Graph]) -> list[list[Graph]]:
    """Return the graphs of different ranks in groups that ran the same.

    Args:
        graphs: One for each rank.
    Returns:
        Groups in the order of their first ranks, each in the order of its ranks.
    """
    ordered = sorted(graphs, key=lambda graph: graph.rank)
    # Ranks that recorded the same may share all but what tells them apart.
    rows: dict[tuple[int, bool], str] = {}
    rings = _rings(ordered)
    classes: dict[int, Hashable] = {graph.rank: _structure(graph, rows, rings) for graph in ordered}
    peers = {graph.rank: _peers(graph) for graph in ordered}
    count = len(set(classes.values()))
    while True:
        # Whoever talks to others than its like is no longer alike, and so may be who talks to it.
        refined = {
            rank: (of_rank, tuple([classes.get(peer) for peer in peers[rank]]))
            for rank, of_rank in classes.items()
        }
        numbers: dict[Hashable, int] = {}
        for key in refined.values():
            numbers.setdefault(key, len(numbers))
        classes = {rank: numbers[key] for rank, key in refined.items()}
        if len(numbers) == count:
            break
        count = len(numbers)
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


def _rings(graphs: Sequence[Graph]) -> set[str]:
    """Return the dimensions of the mesh along which each rank sends as far on as all others.

    Past the last rank comes the first one again. In a pipeline somebody has nobody to send to.
    """
    steps: dict[str, dict[int, set[Hashable]]] = {}
    ways: dict[Hashable, set[int]] = {}
    around: set[str] = set()
    for graph in graphs:
        for joined in (node.collective for node in graph.nodes if is_message(node)):
            if joined is None or joined.peer not in joined.ranks or graph.rank not in joined.ranks:
                continue
            way = joined.ranks.index(joined.peer) - joined.ranks.index(graph.rank)
            step = joined.kind, way % len(joined.ranks)
            steps.setdefault(joined.mesh, {}).setdefault(graph.rank, set()).add(step)
            ways.setdefault((joined.mesh, *step), set()).add(way)
            if len(ways[joined.mesh, *step]) > 1:
                around.add(joined.mesh)
    return {
        mesh
        for mesh in around
        if len(steps[mesh]) == len(graphs) and len({*map(frozenset, steps[mesh].values())}) == 1
    }


def _structure(graph: Graph, known: dict[tuple[int, bool], str], rings: set[str]) -> Hashable:
    """Return what graphs of one structure share, and no others.

    Names tell stages of a pipeline apart, which may be equal in all but the numbers of their
    layers. Where there are no stages, what differs in numbers alone is the same: experts.
    """
    meshes = {node.collective.mesh for node in graph.nodes if is_message(node) and node.collective}
    along = [(one.name, one.coordinate) for one in graph.mesh if one.name in meshes - rings]
    named = bool(meshes) and not along
    key = id(graph.nodes), named
    if key not in known:
        text = hashlib.sha256()
        for row in _rows(graph, named=named):
            text.update(repr(row).encode())
        known[key] = text.hexdigest()
    return tuple(along), known[key]


def _rows(graph: Graph, *, named: bool) -> Iterator[Hashable]:
    scopes = {scope: number for number, scope in enumerate(graph.scopes())}
    for scope in scopes:
        yield _scope_row(scope, scopes, named=named)
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        yield _node_row(node, scopes, numbers)
    for output in graph.outputs:
        yield output.name, _place(output.value, numbers)
    for call in graph.calls:
        yield scopes[call.scope], call.class_name, call.number, len(call.parameters)


def _scope_row(scope: Scope, scopes: Mapping[Scope, int], *, named: bool) -> Hashable:
    part, above = scope.part, -1 if scope.parent is None else scopes[scope.parent]
    attribute = part.attribute
    if attribute is not None and attribute.isdecimal() and not named:
        attribute = ""
    return above, part.label, attribute, part.index, scope.kind, scope.phase


def _node_row(node: Node, scopes: Mapping[Scope, int], numbers: Mapping[Node, int]) -> Hashable:
    joined = node.collective
    return (
        (node.op, node.kind, None if node.scope is None else scopes[node.scope], node.phase),
        "" if node.kind == "op" else _NUMBER.sub("*", node.name),
        [_place(value, numbers) for value in node.inputs],
        [numbers.get(other, -1) for other in node.control_inputs],
        [(value.dtype, _placements(value)) for value in node.outputs],
        node.writes,
        None if joined is None else (joined.kind, joined.reduction, joined.mesh),
    )


def _placements(value: Value) -> Hashable:
    return None if value.sharding is None else (value.sharding.placements, value.sharding.mesh)


def _place(value: Value, numbers: Mapping[Node, int]) -> tuple[int, int]:
    return numbers.get(value.producer, -1), value.index
