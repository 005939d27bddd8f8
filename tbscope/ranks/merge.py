"""Merges the graphs of several ranks into one: what ran the same is drawn once.

Where all ranks ran the same, the graph is that of the first one, and tells what differs. Else each
part stands in a box of its own, and what ranks did together joins the boxes.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tbscope.checks import check_truth
from tbscope.errors import ArgumentError
from tbscope.ir.facts import ranks_text
from tbscope.ir.graph import Graph, require_graph
from tbscope.ir.invariants import check_invariants
from tbscope.ranks.alike import groups_of
from tbscope.ranks.asked import check_unfolded
from tbscope.ranks.equals import check_dimensions, with_equals
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
    check_dimensions(alike)
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
            raise ArgumentError(
                f"merge_ranks was given a graph that is merged already, of {_ranks_in(graph)}",
                why="it merges what each rank recorded",
                fix="give the graphs of all ranks at once",
            )
    ordered = sorted(with_equals(listed, alike) if alike else listed, key=_rank_of)
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


def _rank_of(graph: Graph) -> int:
    return graph.rank


def _ranks_in(graph: Graph) -> str:
    return ranks_text(rank for part in graph.parts for rank in part.ranks)
