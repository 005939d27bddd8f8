"""Patterns by which a user names operations and modules: `view`, `encoder.layer.0`, `Dropout`."""

import difflib
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase, translate

from tbscope.errors import ArgumentError
from tbscope.ir.graph import Graph, Node
from tbscope.ir.regions import OPERATIONS, Inherited
from tbscope.ir.scopes import Scope

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

        def told(scope: Scope, above: Scope | None) -> Scope | None:
            return scope if above is None and any(map(matches, _names(scope))) else above

        self._matches = matches
        self._ops: dict[str, bool] = {}
        self._outermost = Inherited[Scope | None](told, top=None)

    def match(self, node: Node) -> bool:
        """Tell whether a node, or a module that it stands in, matches."""
        return self.matches_op(node.op) or self.outermost(node.scope) is not None

    def matches_op(self, op: str) -> bool:
        """Tell whether the name of an operation matches."""
        known = self._ops.get(op)
        if known is None:
            known = self._ops[op] = self._matches(op) is not None
        return known

    def outermost(self, scope: Scope | None) -> Scope | None:
        """Return the outermost module that matches, of this scope and those around it."""
        return self._outermost(scope)


def _names(scope: Scope) -> list[str]:
    if scope.kind != "module":
        return []
    return [scope.part.label, *([scope.qualified_name] if scope.qualified_name else [])]


def check_found(graph: Graph, option: str, patterns: Patterns) -> None:
    """Check that each pattern matches something.

    Raises:
        ArgumentError: One matches no operation and no module of the graph.
    """
    known = dict.fromkeys(node.op for node in graph.nodes if node.kind in OPERATIONS)
    for call in graph.calls:
        known.update(dict.fromkeys(_names(call.scope)))
    for pattern in patterns.patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            near = difflib.get_close_matches(pattern, known, n=3, cutoff=0.4)
            raise ArgumentError(
                f"{option}={pattern!r} matches nothing in the graph of {graph.name}",
                why="no operation, no class of a module and no qualified name is like it",
                fix=f"did you mean {', '.join(map(repr, near))}?"
                if near
                else "print(graph) shows the operations, graph.calls the modules",
            )
