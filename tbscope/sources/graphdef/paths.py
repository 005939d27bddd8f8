"""Paths: in which scope a node of a GraphDef stands, by its name or by what it tells itself."""

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from tbscope.errors import ArgumentError
from tbscope.ir.builder import GraphBuilder
from tbscope.ir.scopes import Scope, ScopeKind, ScopePart, parse_scope_path
from tbscope.sources.graphdef.ops import Op

if TYPE_CHECKING:
    from tbscope.ir.graph import Call

__all__ = ["Path", "Scopes", "mended", "path_of_name", "path_of_scope", "with_calls"]

Path = tuple[ScopePart, ...]

# The page is drawn for some 60 levels; what stands deeper keeps its name in one label.
_MOST_LEVELS = 64
# Holders that torch never calls.
_LISTS = frozenset({"ModuleList", "ModuleDict", "ParameterList", "ParameterDict"})
_STEP = re.compile(r"[^\[\]]+(?:\[[^\[\]]+\])(?:\.[0-9]{1,9})?")


def path_of_name(name: str) -> Path:
    """Return the scopes that the name of a node tells: all its steps but the last."""
    return _path("/".join(name.split("/", _MOST_LEVELS)[:-1]))


# Many nodes stand in one scope. One object for each step makes them quick to compare.
@lru_cache(maxsize=4096)
def _path(text: str) -> Path:
    return tuple([_part(step) for step in text.split("/") if step])


@lru_cache(maxsize=4096)
def _part(step: str) -> ScopePart:
    parsed = _parsed(step) if _STEP.fullmatch(step) else None
    return parsed[0] if parsed else ScopePart(step)


def path_of_scope(op: Op) -> Path | None:
    """Return the path that a drawing of ours tells of a node; None for any other node."""
    told = op.facts.get("scope")
    if not isinstance(told, str) or told.count("/") >= _MOST_LEVELS:
        return None
    return _parsed(told)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Path | None:
    try:
        return parse_scope_path(text)
    except ArgumentError:
        return None


def _without_lists(path: Path) -> Path:
    """Return a path as torch writes it for what runs: the lists that are never called left out."""
    return tuple(part for part in path if part.label not in _LISTS)


def mended(paths: Iterable[tuple[Path, Iterable[Path]]]) -> list[Path]:
    """Return where nodes stand of which torch has lost the lists around them.

    torch writes `Net/Linear[0]` for what `Net/ModuleList[layers]/Linear[0]` runs, and the whole
    path for the parameters of that.

    Args:
        paths: For each node where it stands as torch writes it, and where the parameters that it
            reads do.
    """
    rows = [
        (path, [own for own in owners if _without_lists(own) == path]) for path, owners in paths
    ]
    places: dict[Path, dict[Path, None]] = {}
    for _, owners in rows:
        for own in owners:
            # Each module around it, too, stands where that one says.
            for size in range(1, len(own) + 1):
                if own[size - 1].label not in _LISTS:
                    places.setdefault(_without_lists(own[:size]), {})[own[:size]] = None
    deepest = max(map(len, places), default=0)
    return [owners[0] if owners else _moved(path, places, deepest) for path, owners in rows]


def _moved(path: Path, places: dict[Path, dict[Path, None]], deepest: int) -> Path:
    for size in range(min(len(path), deepest), 0, -1):
        known = places.get(path[:size], {})
        if len(known) == 1:
            return next(iter(known)) + path[size:]
    return path


def with_calls(paths: list[Path], runs: list[bool]) -> list[Path]:
    """Return where nodes stand, each call of a module apart from those before.

    A call is one stretch of the nodes in the order in which they ran: a module that is entered
    again after it was left is called again.

    Args:
        paths: Where nodes stand, in that order.
        runs: Which of them run something. The others stand where they do: in the first call.
    """
    counts: dict[tuple[Path, ScopePart], int] = {}
    open_: Path = ()
    numbered: Path = ()
    found = []
    for path, ran in zip(paths, runs, strict=True):
        if not ran:
            found.append(path)
            continue
        if path != open_:
            same = 0
            while same < min(len(path), len(open_)) and path[same] == open_[same]:
                same += 1
            here = numbered[:same]
            for step in path[same:]:
                part = step
                if part.attribute is not None and part.label not in _LISTS:
                    number = counts.get((here, step), 0)
                    counts[here, step] = number + 1
                    part = replace(step, index=step.index + number)
                here = (*here, part)
            open_, numbered = path, here
        found.append(numbered)
    return found


class Scopes:
    """The scopes of a graph, each made when it is first asked for.

    Args:
        build: The door to the graph.
    """

    def __init__(self, build: GraphBuilder) -> None:
        self._build = build
        self._known: dict[Path, Scope] = {}
        self._roots: set[ScopePart] = set()
        self.calls: dict[Scope, Call] = {}

    def tell(self, paths: Iterable[Path]) -> None:
        """Look at all paths first: what stands around a module at the top is one, too."""
        for path in paths:
            if len(path) > 1 and any(part.attribute is not None for part in path[1:]):
                self._roots.add(path[0])

    def of(self, path: Path) -> Scope | None:
        """Return the scope of a path; None for the top."""
        if not path:
            return None
        scope = self._known.get(path)
        if scope is None:
            scope = self._known[path] = self._open(path, self.of(path[:-1]))
        return scope

    def _open(self, path: Path, around: Scope | None) -> Scope:
        part = path[-1]
        kind: ScopeKind = "container" if part.label in _LISTS else "module"
        if part.attribute is None and not (len(path) == 1 and part in self._roots):
            kind = "hand"
        held = [one.attribute for one in path if one.attribute is not None]
        scope = self._build.new_scope(
            part.label,
            part.attribute,
            parent=around,
            kind=kind,
            qualified_name=None if kind == "hand" else ".".join(held),
            index=part.index,
        )
        if kind == "module":
            self.calls[scope] = self._build.add_call(scope, class_name=part.label)
        return scope
