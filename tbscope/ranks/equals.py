"""Ranks for which the graph of another one stands: those beside it along dimensions of a mesh."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

from tbscope.errors import ArgumentError
from tbscope.ir.facts import dimensions_at
from tbscope.ir.graph import Graph
from tbscope.words import shown

__all__ = ["check_dimensions", "with_equals"]

_FIX = 'alike=("dp", "tp"), where each stage of a pipeline along "pp" is given'


def check_dimensions(alike: Any) -> None:
    """Raise ArgumentError unless these can be the dimensions of a mesh."""
    if type(alike) in (list, tuple) and all(type(name) is str for name in alike):
        return
    raise ArgumentError(
        f"ranks cannot be alike along {shown(alike)}",
        why="alike lists dimensions of the device mesh by their names",
        fix=_FIX,
    )


def with_equals(graphs: Sequence[Graph], alike: Sequence[str]) -> Iterator[Graph]:
    """Yield graphs, each beside those of all ranks for which it stands.

    Args:
        graphs: The graphs of ranks. What they hold is not copied.
        alike: Dimensions of the device mesh: ranks that differ in their places along these alone
            did the same.
    Raises:
        ArgumentError: A graph has no such dimension, or its mesh does not hold all ranks in order.
    """
    for graph in graphs:
        names = [one.name for one in graph.mesh]
        sizes = {one.name: one.size for one in graph.mesh}
        missing = [name for name in alike if name not in sizes]
        if missing:
            raise ArgumentError(
                f"the graph of rank {graph.rank} has no dimension {shown(missing[0])} of a mesh",
                why=f"its mesh has {', '.join(names) or 'none'}",
                fix="give those of its mesh, or trace it with mesh={'dp': 4, 'tp': 2}",
            )
        if prod(sizes.values()) != graph.world_size or (
            dimensions_at(graph.rank, sizes) != graph.mesh
        ):
            raise ArgumentError(
                f"nothing tells for which ranks the graph of rank {graph.rank} stands",
                why=f"its mesh ({_sizes_text(sizes)}) does not hold all {graph.world_size} ranks "
                "in their order",
                fix="give the graph of each rank, and leave alike out",
            )
        places = [range(one.size) if one.name in alike else [one.coordinate] for one in graph.mesh]
        for coordinates in product(*places):
            rank = 0
            for size, coordinate in zip(sizes.values(), coordinates, strict=True):
                rank = rank * size + coordinate
            yield replace(graph, rank=rank)


def _sizes_text(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
