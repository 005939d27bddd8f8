"""Makes the figures of an overlay, from the user's own values or from a built-in one."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from numbers import Integral, Real
from typing import Any, TypeAlias

from tbscope.checks import ask, entries_of
from tbscope.drawing.figures import Figure, Number, Target, sum_of, to_figure
from tbscope.errors import ArgumentError
from tbscope.ir.graph import Call, Graph, Node
from tbscope.ir.scopes import Scope
from tbscope.overlays.built_in import BUILT_IN, communication, held_parameters
from tbscope.words import error_text, shown

__all__ = ["OverlayValues", "make_overlay"]

OverlayValues: TypeAlias = str | Mapping[Any, Any] | Callable[[Node], Any]
"""The name of a built-in overlay, numbers by name, or a function from a node to its number.

A name is one that `Graph.find` takes; a `Node`, a `Call` or a `Scope` will do, too.
"""

_MOST_CHARACTERS = 60
# Some of them still have a sum.
_LARGEST = 1e300


def make_overlay(graph: Graph, tag: str, values: OverlayValues | None = None) -> tuple[Figure, ...]:
    """Return the figures of an overlay: one that feeds both colourings, or one for each.

    Args:
        graph: A graph as it was recorded.
        tag: What it is called.
        values: Where the numbers come from; None for the built-in of the tag's name.
    Raises:
        ArgumentError: There is no such built-in, a number is none that can be drawn, or
            there is none at all.
        NotFoundError: The graph holds nothing of a name that a number is given for.
    """
    if values is None or isinstance(values, str):
        name = tag if values is None else values
        return _built_in(graph, str.__str__(name), asked=values is not None)
    numbers: dict[Target, list[Number]] = defaultdict(list)
    for target, number in _given(graph, tag, values):
        numbers[target].append(number)
    if not numbers:
        raise ArgumentError(
            f"the overlay {shown(tag)} has no number",
            why="its values are empty, or None for every node",
            fix="give a number for at least one node",
        )
    return (to_figure(tag, {target: sum_of(held) for target, held in numbers.items()}),)


def _built_in(graph: Graph, name: str, *, asked: bool) -> tuple[Figure, ...]:
    start, _, mesh = name.partition("/")
    make = BUILT_IN.get(name)
    if mesh and start == "communication_bytes":
        make = partial(communication, mesh=mesh)
    if make is None:
        raise ArgumentError(
            f"no overlay {shown(name)} is built in",
            why=f"those are {', '.join(BUILT_IN)}",
            fix="values='flops'"
            if asked
            else "give values: a mapping from names to numbers, or a function of a node",
        )
    made = make(graph)
    if not isinstance(made, tuple):
        made = (to_figure("at_peak_bytes" if start == "peak" else start, made),)
    if not any(figure.numbers for figure in made):
        raise ArgumentError(
            f"the overlay {shown(name)} has no number",
            why=f"nothing in the graph of {graph.name} has one",
            fix="graph.summary() tells what is known of the graph",
        )
    return made


def _given(
    graph: Graph, tag: str, values: Mapping[Any, Any] | Callable[[Node], Any]
) -> Iterator[tuple[Target, Number]]:
    """Yield each number with the node or scope that it belongs to."""
    if callable(values) and not isinstance(values, type):
        for node in graph.nodes:
            place = f"%{node.name}"
            given = ask(
                *(values, node),
                option="values",
                place=place,
                fix="have it give a number, or None, for every node",
            )
            number = _plain_number(given, tag, place)
            if number is not None:
                yield node, number
        return
    if not isinstance(values, Mapping):
        raise ArgumentError(
            f"the values of the overlay {shown(tag)} are {shown(values)}",
            why="values are a mapping from names to numbers, a function of a node, or the name "
            f"of a built-in: {', '.join(BUILT_IN)}",
            fix="values={'layer1.0.weight': 0.5}, or values=lambda node: len(node.kernels)",
        )
    named, known = _by_name(graph), {*graph.nodes, *graph.scopes()}
    for key, value in entries_of(values, option="values").items():
        target = key.scope if isinstance(key, Call) else key
        if type(key) is str:
            if key not in named:
                # It raises, with the names that are near.
                graph.find(key)
            target = named[key]
        elif not isinstance(target, Node | Scope) or target not in known:
            why = "a number is given for a name, a Node, a Call or a Scope"
            if isinstance(target, Node | Scope):
                why = f"it is none of the graph of {graph.name}"
            raise ArgumentError(
                f"the overlay {shown(tag)} has a number for {shown(target)}",
                why=why,
                fix="take what graph.find, graph.nodes and graph.calls of this very graph give",
            )
        number = _plain_number(value, tag, shown(key))
        if number is not None:
            yield target, number


def _by_name(graph: Graph) -> dict[str, Node | Scope]:
    """Return the nodes and scopes of a graph by the names that `Graph.find` takes."""
    named: dict[str, Node | Scope] = {}
    # The order in which `Graph.find` looks.
    for call in graph.calls:
        if call.qualified_name is not None:
            named.setdefault(call.qualified_name, call.scope)
        named.setdefault(call.scope.path, call.scope)
    for node in graph.nodes:
        named.setdefault(node.name, node)
    for scope in graph.scopes():
        named.setdefault(scope.path, scope)
        if scope.qualified_name is not None:
            named.setdefault(scope.qualified_name, scope)
    for held in held_parameters(graph):
        named.setdefault(held.name, held.place)
    return named


def _plain_number(value: object, tag: str, name: str) -> Number | None:
    """Convert any kind of number to an int or a float; None stays None."""
    if value is None:
        return None
    given, plain, cause = value, None, None
    why = "a number is an int, a float, or a tensor without dimensions"
    try:
        if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
            # A tensor or an array that holds one number, unless it is on the device meta.
            value = value.item()
        if isinstance(value, Real):
            plain = int(value) if isinstance(value, Integral) else float(value)
    except Exception as error:  # noqa: BLE001  It is told.
        cause, why = error, f"it holds no number: {error_text(error)}"
    # A whole number may be too large for a float, and so for the page.
    if plain is not None and (plain > _LARGEST or math.isnan(plain)):
        why = "the page cannot show what is not finite"
    elif plain is not None and plain < 0:
        why = "the page cannot show numbers below 0"
    elif plain is not None:
        return int(plain) if plain == int(plain) else plain
    raise ArgumentError(
        f"the overlay {shown(tag)} has {shown(given, _MOST_CHARACTERS)} for {name}",
        why=why,
        fix="give a finite number from 0 on (abs(x), x - smallest), or None for no number",
    ) from cause
