"""Figures of an overlay, made from the user's own values or by a built-in overlay."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from numbers import Integral, Real
from typing import Any, NamedTuple, TypeAlias

from tbscope.analysis.costs import (
    Costs,
    communication_bytes,
    has_backward,
    local_bytes,
    local_flops,
    node_costs,
    saved_bytes,
)
from tbscope.analysis.peak_memory import bytes_at_peak
from tbscope.drawing.figures import (
    Figure,
    Number,
    Target,
    by_kernel,
    profile_figures,
    sum_of,
    to_figure,
)
from tbscope.drawing.naming import state_attributes
from tbscope.errors import ArgumentError
from tbscope.ir.graph import Call, Graph, Node, Parameter
from tbscope.ir.module_tree import ModulePart, ModuleTree, numel_of, parameter_key, walk
from tbscope.ir.scope_io import OPERATIONS, STATE
from tbscope.ir.scopes import Scope
from tbscope.messages import error_text, shown
from tbscope.utils.validation import ask, entries_of

OverlayValues: TypeAlias = str | Mapping[Any, Any] | Callable[[Node], Any]
"""The name of a built-in overlay, numbers by name, or a function from a node to its number.

A key is a name that `Graph.find` takes, or a `Node`, `Call` or `Scope` of the graph.
"""

_MOST_CHARACTERS = 60
# A sum of some numbers of this size is still finite.
_LARGEST = 1e300


def make_overlay(graph: Graph, tag: str, values: OverlayValues | None = None) -> tuple[Figure, ...]:
    """Return the figures of an overlay: one for both colourings (time and memory), or one for each.

    Args:
        graph: A graph as it was recorded.
        tag: The name of the overlay.
        values: The numbers or their source; None for the built-in overlay with the tag's name.
    Raises:
        ArgumentError: No built-in overlay has this name, a number cannot be drawn, or
            there is no number at all.
        NotFoundError: A key names nothing in the graph.
    """
    if values is None or isinstance(values, str):
        name = tag if values is None else values
        return _built_in(graph, str.__str__(name), asked=values is not None)
    numbers: dict[Target, list[Number]] = defaultdict(list)
    for target, number in _numbers_of(graph, tag, values):
        numbers[target].append(number)
    if not numbers:
        raise ArgumentError(
            f"the overlay {shown(tag)} has no number",
            why="its values are empty, or None for every node",
            fix="give a number for at least one node",
        )
    return (to_figure(tag, {target: sum_of(parts) for target, parts in numbers.items()}),)


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
            fix="graph.summary() prints the numbers of the graph",
        )
    return made


def _numbers_of(
    graph: Graph, tag: str, values: Mapping[object, object] | Callable[[Node], Any]
) -> Iterator[tuple[Target, Number]]:
    """Yield each number with the node or scope that it belongs to."""
    if callable(values) and not isinstance(values, type):
        for node in graph.nodes:
            node_name = f"%{node.name}"
            answer = ask(
                values,
                node,
                option="values",
                place=node_name,
                fix="return a number, or None, for every node",
            )
            number = _plain_number(answer, tag, node_name)
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
                # It raises NotFoundError, with near names.
                graph.find(key)
            target = named[key]
        elif not isinstance(target, Node | Scope) or target not in known:
            why = "a number is given for a name, a Node, a Call or a Scope"
            if isinstance(target, Node | Scope):
                why = f"it is none of the graph of {graph.name}"
            raise ArgumentError(
                f"the overlay {shown(tag)} has a number for {shown(target)}",
                why=why,
                fix="use nodes and calls of this graph: graph.find, graph.nodes, graph.calls",
            )
        number = _plain_number(value, tag, shown(key))
        if number is not None:
            yield target, number


def _by_name(graph: Graph) -> dict[str, Node | Scope]:
    """Return the nodes and scopes of a graph by the names that `Graph.find` takes."""
    named: dict[str, Node | Scope] = {}
    # The order of precedence in `Graph.find`.
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
    for parameter in held_parameters(graph):
        named.setdefault(parameter.name, parameter.target)
    return named


def _plain_number(value: object, tag: str, name: str) -> Number | None:
    """Convert any kind of number to an int or a float; None stays None."""
    if value is None:
        return None
    raw, plain, cause = value, None, None
    why = "a number is an int, a float, or a tensor without dimensions"
    try:
        if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
            # A tensor or an array of one number; `item` raises on the device meta.
            value = value.item()
        if isinstance(value, Real):
            plain = int(value) if isinstance(value, Integral) else float(value)
    except Exception as error:  # noqa: BLE001  The error below names it.
        cause, why = error, f"it holds no number: {error_text(error)}"
    # An int may be too large for a float, and so for the page.
    if plain is not None and (plain > _LARGEST or math.isnan(plain)):
        why = "the page cannot show what is not finite"
    elif plain is not None and plain < 0:
        why = "the page cannot show numbers below 0"
    elif plain is not None:
        return int(plain) if plain == int(plain) else plain
    raise ArgumentError(
        f"the overlay {shown(tag)} has {shown(raw, _MOST_CHARACTERS)} for {name}",
        why=why,
        fix="give a finite number from 0 on (abs(x), x - smallest), or None for no number",
    ) from cause


# -- built-in overlays -------------------------------------------------------------------------


_Made: TypeAlias = Mapping[Target, Number] | tuple[Figure, ...]
"""The numbers of an overlay's single figure, or its figures."""


class NamedParameter(NamedTuple):
    """A parameter or buffer of a graph's modules under one of its names.

    Attributes:
        name: The qualified name.
        parameter: Its shape, dtype and kind.
        identity: A key that is equal for all names of one parameter.
        target: The node that represents it; without a node, the scope of its module, or of the
            innermost enclosing module that was called.
    """

    name: str
    parameter: Parameter
    identity: int | str
    target: Node | Scope


def held_parameters(graph: Graph) -> Iterator[NamedParameter]:
    """Yield each parameter and buffer of the model, once for each of its names."""
    nodes = {
        (node.scope, attribute): node
        for node, attribute in state_attributes(graph).items()
        if node.kind in STATE
    }
    parts = walk(ModuleTree(graph).top)
    targets: dict[int | str, Node] = {}
    for part in parts:
        for parameter in part.own_state:
            for scope in part.scopes:
                node = nodes.get((scope, parameter.name))
                if node is not None:
                    targets.setdefault(parameter_key(part, parameter), node)
    for part in parts:
        owner = part.calls[0].scope.path if part.name is None and part.calls else part.name
        around: ModulePart | None = part
        while around is not None and not around.calls:
            around = around.parent
        for parameter in part.own_state:
            identity = parameter_key(part, parameter)
            target = targets.get(identity) or (around.calls[0].scope if around else None)
            if target is not None:
                name = f"{owner}.{parameter.name}" if owner else parameter.name
                yield NamedParameter(name, parameter, identity, target)


def _of_parameters(number: Callable[[Parameter], int]) -> Callable[[Graph], _Made]:
    """Return a function that sums a number over parameters, each counted once."""

    def make(graph: Graph) -> _Made:
        numbers: dict[Target, Number] = defaultdict(int)
        for parameter in {
            parameter.identity: parameter for parameter in held_parameters(graph)
        }.values():
            if parameter.parameter.kind == "parameter":
                numbers[parameter.target] += number(parameter.parameter)
        return numbers

    return make


def _of_costs(number: Callable[[Costs], Number]) -> Callable[[Graph], _Made]:
    def make(graph: Graph) -> _Made:
        return {node: number(cost) for node, cost in node_costs(graph, backward=False).items()}

    return make


def _flops(graph: Graph) -> _Made:
    """Return the FLOPs of each operation, or of its kernels where they were recorded.

    An operation that computes but has no formula gets no number: a 0 would be wrong.
    """
    numbers: dict[Target, Number] = {}
    for node, cost in node_costs(graph, backward=False).items():
        if cost.flops or not cost.uncounted:
            numbers.update(by_kernel(node, cost.flops, lambda kernel: kernel.flops))
    return {
        target: number
        for target, number in numbers.items()
        if not (isinstance(target, Node) and target.flops is None and target.kernels)
    }


def _backward_flops(graph: Graph) -> _Made:
    return {
        node: cost.backward_flops
        for node, cost in node_costs(graph).items()
        if cost.backward_flops or not cost.uncounted
    }


def _flops_here(graph: Graph) -> _Made:
    return {
        node: local_flops(node)
        for node in graph.nodes
        if node.kind in OPERATIONS and node.flops is not None
    }


def communication(graph: Graph, mesh: str | None = None) -> _Made:
    """Return the bytes that each operation moves between ranks, as counted on one rank.

    Args:
        graph: A graph as it was recorded.
        mesh: The dimension of the device mesh along which bytes are counted; None for all.
    Raises:
        ArgumentError: No bytes are moved along this dimension.
    """
    moved = communication_bytes(graph)
    along = {node: node.collective.mesh for node in moved if node.collective is not None}
    known = sorted({*along.values()} - {""})
    if mesh is not None and mesh not in known:
        raise ArgumentError(
            f"nothing in the graph of {graph.name} is moved along {shown(mesh)}",
            why=f"the dimensions of the device mesh are {', '.join(known) or 'none'}",
            fix=f"communication_bytes/{known[0]}" if known else "communication_bytes",
        )
    return {node: count for node, count in moved.items() if mesh in (None, along[node])}


def _saved(graph: Graph) -> _Made:
    if not has_backward(graph):
        raise ArgumentError(
            f"the graph of {graph.name} has no backward pass",
            why="saved tensors are those that a recorded backward pass has read",
            fix="graph = tbscope.trace(model, input, loss=..., backward=True)",
        )
    saved = saved_bytes(graph)
    return {node: saved.get(node, 0) for node in graph.nodes if node.kind in OPERATIONS}


def _time(graph: Graph) -> _Made:
    if graph.profile is None:
        raise ArgumentError(
            f"the graph of {graph.name} has no times",
            why="nothing was measured when it ran",
            fix="graph = tbscope.trace(model, input, profile=True)",
        )
    return profile_figures(graph)


BUILT_IN: Mapping[str, Callable[[Graph], _Made]] = {
    "flops": _flops,
    "backward_flops": _backward_flops,
    "parameters": _of_parameters(numel_of),
    "parameter_bytes": _of_parameters(lambda parameter: parameter.size_bytes),
    "activation_bytes": _of_costs(lambda costs: costs.activation_bytes),
    "moved_bytes": _of_costs(lambda costs: costs.moved_bytes),
    "saved_bytes": _saved,
    "time": _time,
    "peak": lambda graph: dict(bytes_at_peak(graph).items()),
    "calls": lambda graph: {call.scope: 1 for call in graph.calls},
    "operations": _of_costs(lambda costs: costs.operations),
    "communication_bytes": communication,
    "parameter_bytes_here": _of_parameters(local_bytes),
    "flops_here": _flops_here,
}
"""The functions that make the numbers of each built-in overlay, or its figures."""
