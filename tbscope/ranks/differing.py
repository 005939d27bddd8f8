"""Tells what differs between ranks that ran the same: sizes, constants, names, groups."""

from collections.abc import Callable, Iterable, Sequence

from tbscope.ir.facts import ranks_text
from tbscope.ir.graph import Graph, Node
from tbscope.ir.nodes import constants_of
from tbscope.ir.regions import STATE
from tbscope.ranks.alike import sizes_of

__all__ = ["tell_differences"]

_MOST_TOLD = 6


def tell_differences(merged: Graph, group: Sequence[Graph]) -> None:
    """Note on the nodes of a graph what differs between the ranks for which it stands.

    Args:
        merged: The copy of the first of these graphs; its nodes are changed.
        group: The graphs of ranks that are alike.
    """
    # Ranks that recorded the same may share their nodes.
    shared: dict[int, tuple[list[int], list[Node]]] = {}
    for graph in group:
        shared.setdefault(id(graph.nodes), ([], graph.nodes))[0].append(graph.rank)
    for place, node in enumerate(merged.nodes):
        twins = [(ranks, nodes[place]) for ranks, nodes in shared.values()]
        for name, tell in _TOLD:
            text = _by_rank(twins, tell)
            if text:
                node.attributes[name] = text
        _tell_groups(node, twins)


def _sizes(node: Node) -> str:
    return ", ".join(["?" if shape is None else _shape(shape) for shape in sizes_of(node)])


def _shape(shape: object) -> str:
    return repr(shape).replace("None", "?")


def _constants(node: Node) -> str:
    return ", ".join(constants_of(node))


def _name(node: Node) -> str:
    return node.name if node.kind in STATE else ""


_TOLD: tuple[tuple[str, Callable[[Node], str]], ...] = (
    ("shapes_by_rank", _sizes),
    ("arguments_by_rank", _constants),
    ("names_by_rank", _name),
)
"""What may differ, and the attributes that tell it."""


def _by_rank(twins: Sequence[tuple[list[int], Node]], tell: Callable[[Node], str]) -> str:
    """Tell what each rank has of something; empty where all have the same."""
    found: dict[str, list[int]] = {}
    for ranks, node in twins:
        found.setdefault(tell(node), []).extend(ranks)
    if len(found) < 2:
        return ""
    return _some([f"{text or 'none'} on {ranks_text(ranks)}" for text, ranks in found.items()])


def _tell_groups(node: Node, twins: Iterable[tuple[list[int], Node]]) -> None:
    """Tell of a collective how many groups do it side by side."""
    if node.collective is None or node.collective.peer is not None:
        return
    groups = dict.fromkeys([twin.collective.ranks for _, twin in twins if twin.collective])
    if len(groups) > 1:
        node.attributes["groups"] = _some([ranks_text(ranks) for ranks in groups])


def _some(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST_TOLD
    return "; ".join([*texts[:_MOST_TOLD], f"and {more:,} more"] if more > 0 else texts)
