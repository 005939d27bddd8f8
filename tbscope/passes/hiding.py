"""What a user wants left out of a drawing, and what can be: one tensor in, one tensor out."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from tbscope.errors import ArgumentError
from tbscope.ir.graph import Graph, Node, Value
from tbscope.ir.nodes import TOLD
from tbscope.ir.regions import OPERATIONS, OWNED, read_only_by
from tbscope.ir.scopes import Scope
from tbscope.passes.bypass import step_text
from tbscope.passes.patterns import Patterns, check_found

# The module, or the operation, with which an operation is left out.
_Key: TypeAlias = Scope | Node

__all__ = ["Hidden", "LeftOut", "find_hidden"]


class LeftOut(NamedTuple):
    """One value that is no longer given, the one that is read instead, and what lay between."""

    value: Value
    instead: Value
    text: str


class Hidden:
    """What is left out because its user wants it so.

    Attributes:
        nodes: The operations.
        sources: The parameters, buffers and constants that nothing else reads.
    """

    def __init__(self) -> None:
        self.nodes: set[Node] = set()
        self.sources: set[Node] = set()
        self._at: dict[Node, LeftOut] = {}

    def __bool__(self) -> bool:
        return bool(self.nodes)

    def add(self, nodes: list[Node], left: LeftOut) -> None:
        """Add operations that are left out together."""
        self.nodes.update(nodes)
        self._at[left.value.producer] = left

    def left_out_at(self, node: Node) -> LeftOut | None:
        """Return the value that is left out at this node; None at one that ends no group."""
        return self._at.get(node)


def find_hidden(graph: Graph, hide: Sequence[str]) -> Hidden:
    """Find what patterns match and what reads one tensor and gives one.

    Raises:
        ArgumentError: A pattern matches nothing, or nothing that can be left out.
    """
    patterns = Patterns(hide)
    check_found(graph, "hide", patterns)
    outermost = {
        node: patterns.outermost(node.scope) or node
        for node in graph.nodes
        if node.kind in OPERATIONS and patterns.match(node)
    }
    bound = _bound(graph)
    order = {node: number for number, node in enumerate(graph.nodes)}
    hidden = Hidden()
    place = outermost.copy()
    pending = list(outermost)
    while pending:
        leaving = _leaving(graph, place)
        groups: dict[_Key, list[Node]] = {}
        for node in pending:
            groups.setdefault(place[node], []).append(node)
        pending = []
        for key, nodes in groups.items():
            left = _left_out(key, nodes, place, leaving.get(key, {}), order)
            if left is not None and bound.isdisjoint(nodes):
                hidden.add(nodes, left)
            else:
                # What matches inside of a module that stays may go by itself.
                pending += _moved_inwards(patterns, key, nodes, place)
    _check_hidden(graph, patterns, place, hidden, outermost)
    hidden.sources = read_only_by(graph, hidden.nodes)
    return hidden


def _left_out(
    key: _Key,
    nodes: list[Node],
    place: dict[Node, _Key],
    leaving: dict[Value, None],
    order: dict[Node, int],
) -> LeftOut | None:
    """Return the value that a group gives and the one that it reads, or None if there are more."""
    entering = dict.fromkeys(
        value
        for node in nodes
        for value in node.inputs
        if place.get(value.producer) is not key and value.producer.kind not in OWNED
    )
    if len(entering) != 1 or len(leaving) != 1:
        return None
    (value,), (instead,) = leaving, entering
    # What is made before the tensor comes in is not made of it.
    if order[instead.producer] >= order[value.producer]:
        return None
    return LeftOut(value, instead, step_text(key) if isinstance(key, Node) else str(key.part))


def _moved_inwards(
    patterns: Patterns, key: _Key, nodes: list[Node], place: dict[Node, _Key]
) -> list[Node]:
    """Place the nodes of a group by the next module inside that matches; return those that do."""
    found: list[Node] = []
    for node in nodes:
        inner: _Key | None = None
        if isinstance(key, Scope):
            inner = patterns.outermost(node.scope, below=key)
            inner = inner or (node if patterns.matches_op(node.op) else None)
        if inner is None:
            del place[node]
        else:
            place[node] = inner
            found.append(node)
    return found


def _leaving(graph: Graph, place: dict[Node, _Key]) -> dict[_Key, dict[Value, None]]:
    """Return for each group the values that something outside of it reads."""
    found: dict[_Key, dict[Value, None]] = {}
    for node in graph.nodes:
        here = place.get(node)
        for value in node.inputs:
            key = place.get(value.producer)
            if key is not None and key is not here:
                found.setdefault(key, {})[value] = None
    for output in graph.outputs:
        key = place.get(output.value.producer)
        if key is not None:
            found.setdefault(key, {})[output.value] = None
    return found


def _bound(graph: Graph) -> set[Node]:
    """Return the nodes that are more than their result: told of, noted, or waited for."""
    bound = {note.node for note in graph.notes if note.node is not None}
    for node in graph.nodes:
        if node.control_inputs:
            bound.update(node.control_inputs)
            bound.add(node)
        if node.attributes and any(name in node.attributes for name in TOLD):
            bound.add(node)
    for output in graph.outputs:
        bound.update(output.control_inputs)
    return bound


def _check_hidden(
    graph: Graph,
    patterns: Patterns,
    place: dict[Node, _Key],
    hidden: Hidden,
    outermost: dict[Node, _Key],
) -> None:
    """Raise ArgumentError for a pattern by which nothing is left out."""
    for pattern in patterns.patterns:
        alone = Patterns([pattern])
        matched = [node for node in outermost if alone.match(node)]
        if matched and not any(_goes_by(alone, node, place) for node in hidden.nodes):
            key = outermost[matched[0]]
            what = f"{key.op} (%{key.name})" if isinstance(key, Node) else str(key)
            raise ArgumentError(
                f"hide={pattern!r} matches nothing in the graph of {graph.name} "
                "that can be left out",
                why="an edge can replace only what reads one tensor beside its parameters, "
                f"and gives one, and writes nothing; not so {what}",
                fix="leave this pattern out, or name a part of it",
            )


def _goes_by(alone: Patterns, node: Node, place: dict[Node, _Key]) -> bool:
    """Whether a pattern matches the group with which a node is left out, or a part of it."""
    key = place[node]
    around = key.parent if isinstance(key, Scope) else node.scope
    return alone.matches_op(node.op) or alone.outermost(node.scope, below=around) is not None
