"""The overlays that tbscope knows itself, by name."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from tbscope.drawing.figures import Figure, Number, Target, by_kernel, profile_figures
from tbscope.drawing.naming import attribute_of
from tbscope.errors import ArgumentError
from tbscope.figures.costs import Costs, node_costs
from tbscope.figures.here import bytes_here, communication_bytes, flops_here
from tbscope.figures.peak import bytes_at_peak
from tbscope.figures.saved import has_backward, saved_bytes
from tbscope.ir.graph import Graph, Node, Parameter
from tbscope.ir.modules import ModuleTree, Part, numbers_in, parameter_key, walk
from tbscope.ir.regions import OPERATIONS, STATE
from tbscope.ir.scopes import Scope
from tbscope.words import shown

__all__ = ["BUILT_IN", "Held", "communication", "held_parameters"]

_Made: TypeAlias = Mapping[Target, Number] | tuple[Figure, ...]
"""The numbers of the figure that an overlay has, or its figures."""


class Held(NamedTuple):
    """A parameter or buffer of a graph's modules under one of its names.

    Attributes:
        name: The qualified name.
        parameter: What it is.
        identity: The same for all names of one parameter.
        place: The node that stands for it, or where none does, the scope of its module, or
            the innermost one around it that was called.
    """

    name: str
    parameter: Parameter
    identity: int | str
    place: Node | Scope


def held_parameters(graph: Graph) -> Iterator[Held]:
    """Yield each parameter and buffer of the model, once for each of its names."""
    nodes = {(node.scope, attribute_of(node)): node for node in graph.nodes if node.kind in STATE}
    parts = list(walk(ModuleTree(graph).top))
    places: dict[int | str, Node] = {}
    for part in parts:
        for parameter in part.held:
            for scope in part.scopes:
                node = nodes.get((scope, parameter.name))
                if node is not None:
                    places.setdefault(parameter_key(part, parameter), node)
    for part in parts:
        owner = part.calls[0].scope.path if part.name is None and part.calls else part.name
        around: Part | None = part
        while around is not None and not around.calls:
            around = around.parent
        for parameter in part.held:
            identity = parameter_key(part, parameter)
            place = places.get(identity) or (around.calls[0].scope if around else None)
            if place is not None:
                name = f"{owner}.{parameter.name}" if owner else parameter.name
                yield Held(name, parameter, identity, place)


def _of_parameters(number: Callable[[Parameter], int]) -> Callable[[Graph], _Made]:
    """Return a function that sums a number over parameters, each counted once."""

    def make(graph: Graph) -> _Made:
        numbers: dict[Target, Number] = defaultdict(int)
        for held in {held.identity: held for held in held_parameters(graph)}.values():
            if held.parameter.kind == "parameter":
                numbers[held.place] += number(held.parameter)
        return numbers

    return make


def _of_costs(number: Callable[[Costs], Number]) -> Callable[[Graph], _Made]:
    def make(graph: Graph) -> _Made:
        costs = node_costs(graph, backward=False)
        return {node: number(cost) for node, cost in costs.items()}

    return make


def _flops(graph: Graph) -> _Made:
    """Return the FLOPs of each operation, or of its kernels where they were recorded.

    An operation that computes and has no formula has no number: a 0 would be wrong.
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
    nodes = (node for node in graph.nodes if node.kind in OPERATIONS and node.flops is not None)
    return {node: flops_here(node) for node in nodes}


def communication(graph: Graph, mesh: str | None = None) -> _Made:
    """Return how many bytes each operation moves between ranks, as one of them sees it.

    Args:
        graph: A graph as it was recorded.
        mesh: The dimension of the device mesh along which they are moved; None for any.
    Raises:
        ArgumentError: Nothing is moved along this dimension.
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
            why="what is saved is what a recorded backward pass has read",
            fix="graph = tbscope.trace(model, input, loss=..., backward=True)",
        )
    saved = saved_bytes(graph)
    return {node: saved.get(node, 0) for node in graph.nodes if node.kind in OPERATIONS}


def _peak(graph: Graph) -> _Made:
    held = bytes_at_peak(graph)
    return {node: held[node] for node in held}


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
    "parameters": _of_parameters(numbers_in),
    "parameter_bytes": _of_parameters(lambda one: one.size_bytes),
    "activation_bytes": _of_costs(lambda costs: costs.activation_bytes),
    "moved_bytes": _of_costs(lambda costs: costs.moved_bytes),
    "saved_bytes": _saved,
    "time": _time,
    "peak": _peak,
    "calls": lambda graph: {call.scope: 1 for call in graph.calls},
    "operations": _of_costs(lambda costs: costs.operations),
    "communication_bytes": communication,
    "parameter_bytes_here": _of_parameters(bytes_here),
    "flops_here": _flops_here,
}
"""The functions that make the numbers of each built-in overlay, or its figures."""
