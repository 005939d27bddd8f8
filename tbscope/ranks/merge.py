"""Merges the graphs of several ranks into one: what ran the same is drawn once.

Where all ranks ran the same, the graph is that of the first one, and tells what differs. Else each
part stands in a box of its own, and what ranks did together joins the boxes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

from tbscope.checks import check_truth
from tbscope.errors import ArgumentError
from tbscope.ir.facts import dimensions_at, ranks_text
from tbscope.ir.graph import Graph, require_graph
from tbscope.ir.invariants import check_invariants
from tbscope.ranks.alike import groups_of
from tbscope.ranks.asked import check_unfolded
from tbscope.ranks.sides import side_by_side
from tbscope.words import error_text, shown

__all__ = ["merge_ranks"]


def merge_ranks(
    graphs: Iterable[Graph], *, unfolded: bool = False, alike: Sequence[str] = ()
) -> Graph:
    """Merge the graphs of several ranks of one run into one graph.

    Args:
        graphs: What each rank recorded, in any order; of each rank one. They stay as they are.
        unfolded: Whether each rank has a box of its own, of up to 64; else ranks that ran the
            same are drawn once, and what differs between them is told.
        alike: Dimensions of the device mesh along which all ranks did the same, so that one of
            them is given for all: `("dp", "tp")` for one rank of each stage along "pp".
    Returns:
        A new graph; `parts` tells which ranks it shows. The device of each value begins with the
        ranks that hold it: `ranks 0-7 cuda:0`.
    Raises:
        ArgumentError: There is no graph, two are of one rank, one is merged already, there are
            too many to be drawn unfolded, or the mesh has no such dimension.
        GraphError: A graph breaks an invariant.
    """
    check_truth("unfolded", unfolded)
    if type(alike) not in (list, tuple) or not all(type(name) is str for name in alike):
        raise ArgumentError(
            f"ranks cannot be alike along {shown(alike)}",
            why="alike lists dimensions of the device mesh by their names",
            fix='alike=("dp", "tp"), where each stage of a pipeline along "pp" is given',
        )
    ordered = _checked(graphs, alike)
    if unfolded:
        check_unfolded(len(ordered))
    groups = [[graph] for graph in ordered] if unfolded else groups_of(ordered)
    for group in groups:
        check_invariants(group[0])
    merged = side_by_side(groups)
    merged.rank = ordered[0].rank
    merged.world_size = max(ordered[-1].rank + 1, *[graph.world_size for graph in ordered])
    merged.mesh = ordered[0].mesh
    return merged


def _checked(graphs: Iterable[Graph], alike: Sequence[str]) -> list[Graph]:
    given: Any = graphs
    why, listed = "it merges what several processes recorded", []
    try:
        listed = list(given) if not isinstance(given, Mapping) else []
    except Exception as error:  # noqa: BLE001  Whatever it is, it lists no graphs.
        why += f"; to list it raised {error_text(error)}"
    others = [one for one in listed if not isinstance(one, Graph)]
    if others:
        why += f"; it holds {shown(others[0])}"
    if not listed or others:
        raise ArgumentError(
            f"merge_ranks takes the graphs of ranks, and was given {shown(given)}",
            why=why,
            fix="tbscope.merge_ranks([tbscope.load(f'rank{n}.json') for n in range(8)])",
        )
    seen: dict[int, str] = {}
    for graph in listed:
        require_graph(graph, "merge_ranks")
        if graph.parts:
            ranks = ranks_text(rank for part in graph.parts for rank in part.ranks)
            raise ArgumentError(
                f"merge_ranks was given a graph that is merged already, of {ranks}",
                why="it merges what each rank recorded",
                fix="give the graphs of all ranks at once",
            )
    ordered = sorted(_with_equals(listed, alike) if alike else listed, key=lambda graph: graph.rank)
    for graph in ordered:
        if graph.rank in seen:
            raise ArgumentError(
                f"merge_ranks was given two graphs of rank {graph.rank}: "
                f"of {seen[graph.rank]} and of {graph.name}",
                why="each rank of a run has one graph",
                fix="leave that dimension out of alike along which they differ"
                if alike
                else "give each another rank: graph.rank = 1",
            )
        seen[graph.rank] = graph.name
    return ordered


def _with_equals(graphs: Sequence[Graph], alike: Sequence[str]) -> Iterator[Graph]:
    """Yield graphs, each beside those of all ranks for which it stands.

    Args:
        graphs: The graphs of ranks. What they hold is not copied.
        alike: Dimensions of the device mesh: ranks that differ in their places along these alone
            did the same.
    Raises:
        ArgumentError: A graph has no such dimension, or its mesh does not hold all ranks in order.
    """
    for graph in graphs:
        sizes = {one.name: one.size for one in graph.mesh}
        missing = [name for name in alike if name not in sizes]
        if missing:
            raise ArgumentError(
                f"the graph of rank {graph.rank} has no dimension {shown(missing[0])} of a mesh",
                why=f"its mesh has {', '.join(sizes) or 'none'}",
                fix="give those of its mesh, or trace it with mesh={'dp': 4, 'tp': 2}",
            )
        if prod(sizes.values()) != graph.world_size or (
            dimensions_at(graph.rank, sizes) != graph.mesh
        ):
            mesh = ", ".join(f"{name}={size}" for name, size in sizes.items())
            raise ArgumentError(
                f"nothing tells for which ranks the graph of rank {graph.rank} stands",
                why=f"its mesh ({mesh}) does not hold all {graph.world_size} ranks in their order",
                fix="give the graph of each rank, and leave alike out",
            )
        places = [range(one.size) if one.name in alike else [one.coordinate] for one in graph.mesh]
        for coordinates in product(*places):
            rank = 0
            for size, coordinate in zip(sizes.values(), coordinates, strict=True):
                rank = rank * size + coordinate
            yield replace(graph, rank=rank)
