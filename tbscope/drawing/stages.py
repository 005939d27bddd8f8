"""Stages: the run of a model cut into parts of equal weight, one for each of several devices.

A stage is what runs one after the other from one moment to another, as in a pipeline. Of all
ways to cut a run into so many, the one is taken whose heaviest stage is the lightest.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import Literal, TypeAlias, get_args

from tbscope.checks import is_word
from tbscope.errors import ArgumentError
from tbscope.figures.costs import node_costs
from tbscope.ir.graph import Graph, Node
from tbscope.ir.regions import OPERATIONS, OWNED, Nearest
from tbscope.ir.scopes import Scope
from tbscope.words import shown

__all__ = ["Stages", "Weight", "cut_evenly", "stage_labels", "stages"]

Weight: TypeAlias = Literal["flops", "bytes", "time"]
"""What weighs: floating-point operations, the bytes that a device has to hold, or the time."""

# As many as somebody may have devices.
_MOST_STAGES = 1_000


@dataclass(frozen=True, slots=True)
class Stages:
    """What `stages` gives: a way to colour a graph.

    Attributes:
        count: How many stages.
        by: What weighs.
    """

    count: int
    by: Weight


def stages(count: int, by: Weight = "flops") -> Stages:
    """Colour a graph by stages of equal weight, for so many devices: `color_by=stages(4)`.

    The operations are cut in the order in which they ran, never within a module that calls no
    others, so that the heaviest stage is as light as can be. The legend tells the share of each.

    Args:
        count: How many stages, from 1 to 1,000.
        by: What weighs: "flops"; "bytes" of results, and of the parameters and buffers that a
            stage is the first to read; or the "time" that was measured (`profile=True`).
    Raises:
        ArgumentError: One of them is something else.
    """
    if type(count) is not int or not 1 <= count <= _MOST_STAGES:
        raise ArgumentError(
            f"a run cannot be cut into {shown(count)} stages",
            why=f"the number of stages is an int, from 1 to {_MOST_STAGES:,}",
            fix="stages(4)",
        )
    if not is_word(by, get_args(Weight)):
        raise ArgumentError(
            f"stages cannot be balanced by {shown(by)}",
            why=f"what weighs is one of {', '.join(map(repr, get_args(Weight)))}",
            fix="stages(4, by='flops')",
        )
    return Stages(count, by)


def stage_labels(
    recorded: Graph, asked: Stages, drawn: Graph, originals: Mapping[Node, Node]
) -> dict[Node, str]:
    """Return the stage of each drawn node: `stage 1 (24 %)`.

    Args:
        recorded: The graph as it was recorded.
        asked: How many stages, and what weighs.
        drawn: The graph as it is drawn.
        originals: The node as it was recorded of which each drawn one is the copy. One that
            is the copy of none has the stage of most that ran in its scope.
    Raises:
        ArgumentError: Nothing in the graph has such a weight.
    """
    weights = _weights(recorded, asked.by)
    total = sum(weights.values())
    if not total:
        raise ArgumentError(
            f"the graph of {recorded.name} cannot be cut into stages by {asked.by!r}",
            why="it has no times" if asked.by == "time" else f"nothing in it has {asked.by}",
            fix="graph = tbscope.trace(model, input, profile=True)"
            if asked.by == "time"
            else "stages(4, by='bytes')",
        )
    units = _units(recorded, weights)
    sums = [sum(weights[node] for node in unit) for unit in units]
    starts = [0, *cut_evenly(sums, min(asked.count, len(units))), len(units)]
    labels: dict[Node, str] = {}
    for number, (start, end) in enumerate(pairwise(starts)):
        label = f"stage {number + 1} ({sum(sums[start:end]) / total:.0%})".replace("%", " %")
        for unit in units[start:end]:
            labels.update(dict.fromkeys(unit, label))
    of_scope = _of_scopes(labels)
    _add_owned(recorded, labels)
    found = {}
    for node in drawn.nodes:
        label_or_none = labels.get(originals.get(node, node))
        if label_or_none is None and node.kind in OPERATIONS:
            label_or_none = of_scope(node.scope)
        if label_or_none is not None:
            found[node] = label_or_none
    return found


def _weights(graph: Graph, by: Weight) -> dict[Node, int]:
    """Return the weight of each operation, as a whole number."""
    if by == "time":
        operations = (node for node in graph.nodes if node.kind in OPERATIONS)
        return {node: round((node.duration_us or 0) * 1e3) for node in operations}
    costs = node_costs(graph, backward=False)
    if by == "flops":
        return {node: cost.flops for node, cost in costs.items()}
    weights = {node: cost.activation_bytes for node, cost in costs.items()}
    read: set[Node] = set()
    for node in weights:
        for source in dict.fromkeys(value.producer for value in node.inputs):
            if source.kind in OWNED and source not in read:
                read.add(source)
                weights[node] += source.outputs[0].size_bytes or 0
    return weights


def _units(graph: Graph, weights: Mapping[Node, int]) -> list[list[Node]]:
    """Return the operations in order, those of one leaf module together."""
    holders = {call.scope.parent for call in graph.calls}
    leaves = {call.scope for call in graph.calls}.difference(holders)
    leaf_around = Nearest[Scope](lambda scope: scope if scope in leaves else None)
    nodes = [node for node in graph.nodes if node in weights]
    grouped = groupby(nodes, key=lambda node: leaf_around(node.scope) or node)
    return [list(unit) for _, unit in grouped]


def cut_evenly(weights: Sequence[int], count: int) -> list[int]:
    """Return where each part but the first begins, so that the heaviest is as light as can be.

    Args:
        weights: What is cut, in order: numbers from 0 on.
        count: How many parts.
    Returns:
        `count - 1` places, in order; no part is empty where there is enough for all.
    """
    sums = [0, *accumulate(weights)]
    low, high = max(weights, default=0), sums[-1]
    while low < high:
        middle = (low + high) // 2
        if len(list(_filled(sums, middle))) <= count:
            high = middle
        else:
            low = middle + 1
    # How far to the right each part may begin at the earliest, so that the others have room.
    earliest = _earliest(sums, low, count)
    places: list[int] = []
    start = 0
    for number in range(1, count):
        left = count - number
        latest = min(bisect_right(sums, sums[start] + low) - 1, len(weights) - left)
        share = sums[start] + (sums[-1] - sums[start]) / (left + 1)
        # What weighs nothing stays with what ran before it.
        wish = bisect_right(sums, _nearest(sums, share)) - 1
        start = min(max(wish, earliest[number], start + 1), max(latest, start))
        places.append(start)
    return places


def _nearest(sums: Sequence[int], wish: float) -> int:
    at = min(bisect_left(sums, wish), len(sums) - 1)
    return min(sums[max(at - 1, 0)], sums[at], key=lambda found: abs(found - wish))


def _filled(sums: Sequence[int], most: int) -> Iterator[int]:
    """Yield where each part ends, if each is filled as far as it may be."""
    end = 0
    while end < len(sums) - 1:
        end = bisect_right(sums, sums[end] + most) - 1
        yield end


def _earliest(sums: Sequence[int], most: int, count: int) -> list[int]:
    """Return where each part begins at the earliest so that what follows has room."""
    begins = [0] * (count + 1)
    begins[count] = len(sums) - 1
    for number in range(count - 1, -1, -1):
        begins[number] = bisect_left(sums, sums[begins[number + 1]] - most)
    return begins


def _of_scopes(labels: Mapping[Node, str]) -> Nearest[str]:
    """Return for each scope the label that most of what ran right in it has."""
    counts: dict[Scope | None, Counter[str]] = defaultdict(Counter)
    for node, label in labels.items():
        counts[node.scope][label] += 1
    most = {scope: counted.most_common(1)[0][0] for scope, counted in counts.items()}
    return Nearest(most.get)


def _add_owned(graph: Graph, labels: dict[Node, str]) -> None:
    """Add parameters and the like, each with the stage of what reads it first."""
    for node in graph.nodes:
        if node.kind in OPERATIONS and node in labels:
            for value in node.inputs:
                if value.producer.kind in OWNED:
                    labels.setdefault(value.producer, labels[node])
