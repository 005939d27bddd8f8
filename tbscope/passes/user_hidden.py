"""Patterns by which a user names operations and modules, and the operations they hide.

An operation or module can be hidden if it reads one tensor and returns one: an edge replaces it.
"""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase, translate
from functools import cache
from typing import TypeAlias

from tbscope.errors import ArgumentError
from tbscope.ir.graph import Graph, Node, Value
from tbscope.ir.nodes import EFFECT_ATTRIBUTES
from tbscope.ir.scope_io import OPERATIONS, OWNED, InheritedProperty
from tbscope.ir.scopes import Scope
from tbscope.messages import near_names, shown
from tbscope.passes.replace_uses import step_text

# The module as part of which an operation is hidden, or the operation itself.
_Key: TypeAlias = Scope | Node

# The value that goes, the value that its readers read instead, and the text of what was between.
_LeftOut: TypeAlias = tuple[Value, Value, str]


class Patterns:
    """Shell patterns that match operations, and modules with all operations inside them.

    Args:
        patterns: Matched as by `fnmatch.fnmatchcase` with the name of an operation, and with
            the qualified name and the class of each enclosing module.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(patterns)
        matches = re.compile("|".join(f"(?:{translate(pattern)})" for pattern in patterns)).match

        def matching(scope: Scope, above: tuple[Scope, ...]) -> tuple[Scope, ...]:
            return (*above, scope) if any(map(matches, _names(scope))) else above

        self._matches = cache(matches)
        self._around = InheritedProperty[tuple[Scope, ...]](matching, top=())

    def keys(self, node: Node) -> list[_Key]:
        """Return the enclosing modules that match, outermost first, then the node if it matches."""
        return [*self._around(node.scope), *([node] if self._matches(node.op) else [])]


def _names(scope: Scope) -> list[str]:
    names = [scope.part.label, scope.qualified_name or scope.part.label]
    return names if scope.kind in ("module", "container") else []


def check_found(graph: Graph, option: str, patterns: Patterns) -> None:
    """Check that each pattern matches an operation or a module of the graph.

    Args:
        graph: The graph.
        option: The name of the option that contains the patterns, for the message.
        patterns: The patterns.
    Raises:
        ArgumentError: A pattern matches neither.
    """
    ops = (node.op for node in graph.nodes if node.kind in OPERATIONS)
    names = dict.fromkeys([*ops, *(name for scope in graph.scopes() for name in _names(scope))])
    for pattern in patterns.patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = near_names(pattern, names)
            raise ArgumentError(
                f"{option}={shown(pattern)} matches nothing in the graph of {graph.name}",
                why="no operation, no class of a module and no qualified name is like it",
                fix=f"did you mean {', '.join(map(repr, near))}?"
                if near
                else "print(graph) shows the operations, graph.calls the modules",
            )


def find_hidden(graph: Graph, hide: Sequence[str]) -> dict[Node, _LeftOut | None]:
    """Return the operations that patterns match and that an edge can replace.

    If a module matches but cannot be replaced, matches inside of it may still be.

    Returns:
        The values to exchange, by the operation that produces the result of a hidden module (or
        is hidden itself); None for every further operation inside of a hidden module.
    Raises:
        ArgumentError: A pattern matches nothing, or nothing that can be left out.
    """
    patterns = Patterns(hide)
    check_found(graph, "hide", patterns)
    groups: dict[_Key, list[Node]] = {}
    readers: dict[Value, list[Node | None]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            readers.setdefault(value, []).append(node)
        for key in patterns.keys(node) if node.kind in OPERATIONS else ():
            groups.setdefault(key, []).append(node)
    for output in graph.outputs:
        readers.setdefault(output.value, []).append(None)
    bound = _bound(graph)
    order = {node: number for number, node in enumerate(graph.nodes)}
    hidden: dict[Node, _LeftOut | None] = {}
    # Outer modules come first, so that a hidden module covers its contents.
    for key, nodes in groups.items():
        if nodes[0] in hidden or not bound.isdisjoint(nodes):
            continue
        members: set[Node | None] = {*nodes}
        entering = {
            value
            for node in nodes
            for value in node.inputs
            if value.producer not in members and value.producer.kind not in OWNED
        }
        leaving = {
            value
            for node in nodes
            for value in node.outputs
            if not members.issuperset(readers.get(value, ()))
        }
        if len(entering) == len(leaving) == 1:
            (value,), (instead,) = leaving, entering
            # A result that is produced before the tensor enters is not computed from it.
            if order[instead.producer] < order[value.producer]:
                text = step_text(key) if isinstance(key, Node) else str(key.part)
                hidden.update(dict.fromkeys(nodes))
                hidden[value.producer] = value, instead, text
    _check_hidden(graph, patterns, groups, hidden)
    return hidden


def _bound(graph: Graph) -> set[Node]:
    """Return the nodes that cannot be hidden: an edge would not represent all that they do.

    The reason is a note, a control dependency in either direction, or an attribute in
    `EFFECT_ATTRIBUTES`.
    """
    bound = {note.node for note in graph.notes if note.node is not None}
    for node in graph.nodes:
        if node.control_inputs:
            bound.update(node.control_inputs)
            bound.add(node)
        if not node.attributes.keys().isdisjoint(EFFECT_ATTRIBUTES):
            bound.add(node)
    for output in graph.outputs:
        bound.update(output.control_inputs)
    return bound


def _check_hidden(
    graph: Graph,
    patterns: Patterns,
    groups: dict[_Key, list[Node]],
    hidden: dict[Node, _LeftOut | None],
) -> None:
    """Raise ArgumentError if a pattern matches, but hides nothing."""
    for pattern in patterns.patterns:
        alone = Patterns([pattern])
        matched = [key for key, nodes in groups.items() if key in alone.keys(nodes[0])]
        if matched and not any(hidden.keys() >= {*groups[key]} for key in matched):
            key = matched[0]
            label = f"{key.op} (%{key.name})" if isinstance(key, Node) else str(key)
            raise ArgumentError(
                f"hide={pattern!r} matches nothing in the graph of {graph.name} "
                "that can be left out",
                why="an edge can replace only a node that reads one tensor beside its parameters, "
                f"returns one, and writes into none; {label} is another node",
                fix="leave this pattern out, or name a part of it",
            )
