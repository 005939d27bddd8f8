"""Makes the figures of an overlay, from the user's own values or from a built-in one."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

from tbscope.checks import ask, entries_of
from tbscope.drawing.figures import Figure, Number, Target, sum_of, to_figure
from tbscope.errors import ArgumentError
from tbscope.ir.graph import Graph, Node
from tbscope.overlays.built_in import BUILT_IN, communication
from tbscope.overlays.numbers import plain_number
from tbscope.overlays.targets import Targets
from tbscope.words import shown

__all__ = ["OverlayValues", "make_overlay"]

OverlayValues: TypeAlias = str | Mapping[Any, Any] | Callable[[Node], Any]
"""The name of a built-in overlay, numbers by `Key`, or a function from a node to its number."""


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
    make = BUILT_IN.get(name)
    start, slash, mesh = name.partition("/")
    if slash and start == "communication_bytes":
        make = partial(communication, mesh=mesh)
    if make is None:
        raise ArgumentError(
            f"no overlay {shown(name)} is built in",
            why=f"those are {', '.join(BUILT_IN)}",
            fix="values='flops'"
            if asked
            else "give values: a mapping from names to numbers, or a function of a node",
        )
    figures = make(graph)
    if not any(figure.numbers for figure in figures):
        raise ArgumentError(
            f"the overlay {shown(name)} has no number",
            why=f"nothing in the graph of {graph.name} has one",
            fix="graph.summary() tells what is known of the graph",
        )
    return figures


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
            number = plain_number(given, tag, place)
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
    targets = Targets(graph)
    for key, value in entries_of(values, option="values").items():
        target = targets.find(key, tag)
        number = plain_number(value, tag, shown(key))
        if number is not None:
            yield target, number
