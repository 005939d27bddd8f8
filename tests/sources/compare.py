"""Compares a graph with that of an eager call; what differs has a name, or is a fault."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from tbscope.ir.graph import Graph
from tests.agreement import View, disagreements

__all__ = ["CALLS_IN_ONE", "KINDS", "TIED", "UNREGISTERED", "Comparison", "compare"]

UNREGISTERED = "Modules that nobody holds"
TIED = "Tied parameters"
CALLS_IN_ONE = "Calls of one module"

KINDS = (UNREGISTERED, TIED, CALLS_IN_ONE)
"""The differences that a source may show beside those of every program, as docs/sources.md names
them."""


@dataclass(frozen=True)
class Comparison:
    """What a comparison found.

    Attributes:
        kinds: The names of the differences that are explained.
        faults: What differs and has no name.
    """

    kinds: tuple[str, ...]
    faults: dict[str, Any]


def compare(eager: Graph, other: Graph, allowed: Sequence[str]) -> Comparison:
    """Compare a graph with that of an eager call of the same model.

    Args:
        eager: The graph of the eager call.
        other: The graph of another source.
        allowed: The kinds of differences that this source may show.
    """
    if not disagreements(eager, other):
        return Comparison((), {})
    rest = disagreements(eager, other, view_of(allowed, eager))
    if rest:
        return Comparison((), rest)
    needed = [kind for kind in allowed if _is_needed(kind, eager, other, allowed)]
    return Comparison(tuple(needed), {})


def _is_needed(kind: str, eager: Graph, other: Graph, allowed: Sequence[str]) -> bool:
    others = [each for each in allowed if each != kind]
    return bool(disagreements(eager, other, view_of(others, eager)))


def view_of(kinds: Collection[str], eager: Graph) -> View:
    """Give the view of two graphs that does not show these kinds of differences."""
    return View(
        unregistered=UNREGISTERED not in kinds,
        numbers=CALLS_IN_ONE not in kinds,
        names=_first_names(eager) if TIED in kinds else {},
    )


def _first_names(eager: Graph) -> dict[str, str]:
    """Give by the name of each tied parameter the first of its names."""
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for module in eager.modules:
        for own in module.parameters:
            name = f"{module.name}.{own.name}" if module.name else own.name
            names[name] = first.setdefault(own.number, name)
    return names
