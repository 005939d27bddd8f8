"""Tells what differs between ranks that ran the same: sizes, constants, names, groups."""

import hashlib
from collections.abc import Callable, Iterable, Sequence

from tbscope.ir.graph import Graph, Node, Note
from tbscope.ir.ranks import ranks_text
from tbscope.ir.regions import STATE
from tbscope.ranks.alike import constants_of, sizes_of

__all__ = ["tell_differences"]

_MOST_TOLD = 6
_MOST_NOTES = 10


def tell_differences(merged: Graph, group: Sequence[Graph]) -> None:
    """Note on the nodes of a graph what differs between the ranks for which it stands.

    Args:
        merged: The copy of the first of these graphs; its nodes and notes are changed.
        group: The graphs of ranks that are alike.
    """
    if len(group) < 2:
        return
    kinds = _kinds(group)
    for place, node in enumerate(merged.nodes):
        twins = [(ranks, graph.nodes[place]) for ranks, graph in kinds]
        for name, tell in _TOLD:
            text = _by_rank(twins, tell)
            if text:
                node.attributes[name] = text
        _tell_groups(node, twins)
    _note_modules(merged, kinds)


def _kinds(group: Sequence[Graph]) -> list[tuple[list[int], Graph]]:
    """Return one graph for all ranks whose graphs do not differ, with these ranks."""
    found: dict[str, tuple[list[int], Graph]] = {}
    keys: dict[int, str] = {}
    for graph in group:
        known = keys.get(id(graph.nodes))
        if known is not None:
            found[known][0].append(graph.rank)
            continue
        key = hashlib.sha256()
        for node in graph.nodes:
            told = [tell(node) for _, tell in _TOLD]
            key.update(repr((told, node.collective and node.collective.ranks)).encode())
        keys[id(graph.nodes)] = key.hexdigest()
        found.setdefault(key.hexdigest(), ([], graph))[0].append(graph.rank)
    return list(found.values())


def _sizes(node: Node) -> str:
    return ", ".join(["?" if shape is None else _shape(shape) for shape in sizes_of(node)])


def _shape(shape: object) -> str:
    return repr(shape).replace("None", "?")


def _constants(node: Node) -> str:
    return ", ".join(constants_of(node))


def _name(node: Node) -> str:
    return node.name if node.kind in STATE else ""


def _flops(node: Node) -> str:
    return "" if node.flops is None else f"{node.flops:,}"


_TOLD: tuple[tuple[str, Callable[[Node], str]], ...] = (
    ("shapes_by_rank", _sizes),
    ("arguments_by_rank", _constants),
    ("names_by_rank", _name),
    ("flops_by_rank", _flops),
)
"""What may differ, and the attributes that tell it."""


def _by_rank(twins: Sequence[tuple[list[int], Node]], tell: Callable[[Node], str]) -> str:
    """Tell what each rank has of something; empty where all have the same."""
    found: dict[str, list[int]] = {}
    for ranks, node in twins:
        found.setdefault(tell(node), []).extend(ranks)
    return "" if len(found) < 2 else _listed(found)


def _listed(found: dict[str, list[int]]) -> str:
    told = [f"{text or 'none'} on {ranks_text(ranks)}" for text, ranks in found.items()]
    more = len(told) - _MOST_TOLD
    return "; ".join([*told[:_MOST_TOLD], f"and {more:,} more"] if more > 0 else told)


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


def _note_modules(merged: Graph, kinds: Sequence[tuple[list[int], Graph]]) -> None:
    """Tell which modules other ranks call in the place of those that are drawn."""
    notes: dict[str, None] = {}
    for scopes in zip(*[graph.scopes() for _, graph in kinds], strict=True):
        found: dict[str, list[int]] = {}
        for (ranks, _), scope in zip(kinds, scopes, strict=True):
            found.setdefault(scope.qualified_name or "", []).extend(ranks)
        if len(found) > 1:
            above = scopes[0].parent
            outermost = above is None or len({_name_of(scope.parent) for scope in scopes}) == 1
            if outermost:
                first = scopes[0].qualified_name or str(scopes[0].part)
                notes[f"{first} stands for a module of each rank: {_listed(found)}"] = None
    told = [Note(text) for text in notes]
    more = len(told) - _MOST_NOTES
    if more > 0:
        told[_MOST_NOTES:] = [Note(f"and {more:,} more modules that differ from rank to rank")]
    merged.notes += told


def _name_of(scope: object) -> object:
    return getattr(scope, "qualified_name", None)
