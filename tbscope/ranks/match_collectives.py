"""Matching of collectives and messages: nodes of different parts that are one operation.

A part is drawn once for all of its ranks. A collective across parts is therefore identified by the
parts that have ranks in its group, not by the ranks, which differ from group to group.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tbscope.ir.graph import Node
from tbscope.ir.nodes import sources_of
from tbscope.utils.components import in_order


class Joint(NamedTuple):
    """Connections between the nodes of several parts.

    Attributes:
        collectives: Nodes of different parts that are one collective, in the order of the parts.
        messages: Pairs of a sending node and the receiving node of another part.
        order: All nodes in topological order (inputs, control dependencies and messages); the
            nodes of one collective are adjacent.
    """

    collectives: list[list[Node]]
    messages: list[tuple[Node, Node]]
    order: list[Node]


def match_parts(parts: Sequence[Sequence[Node]], part_of: Mapping[int, int]) -> Joint:
    """Find the collectives and messages between several parts.

    Args:
        parts: The nodes of each part, in order.
        part_of: Index of the part that contains a rank.
    """
    collectives = list(_collectives(parts, part_of))
    messages = list(match_messages(parts, part_of))
    count = sum(map(len, parts))
    # The recorded order of the parts comes first; if it makes a cycle, only the data flow counts.
    for as_ran in (True, False):
        order = _ordered(parts, collectives, messages, as_ran=as_ran)
        if len(order) == count:
            return Joint(collectives, messages, order)
    # A finished run contains no cycle, so these graphs come from different runs.
    return Joint([], [], [node for nodes in parts for node in nodes])


# -- collectives ----------------------------------------------------------------------------


def _collectives(
    parts: Sequence[Sequence[Node]], part_of: Mapping[int, int]
) -> Iterator[list[Node]]:
    nodes_by_key: dict[Hashable, dict[int, Node]] = defaultdict(dict)
    for number, nodes in enumerate(parts):
        # A rank is in one group of each kind, so a group is identified by its order of appearance.
        groups: dict[Hashable, dict[Hashable, int]] = defaultdict(dict)
        for node in nodes:
            collective = node.collective
            if collective is None or collective.is_message:
                continue
            among = tuple(sorted({part_of[rank] for rank in collective.ranks if rank in part_of}))
            if len(among) > 1 and number in among:
                group_numbers = groups[among, collective.mesh]
                group = group_numbers.setdefault(
                    (collective.group, collective.ranks), len(group_numbers)
                )
                nodes_by_key[among, collective.mesh, group, collective.sequence][number] = node
    for key, by_part in nodes_by_key.items():
        among = key[0]  # type: ignore[index]  # A key is a tuple.
        kinds = {
            (info.kind, info.reduction) for node in by_part.values() if (info := node.collective)
        }
        if len(by_part) == len(among) and len(kinds) == 1:
            yield [by_part[number] for number in among]


def match_messages(
    parts: Sequence[Sequence[Node]], part_of: Mapping[int, int]
) -> Iterator[tuple[Node, Node]]:
    """Yield each node that sends to another part, with the node that receives there."""
    sent: dict[Hashable, Node] = {}
    received: dict[Hashable, Node] = {}
    for number, nodes in enumerate(parts):
        peers: dict[Hashable, dict[int, int]] = defaultdict(dict)
        for node in nodes:
            collective = node.collective
            if collective is None or collective.peer is None or not collective.is_message:
                continue
            peer_part = part_of.get(collective.peer)
            if peer_part is None:
                continue
            peer_numbers = peers[peer_part, collective.kind, collective.mesh]
            nth = peer_numbers.setdefault(collective.peer, len(peer_numbers))
            sides = (number, peer_part) if collective.kind == "send" else (peer_part, number)
            messages = sent if collective.kind == "send" else received
            messages[*sides, collective.mesh, nth, collective.sequence] = node
    for key, node in sent.items():
        if key in received:
            yield node, received[key]


# -- order ----------------------------------------------------------------------------------


def _ordered(
    parts: Sequence[Sequence[Node]],
    collectives: Sequence[Sequence[Node]],
    messages: Sequence[tuple[Node, Node]],
    *,
    as_ran: bool,
) -> list[Node]:
    """Return the nodes in topological order, without nodes in cycles or behind cycles.

    Args:
        parts: The nodes of each part, in order.
        collectives: Nodes that are one collective.
        messages: Pairs of a sending and a receiving node.
        as_ran: Whether each part keeps its own order, except for nodes that do not block.
    """
    together = {node: nodes for nodes in collectives for node in nodes}
    units: dict[Node, int] = {}
    members: list[Sequence[Node]] = []
    for node in (node for part in parts for node in part):
        if node not in units:
            nodes = together.get(node, [node])
            units.update(dict.fromkeys(nodes, len(members)))
            members.append(nodes)
    edges = [(units[sender], units[receiver]) for sender, receiver in messages]
    for node, unit in units.items():
        edges += ((units[source], unit) for source in sources_of(node))
    for part in parts if as_ran else ():
        for earlier, later in pairwise(node for node in part if not _goes_on(node)):
            if units[earlier] != units[later]:
                edges.append((units[earlier], units[later]))
    return [node for unit in in_order(len(members), edges) for node in members[unit]]


def _goes_on(node: Node) -> bool:
    """Whether a rank continues before this node is finished: an asynchronous node or a receive."""
    collective = node.collective
    return collective is not None and (collective.asynchronous or collective.kind == "recv")
