"""What a user wants left out of a drawing, and what can be: one tensor in, one tensor out."""

from collections.abc import Sequence, Set
from typing import NamedTuple

from tbscope.errors import ArgumentError
from tbscope.ir.graph import Graph, Node, Value
from tbscope.ir.nodes import TOLD
from tbscope.ir.regions import OPERATIONS, OWNED
from tbscope.ir.scopes import Scope
from tbscope.passes.bypass import step_text
from tbscope.passes.patterns import Patterns, check_found

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
    groups: dict[Scope | Node, list[Node]] = {}
    place: dict[Node, Scope | Node] = {}
    for node in graph.nodes:
        if node.kind in OPERATIONS:
            key = patterns.outermost(node.scope) or (node if patterns.matches_op(node.op) else None)
            if key is not None:
                groups.setdefault(key, []).append(node)
                place[node] = key
    leaving = _leaving(graph, place)
    bound = _bound(graph)
    places = {node: number for number, node in enumerate(graph.nodes)}
    hidden = Hidden()
    for key, nodes in groups.items():
        entering = dict.fromkeys(
            value
            for node in nodes
            for value in node.inputs
            if place.get(value.producer) is not key and value.producer.kind not in OWNED
        )
        gives = leaving.get(key, {})
        if len(entering) == 1 and len(gives) == 1 and bound.isdisjoint(nodes):
            (value,), (instead,) = gives, entering
            # What is made before the tensor comes in is not made of it.
            if places[instead.producer] < places[value.producer]:
                text = step_text(key) if isinstance(key, Node) else str(key.part)
                hidden.add(nodes, LeftOut(value, instead, text))
    _check_hidden(graph, patterns, hidden, place)
    hidden.sources = _read_by_none(graph, hidden.nodes)
    return hidden


def _leaving(
    graph: Graph, place: dict[Node, Scope | Node]
) -> dict[Scope | Node, dict[Value, None]]:
    """Return for each group the values that something outside of it reads."""
    found: dict[Scope | Node, dict[Value, None]] = {}
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


def _read_by_none(graph: Graph, gone: Set[Node]) -> set[Node]:
    """Return the parameters, buffers and constants that only the nodes which go have read."""
    lost = {
        value.producer for node in gone for value in node.inputs if value.producer.kind in OWNED
    }
    for node in graph.nodes:
        if node not in gone:
            for value in node.inputs:
                lost.discard(value.producer)
    for output in graph.outputs:
        lost.discard(output.value.producer)
    return lost


def _check_hidden(
    graph: Graph, patterns: Patterns, hidden: Hidden, place: dict[Node, Scope | Node]
) -> None:
    for pattern in patterns.patterns:
        alone = Patterns([pattern])
        matched = [node for node in place if alone.match(node)]
        if matched and hidden.nodes.isdisjoint(matched):
            key = place[matched[0]]
            what = f"{key.op} (%{key.name})" if isinstance(key, Node) else str(key)
            raise ArgumentError(
                f"hide={pattern!r} matches nothing in the graph of {graph.name} "
                "that can be left out",
                why="an edge can replace only what reads one tensor beside its parameters, "
                f"and gives one, and writes nothing; not so {what}",
                fix="leave this pattern out, or name a part of it",
            )
