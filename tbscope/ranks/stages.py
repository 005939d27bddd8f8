"""Stages of a pipeline: the calls of a rank that messages join to those of other ranks.

A rank with one stage sends and receives for all of its calls. A schedule that interleaves gives a
rank several: calls of different modules, between which no gradient flows on the rank itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple, TypeAlias

from tbscope.ir.call_blocks import Block, CallBlocks, block_property, path_of_call
from tbscope.ir.graph import Graph, Node
from tbscope.ir.metadata import Part
from tbscope.ir.scopes import Scope, ScopePart
from tbscope.ranks.match_collectives import match_messages

# Operations at which a gradient ends.
_DETACHED = ("detach", "detach_")
_Stage: TypeAlias = tuple[int, Block | None]


class RankStages(NamedTuple):
    """The stages of the ranks of one part.

    Attributes:
        numbers: The numbers of the stages, in their order; empty without a pipeline.
        of_node: The stage of an operation, as far as it is of one; empty for a rank with one stage.
    """

    numbers: tuple[int, ...] = ()
    of_node: Mapping[Node, int] = {}


def find_stages(parts: Sequence[Part], graphs: Sequence[Graph]) -> list[RankStages]:
    """Return the stages of each part of a run; none of them has any if the run is no pipeline.

    Args:
        parts: The parts of a run.
        graphs: The graph of the first rank of each part.
    """
    part_of = {rank: number for number, part in enumerate(parts) for rank in part.ranks}
    nothing = [RankStages() for _ in parts]
    # A stage is its part, and its calls if the part has several stages.
    before: dict[_Stage, set[_Stage]] = {}
    own: list[dict[Node, Block]] = []
    for number, graph in enumerate(graphs):
        peers = {part_of.get(rank) for _, rank, _ in _messages(graph)}
        if number in peers:
            # A message within a part means a ring, not a pipeline.
            return nothing
        of_node, steps = _calls_by_stage(graph) if peers else ({}, [])
        own.append(of_node)
        for first, second in steps:
            before.setdefault((number, second), set()).add((number, first))
    pairs = [*match_messages([graph.nodes for graph in graphs], part_of)]
    peer_of = dict(pairs) | {receiver: sender for sender, receiver in pairs}
    for number, graph in enumerate(graphs):
        seen: set[_Stage] = set()
        for node, rank, is_sent in _messages(graph):
            peer, other = part_of.get(rank), peer_of.get(node)
            if peer is None or (own[number] and node not in own[number]):
                continue
            stage = number, own[number].get(node)
            peer_stage = peer, None if other is None else own[peer].get(other)
            if peer_stage not in seen and (peer_stage[1] is not None or not own[peer]):
                # The direction of the first message between two stages determines their order.
                seen.add(peer_stage)
                earlier, later = (stage, peer_stage) if is_sent else (peer_stage, stage)
                before.setdefault(earlier, set())
                before.setdefault(later, set()).add(earlier)
    numbers: dict[_Stage, int] = {}
    try:
        for stage in TopologicalSorter(before).static_order():
            numbers[stage] = max((numbers[each] + 1 for each in before[stage]), default=0)
    except CycleError:
        return nothing
    found = []
    for number, of_node in enumerate(own):
        stages = {node: numbers[number, block] for node, block in of_node.items()}
        alone = [numbers[number, None]] if (number, None) in numbers else []
        found.append(RankStages(tuple(sorted(alone or {*stages.values()})), stages))
    return found


def _messages(graph: Graph) -> Iterator[tuple[Node, int, bool]]:
    """Yield each message of a rank: the node, the other rank, and whether it is sent."""
    for node in graph.nodes:
        message = node.collective
        if message is not None and message.is_message and message.peer is not None:
            yield node, message.peer, message.kind == "send"


def _calls_by_stage(graph: Graph) -> tuple[dict[Node, Block], list[tuple[Block, Block]]]:
    """Return the stage of each operation of a rank, and pairs of stages that follow on the rank.

    The first is empty for a rank with one stage.
    """
    blocks, block_of = CallBlocks(graph), block_property()
    calls: dict[tuple[ScopePart, ...], Scope] = {}
    for block in blocks.operations.values():
        if isinstance(block, Scope):
            blocks.join(calls.setdefault(path_of_call(block), block), block)
    # Micro batches call the same modules.
    modules: dict[int, Scope] = {}
    for call in graph.calls:
        outer = block_of(call.scope)
        numbers = [each.number for each in call.parameters if each.number >= 0]
        if outer is not None and numbers:
            blocks.join(modules.setdefault(min(numbers), outer), outer)
    stages = {blocks.joined(scope) for scope in modules.values()}
    blocks.attach(stages)
    steps: list[tuple[Block, Block]] = []
    for source, node, first, second in blocks.edges():
        if node.phase == "forward" and first in stages and second in stages:
            if source.op in _DETACHED or node.op in _DETACHED:
                steps.append((first, second))
            else:
                blocks.join(first, second)
                stages.discard(second)
    if len(stages) < 2:
        return {}, []
    blocks.attach(stages)
    owned = {node: blocks.of(node) for node in blocks.operations if blocks.of(node) in stages}
    joined = [(blocks.joined(first), blocks.joined(second)) for first, second in steps]
    return owned, joined
