"""Finds what ranks did together: which nodes of different parts are one collective, or one message.

Each part is drawn once for all of its ranks. So a collective of two parts is known by the parts
that have ranks in its group, and not by these ranks, which differ from group to group.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tbscope.ir.graph import Node
from tbscope.ir.nodes import sources_of
from tbscope.utils.components import in_order

__all__ = ["Joint", "find_joints"]


class Joint(NamedTuple):
    """How the nodes of several parts hang together.

    Attributes:
        collectives: Nodes of different parts that are one collective, those of the first part
            first.
        messages: What one part sends with what another one receives of it.
        order: All nodes, each after what it reads, waits for, or receives; of a collective all
            that belong to it stand together.
    """

    collectives: list[list[Node]]
    messages: list[tuple[Node, Node]]
    order: list[Node]


def find_joints(parts: Sequence[Sequence[Node]], part_of: Mapping[int, int]) -> Joint:
    """Find what the nodes of several parts have to do with each other.

    Args:
        parts: The nodes of each part, in order.
        part_of: The number of the part that shows a rank.
    """
    collectives = list(_collectives(parts, part_of))
    messages = list(_messages(parts, part_of))
    count = sum(map(len, parts))
    for as_ran in (True, False):
        order = _ordered(parts, collectives, messages, as_ran=as_ran)
        if len(order) == count:
            return Joint(collectives, messages, order)
    # No run that came to its end waits for itself: these graphs are of several runs.
    return Joint([], [], [node for nodes in parts for node in nodes])


# -- collectives ----------------------------------------------------------------------------


def _collectives(
    parts: Sequence[Sequence[Node]], part_of: Mapping[int, int]
) -> Iterator[list[Node]]:
    found: dict[Hashable, dict[int, Node]] = defaultdict(dict)
    for number, nodes in enumerate(parts):
        # Groups of one kind are told apart by their order, as a rank is in one group of each.
        groups: dict[Hashable, dict[Hashable, int]] = defaultdict(dict)
        for node in nodes:
            joined = node.collective
            if joined is None or joined.kind in ("send", "recv"):
                continue
            among = tuple(sorted({part_of[rank] for rank in joined.ranks if rank in part_of}))
            if len(among) > 1 and number in among:
                alike = groups[among, joined.mesh]
                group = alike.setdefault((joined.group, joined.ranks), len(alike))
                found[among, joined.mesh, group, joined.sequence][number] = node
    for key, by_part in found.items():
        among = key[0]  # type: ignore[index]  # A key is a tuple.
        kinds = {(one.kind, one.reduction) for node in by_part.values() if (one := node.collective)}
        if len(by_part) == len(among) and len(kinds) == 1:
            yield [by_part[number] for number in among]


def _messages(
    parts: Sequence[Sequence[Node]], part_of: Mapping[int, int]
) -> Iterator[tuple[Node, Node]]:
    sent: dict[Hashable, Node] = {}
    received: dict[Hashable, Node] = {}
    for number, nodes in enumerate(parts):
        peers: dict[Hashable, dict[int, int]] = defaultdict(dict)
        for node in nodes:
            joined = node.collective
            if joined is None or joined.peer is None or joined.kind not in ("send", "recv"):
                continue
            other = part_of.get(joined.peer)
            if other is None:
                continue
            alike = peers[other, joined.kind, joined.mesh]
            nth = alike.setdefault(joined.peer, len(alike))
            ends = (number, other) if joined.kind == "send" else (other, number)
            held = sent if joined.kind == "send" else received
            held[*ends, joined.mesh, nth, joined.sequence] = node
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
    """Return the nodes in an order in which all could run, without those that wait for themselves.

    Args:
        parts: The nodes of each part, in order.
        collectives: Nodes that are one.
        messages: What is sent with what is received.
        as_ran: Whether each part stays in its order, but for what it does not wait for at once.
    """
    together = {node: nodes for nodes in collectives for node in nodes}
    units: dict[Node, int] = {}
    members: list[Sequence[Node]] = []
    for node in (node for part in parts for node in part):
        if node not in units:
            nodes = together.get(node, [node])
            units.update(dict.fromkeys(nodes, len(members)))
            members.append(nodes)
    steps = [(units[sender], units[receiver]) for sender, receiver in messages]
    for node, unit in units.items():
        steps += ((units[other], unit) for other in sources_of(node))
    for part in parts if as_ran else ():
        for one, other in pairwise(node for node in part if not _goes_on(node)):
            if units[one] != units[other]:
                steps.append((units[one], units[other]))
    return [node for unit in in_order(len(members), steps) for node in members[unit]]


def _goes_on(node: Node) -> bool:
    """Tell whether a rank goes on before what this node does is done."""
    joined = node.collective
    return joined is not None and (joined.asynchronous or joined.kind == "recv")
