"""What each rank has of the whole: what it holds, computes and moves, and its stage."""

from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

from tbscope.analysis.costs import (
    bytes_here,
    communication_bytes,
    flops_here,
    numbers_here,
)
from tbscope.ir.graph import Graph, Parameter
from tbscope.ir.metadata import Part
from tbscope.ir.module_tree import numbers_in
from tbscope.ir.scope_io import OPERATIONS
from tbscope.ranks.rank_classes import is_message

__all__ = ["figures_of", "whole_model", "with_stages"]


def figures_of(graph: Graph) -> dict[str, int]:
    """Return what one rank holds, computes and moves, by the names of the summary's columns."""
    held = [one for _, one in _parameters(graph)]
    operations = [node for node in graph.nodes if node.kind in OPERATIONS]
    return {
        "parameters": sum(map(numbers_here, held)),
        "parameter_bytes": sum(map(bytes_here, held)),
        "flops": sum(map(flops_here, operations)),
        "activation_bytes": sum(node.allocated_bytes for node in operations),
        "communication_bytes": sum(communication_bytes(graph).values()),
    }


def whole_model(parts: Sequence[tuple[Part, Sequence[Graph]]]) -> dict[str, int]:
    """Return what the model of all ranks holds, each parameter whole and once.

    A parameter of one name is one, on however many ranks it is; in another stage of a pipeline
    it is another one.
    """
    found: dict[tuple[int | None, str], Parameter] = {}
    for part, graphs in parts:
        for graph in graphs:
            for name, one in _parameters(graph):
                found.setdefault((part.stage, name), one)
    return {
        "model_parameters": sum(map(numbers_in, found.values())),
        "model_parameter_bytes": sum(one.size_bytes for one in found.values()),
    }


def _parameters(graph: Graph) -> Iterator[tuple[str, Parameter]]:
    """Yield the parameters of a graph with their names; of those that are tied, the first."""
    tied: set[int] = set()
    for module in graph.modules:
        for one in module.parameters:
            if one.kind == "parameter" and one.number not in tied:
                # Where nothing tells which ones are tied, each counts.
                if one.number >= 0:
                    tied.add(one.number)
                yield f"{module.name}.{one.name}", one


def with_stages(parts: Sequence[Part], graphs: Sequence[Graph]) -> list[Part]:
    """Return parts with the numbers of their stages, where they are a pipeline.

    Args:
        parts: The parts of a run.
        graphs: The graph of the first rank of each.
    """
    part_of = {rank: number for number, part in enumerate(parts) for rank in part.ranks}
    before: dict[int, set[int]] = {}
    for number, graph in enumerate(graphs):
        met: set[int] = set()
        for node in graph.nodes:
            joined = node.collective
            if joined is None or joined.peer not in part_of or not is_message(node):
                continue
            other = part_of[joined.peer]
            if other == number:
                # Each talks to its like: a ring, and no pipeline.
                return list(parts)
            if other not in met:
                # The first message with another part tells which one comes first.
                met.add(other)
                one, next_one = (number, other) if joined.kind == "send" else (other, number)
                before.setdefault(one, set())
                before.setdefault(next_one, set()).add(one)
    stages: dict[int, int] = {}
    try:
        for number in TopologicalSorter(before).static_order():
            stages[number] = max((stages[other] + 1 for other in before[number]), default=0)
    except CycleError:
        return list(parts)
    return [
        part._replace(stage=stages[number]) if number in stages else part
        for number, part in enumerate(parts)
    ]
