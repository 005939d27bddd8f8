"""Patterns by which a user names operations and modules, and what is left out by them.

What can be left out reads one tensor and gives one: an edge stands for it.
"""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase, translate
from functools import cache
from typing import TypeAlias

from tbscope.errors import ArgumentError
from tbscope.ir.graph import Graph, Node, Value
from tbscope.ir.nodes import TOLD
from tbscope.ir.scope_io import OPERATIONS, OWNED, Inherited
from tbscope.ir.scopes import Scope
from tbscope.messages import near_names, shown
from tbscope.passes.replace_uses import step_text

__all__ = ["Patterns", "check_found", "find_hidden"]

# The module, or the operation, with which an operation is left out.
_Key: TypeAlias = Scope | Node

# One value that is no longer given, the one that is read instead, and what lay between.
_LeftOut: TypeAlias = tuple[Value, Value, str]


class Patterns:
    """Shell patterns that match operations, and modules with all inside them.

    Args:
        patterns: Matched as `fnmatch.fnmatchcase` does, with the name of an operation, and
            with the qualified name and the class of each module that it stands in.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(patterns)
        matches = re.compile("|".join(f"(?:{translate(pattern)})" for pattern in patterns)).match

        def matching(scope: Scope, above: tuple[Scope, ...]) -> tuple[Scope, ...]:
            return (*above, scope) if any(map(matches, _names(scope))) else above

        self._matches = cache(matches)
        self._around = Inherited[tuple[Scope, ...]](matching, top=())

    def keys(self, node: Node) -> list[_Key]:
        """Return the modules around a node that match, outermost first, and the node if it does."""
        return [*self._around(node.scope), *([node] if self._matches(node.op) else [])]


def _names(scope: Scope) -> list[str]:
    names = [scope.part.label, scope.qualified_name or scope.part.label]
    return names if scope.kind in ("module", "container") else []


def check_found(graph: Graph, option: str, patterns: Patterns) -> None:
    """Check that each pattern matches something.

    Raises:
        ArgumentError: One matches no operation and no module of the graph.
    """
    ops = (node.op for node in graph.nodes if node.kind in OPERATIONS)
    known = dict.fromkeys([*ops, *(name for scope in graph.scopes() for name in _names(scope))])
    for pattern in patterns.patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            near = near_names(pattern, known)
            raise ArgumentError(
                f"{option}={shown(pattern)} matches nothing in the graph of {graph.name}",
                why="no operation, no class of a module and no qualified name is like it",
                fix=f"did you mean {', '.join(map(repr, near))}?"
                if near
                else "print(graph) shows the operations, graph.calls the modules",
            )


def find_hidden(graph: Graph, hide: Sequence[str]) -> dict[Node, _LeftOut | None]:
    """Find the operations that patterns match and an edge can replace.

    What matches inside of a module that stays may go by itself.

    Returns:
        By each operation the value that is left out at it; None at one that ends no group.
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
    # A module comes before what is in it.
    for key, nodes in groups.items():
        if nodes[0] in hidden or not bound.isdisjoint(nodes):
            continue
        inside: set[Node | None] = {*nodes}
        entering = {
            value
            for node in nodes
            for value in node.inputs
            if value.producer not in inside and value.producer.kind not in OWNED
        }
        leaving = {
            value
            for node in nodes
            for value in node.outputs
            if not inside.issuperset(readers.get(value, ()))
        }
        if len(entering) == len(leaving) == 1:
            (value,), (instead,) = leaving, entering
            # What is made before the tensor comes in is not made of it.
            if order[instead.producer] < order[value.producer]:
                text = step_text(key) if isinstance(key, Node) else str(key.part)
                hidden.update(dict.fromkeys(nodes))
                hidden[value.producer] = value, instead, text
    _check_hidden(graph, patterns, groups, hidden)
    return hidden


def _bound(graph: Graph) -> set[Node]:
    """Return the nodes that are more than their result: told of, noted, or waited for."""
    bound = {note.node for note in graph.notes if note.node is not None}
    for node in graph.nodes:
        if node.control_inputs:
            bound.update(node.control_inputs)
            bound.add(node)
        if not node.attributes.keys().isdisjoint(TOLD):
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
    """Raise ArgumentError for a pattern by which nothing is left out."""
    for pattern in patterns.patterns:
        alone = Patterns([pattern])
        matched = [key for key, nodes in groups.items() if key in alone.keys(nodes[0])]
        if matched and not any(hidden.keys() >= {*groups[key]} for key in matched):
            key = matched[0]
            what = f"{key.op} (%{key.name})" if isinstance(key, Node) else str(key)
            raise ArgumentError(
                f"hide={pattern!r} matches nothing in the graph of {graph.name} "
                "that can be left out",
                why="an edge can replace only what reads one tensor beside its parameters, "
                f"and gives one, and writes nothing; not so {what}",
                fix="leave this pattern out, or name a part of it",
            )
