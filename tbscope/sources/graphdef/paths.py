"""Scope paths of the nodes of a GraphDef, from their names or from their `scope` attributes."""

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from tbscope.errors import ArgumentError
from tbscope.ir.builder import GraphBuilder
from tbscope.ir.scopes import PHASE_BOXES, Phase, Scope, ScopeKind, ScopePart
from tbscope.sources.graphdef.ops import Op

if TYPE_CHECKING:
    from tbscope.ir.graph import Call

__all__ = ["Path", "PathScopes", "number_calls", "path_of_name", "path_of_scope", "restore_lists"]

Path = tuple[ScopePart, ...]

# The page draws some 60 levels; deeper levels of a name stay in one label.
_MOST_LEVELS = 64
# Container modules that torch never calls.
_LISTS = frozenset({"ModuleList", "ModuleDict", "ParameterList", "ParameterDict"})
# Boxes of tbscope's drawings, and of TensorFlow's gradients.
_PHASES: dict[str, Phase] = {label: phase for phase, label in PHASE_BOXES.items()}
_STEP = re.compile(r"[^\[\]]+(?:\[[^\[\]]+\])(?:\.[0-9]{1,9})?")


def path_of_name(name: str) -> Path:
    """Return the scope path in the name of a node: all its parts but the last."""
    return _path("/".join(name.split("/", _MOST_LEVELS)[:-1]))


# Many nodes share a scope: one cached object for each part makes paths quick to compare.
@lru_cache(maxsize=4096)
def _path(text: str) -> Path:
    return tuple([_part(step) for step in text.split("/") if step])


@lru_cache(maxsize=4096)
def _part(step: str) -> ScopePart:
    parsed = _parsed(step) if _STEP.fullmatch(step) else None
    return parsed[0] if parsed else ScopePart(step)


def path_of_scope(op: Op) -> Path | None:
    """Return the path in the `scope` attribute that tbscope's drawings write, or None."""
    scope = op.facts.get("scope")
    if not isinstance(scope, str) or scope.count("/") >= _MOST_LEVELS:
        return None
    return _parsed(scope)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Path | None:
    try:
        return Scope.parse(text)
    except ArgumentError:
        return None


def _without_lists(path: Path) -> Path:
    """Return a path as torch writes it for an operation: without lists, which are never called."""
    return tuple(part for part in path if part.label not in _LISTS)


def _called(path: Path) -> Path:
    """Return the path of the innermost module that torch calls: a ParameterList is inside of it."""
    return _called(path[:-1]) if path and path[-1].label in _LISTS else path


def restore_lists(paths: Iterable[tuple[Path, Iterable[Path]]]) -> list[Path]:
    """Return scope paths with the lists that torch has left out.

    torch writes `Net/Linear[0]` for the operations of `Net/ModuleList[layers]/Linear[0]`, and the
    whole path for the parameters of that module.

    Args:
        paths: For each node its path as torch writes it, and the paths of the parameters that it
            reads.
    """
    rows = [
        (path, [_called(owner) for owner in owners if _without_lists(owner) == path])
        for path, owners in paths
    ]
    full_paths: dict[Path, dict[Path, None]] = {}
    for _, owners in rows:
        for owner in owners:
            # The path of a parameter locates each enclosing module, too.
            for size in range(1, len(owner) + 1):
                if owner[size - 1].label not in _LISTS:
                    full_paths.setdefault(_without_lists(owner[:size]), {})[owner[:size]] = None
    deepest = max(map(len, full_paths), default=0)
    return [owners[0] if owners else _moved(path, full_paths, deepest) for path, owners in rows]


def _moved(path: Path, places: dict[Path, dict[Path, None]], deepest: int) -> Path:
    """Return a path with the lists of its longest prefix that the parameters locate uniquely."""
    for size in range(min(len(path), deepest), 0, -1):
        candidates = places.get(path[:size], {})
        if len(candidates) == 1:
            return next(iter(candidates)) + path[size:]
    return path


def number_calls(paths: list[Path], runs: list[bool]) -> list[Path]:
    """Return scope paths in which each call of a module has a scope of its own.

    A call is a sequence of adjacent nodes in the order of execution: a module that is entered again
    after it was left is called again.

    Args:
        paths: The paths of the nodes, in the order of execution.
        runs: For each node, whether it runs an operation. The path of any other node is unchanged:
            it is in the first call.
    """
    counts: dict[tuple[Path, ScopePart], int] = {}
    open_: Path = ()
    numbered: Path = ()
    located = []
    for path, is_operation in zip(paths, runs, strict=True):
        if not is_operation:
            located.append(path)
            continue
        if path != open_:
            shared = 0
            while shared < min(len(path), len(open_)) and path[shared] == open_[shared]:
                shared += 1
            prefix = numbered[:shared]
            for step in path[shared:]:
                part = step
                if part.attribute is not None and part.label not in _LISTS:
                    number = counts.get((prefix, step), 0)
                    counts[prefix, step] = number + 1
                    part = replace(step, index=step.index + number)
                prefix = (*prefix, part)
            open_, numbered = path, prefix
        located.append(numbered)
    return located


class PathScopes:
    """Scopes of a graph, each created at its first use.

    Args:
        build: The builder of the graph.
    """

    def __init__(self, build: GraphBuilder) -> None:
        self._build = build
        self._known: dict[Path, Scope] = {}
        self._roots: set[ScopePart] = set()
        self.calls: dict[Scope, Call] = {}

    def tell(self, paths: Iterable[Path], models: Iterable[Path]) -> None:
        """Register all paths before their use: a top scope that encloses a module is a module.

        Args:
            paths: The paths of all nodes.
            models: Paths that begin with the model.
        """
        outer = [path for path in paths if any(part.attribute is not None for part in path[1:])]
        self._roots.update(path[0] for path in (*outer, *models) if path)

    def of(self, path: Path) -> Scope | None:
        """Return the scope of a path, or None for the top level."""
        if not path:
            return None
        scope = self._known.get(path)
        if scope is None:
            scope = self._known[path] = self._open(path, self.of(path[:-1]))
        return scope

    def _open(self, path: Path, around: Scope | None) -> Scope:
        part = path[-1]
        kind: ScopeKind = "container" if part.label in _LISTS else "module"
        phase = "forward" if path[0].attribute else _PHASES.get(path[0].label, "forward")
        is_root = len(path) == 1 and part in self._roots
        if phase != "forward" or (part.attribute is None and not is_root):
            kind = "hand"
        attributes = [step.attribute for step in path if step.attribute is not None]
        scope = self._build.new_scope(
            part.label,
            part.attribute,
            parent=around,
            kind=kind,
            qualified_name=None if kind == "hand" else ".".join(attributes),
            index=part.index,
        )
        scope.phase = phase
        if kind == "module":
            self.calls[scope] = self._build.add_call(scope, class_name=part.label)
        return scope
