"""Compares a graph with that of an eager call; what differs has a name, or is a fault."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from torch import nn

from tbscope.ir.graph import Graph
from tests.agreement import (
    View,
    disagreements,
    given_numbers,
    hyperparameters,
    operations,
    undecided,
)

__all__ = [
    "ASKS",
    "CALLS_IN_ONE",
    "CHOSEN",
    "CONSTANTS",
    "DEAD",
    "IDENTITIES",
    "KINDS",
    "METHODS",
    "NUMBERS",
    "OPERATION_KINDS",
    "SEVERAL",
    "SIZES",
    "SPARSE",
    "STRIDES",
    "TIED",
    "UNREGISTERED",
    "VIEWED",
    "Comparison",
    "compare",
    "compare_operations",
]

UNREGISTERED = "Modules that nobody holds"
TIED = "Tied parameters"
CALLS_IN_ONE = "Calls of one module"
SEVERAL = "Modules with several names"
VIEWED = "Views of what was written"
SIZES = "Sizes of other tensors"
IDENTITIES = "Results that are the input"
METHODS = "Methods other than forward"

ASKS = "Code that asks whether it is traced"
DEAD = "Dead code"

KINDS = (UNREGISTERED, TIED, CALLS_IN_ONE, SEVERAL, VIEWED, SIZES, IDENTITIES, METHODS)
"""The differences that a source may show beside those of every program, as docs/sources.md names
them."""

NUMBERS = "Numbers of a trace"
CONSTANTS = "Constants of a trace"
STRIDES = "Strides"
CHOSEN = "Sizes that the data decides"
SPARSE = "Sparse tensors"

OPERATION_KINDS = (DEAD, ASKS, NUMBERS, CONSTANTS, STRIDES, CHOSEN, SPARSE, METHODS)
"""The differences between the kernels of a source and those of an eager call."""


@dataclass(frozen=True)
class Comparison:
    """What a comparison found.

    Attributes:
        kinds: The names of the differences that are explained.
        faults: What differs and has no name.
    """

    kinds: tuple[str, ...]
    faults: dict[str, Any]


def compare(
    eager: Graph, other: Graph, allowed: Sequence[str], module: nn.Module | None = None
) -> Comparison:
    """Compare a graph with that of an eager call of the same model.

    Args:
        eager: The graph of the eager call.
        other: The graph of another source.
        allowed: The kinds of differences that this source may show.
        module: The model, which has the names of its modules.
    """
    if not disagreements(eager, other):
        return Comparison((), {})
    rest = disagreements(eager, other, view_of(allowed, eager, module))
    if rest:
        return Comparison((), rest)

    def is_needed(kind: str) -> bool:
        others = [each for each in allowed if each != kind]
        return bool(disagreements(eager, other, view_of(others, eager, module)))

    return Comparison(tuple(filter(is_needed, allowed)), {})


def compare_operations(
    eager: Graph,
    other: Graph,
    allowed: Sequence[str],
    answered: Callable[[], Graph],
    module: nn.Module | None = None,
) -> Comparison:
    """Compare the kernels of each call, and its hyper-parameters, with those of an eager call.

    A difference has a name if it is gone without its cause.

    Args:
        eager: The graph of the eager call.
        other: The graph of another source.
        allowed: The kinds of differences that this source may show.
        answered: Makes the graph of an eager call in which code is told that it is traced.
        module: The model.
    """
    view = view_of(allowed, eager, module)
    theirs = hyperparameters(other, view)
    ours = {path: told for path, told in hyperparameters(eager, view).items() if path in theirs}
    faults = {} if ours == theirs else {"hyperparameters": _unlike(ours, theirs)}
    causes = [kind for kind in OPERATION_KINDS if kind in allowed]
    again = answered() if ASKS in causes else eager
    left_out = {
        NUMBERS: given_numbers(other),
        CHOSEN: undecided(other, lambda shape: shape is not None and None in shape),
        SPARSE: undecided(other, lambda shape: shape is None),
    }
    count = range(len(causes) + 1)
    for kinds in [found for size in count for found in combinations(causes, size)]:
        shown = view_of([*(each for each in allowed if each not in causes), *kinds], eager, module)
        one, two = (
            operations(
                graph,
                shown,
                live=DEAD in kinds,
                fed=CONSTANTS in kinds,
                besides=set().union(*(left_out.get(kind, ()) for kind in kinds)),
                strides=STRIDES not in kinds,
            )
            for graph in (again if ASKS in kinds else eager, other)
        )
        if one == two:
            return Comparison(kinds, faults)
    return Comparison((), {**faults, "operations": _unlike(one, two)})


def _unlike(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
    return {
        path: (one.get(path), two.get(path))
        for path in {**one, **two}
        if one.get(path) != two.get(path)
    }


def view_of(kinds: Collection[str], eager: Graph, module: nn.Module | None = None) -> View:
    """Give the view of two graphs that does not show these kinds of differences."""
    names: dict[str, str] = {}
    if SEVERAL in kinds and module is not None:
        first: dict[nn.Module, str] = {}
        for name, part in module.named_modules(remove_duplicate=False):
            if first.setdefault(part, name) != name:
                names[name] = first[part]
    return View(
        unregistered=UNREGISTERED not in kinds,
        numbers=CALLS_IN_ONE not in kinds,
        names=_first_names(eager) if TIED in kinds else {},
        modules=names,
        views=VIEWED not in kinds,
        sizes=SIZES not in kinds,
        methods=METHODS not in kinds,
        identities=IDENTITIES not in kinds,
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
