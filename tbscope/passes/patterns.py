"""Patterns by which a user names operations and modules: `view`, `encoder.layer.0`, `Dropout`."""

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase, translate

from tbscope.errors import ArgumentError
from tbscope.ir.graph import Graph, Node
from tbscope.ir.regions import OPERATIONS, Inherited
from tbscope.ir.scopes import Scope
from tbscope.words import near_names, shown

__all__ = ["Patterns", "check_found"]


class Patterns:
    """Shell patterns that match operations, and modules with all inside them.

    Args:
        patterns: Matched as `fnmatch.fnmatchcase` does, with the name of an operation, and
            with the qualified name and the class of each module that it stands in.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(patterns)
        matches: Callable[[str], object] = re.compile(
            "|".join(f"(?:{translate(pattern)})" for pattern in patterns)
        ).match

        def told(scope: Scope, above: tuple[Scope, ...]) -> tuple[Scope, ...]:
            return (*above, scope) if any(map(matches, _names(scope))) else above

        self._matches = matches
        self._ops: dict[str, bool] = {}
        self._around = Inherited[tuple[Scope, ...]](told, top=())

    def match(self, node: Node) -> bool:
        """Tell whether a node, or a module that it stands in, matches."""
        return self.matches_op(node.op) or self.outermost(node.scope) is not None

    def matches_op(self, op: str) -> bool:
        """Tell whether the name of an operation matches."""
        known = self._ops.get(op)
        if known is None:
            known = self._ops[op] = self._matches(op) is not None
        return known

    def outermost(self, scope: Scope | None, *, below: Scope | None = None) -> Scope | None:
        """Return the outermost module that matches, of this scope and those around it.

        Args:
            scope: The scope; None for the top level.
            below: A scope around it, or itself: only modules inside of that count.
        """
        around = len(self._around(below))
        return next(iter(self._around(scope)[around:]), None)


def _names(scope: Scope) -> list[str]:
    if scope.kind not in ("module", "container"):
        return []
    return [scope.part.label, *([scope.qualified_name] if scope.qualified_name else [])]


def check_found(graph: Graph, option: str, patterns: Patterns) -> None:
    """Check that each pattern matches something.

    Raises:
        ArgumentError: One matches no operation and no module of the graph.
    """
    known = dict.fromkeys(node.op for node in graph.nodes if node.kind in OPERATIONS)
    for scope in graph.scopes():
        known.update(dict.fromkeys(_names(scope)))
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
