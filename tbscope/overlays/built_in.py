"""The overlays that tbscope knows itself, by name."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TypeAlias

from tbscope.drawing.figures import Figure, Number, Target, by_kernel, profile_figures, to_figure
from tbscope.errors import ArgumentError
from tbscope.figures.costs import Costs, node_costs
from tbscope.figures.here import bytes_here, communication_bytes, flops_here
from tbscope.figures.peak import bytes_at_peak
from tbscope.figures.saved import has_backward, saved_bytes
from tbscope.ir.graph import Graph, Node
from tbscope.ir.modules import Holdings
from tbscope.ir.regions import OPERATIONS
from tbscope.overlays.parameters import held_parameters
from tbscope.words import shown

__all__ = ["BUILT_IN", "communication"]

_Maker: TypeAlias = Callable[[Graph], tuple[Figure, ...]]


def _from_costs(name: str, number: Callable[[Costs], Number]) -> _Maker:
    def make(graph: Graph) -> tuple[Figure, ...]:
        costs = node_costs(graph, backward=False)
        return (to_figure(name, {node: number(cost) for node, cost in costs.items()}),)

    return make


def _flops(graph: Graph) -> tuple[Figure, ...]:
    """Return the FLOPs of each operation, or of its kernels where they were recorded.

    An operation that computes and has no formula has no number: a 0 would be wrong.
    """
    numbers: dict[Target, Number] = {}
    for node, cost in node_costs(graph, backward=False).items():
        if cost.flops or not cost.uncounted:
            numbers.update(by_kernel(node, cost.flops, lambda kernel: kernel.flops))
    known = {
        target: number
        for target, number in numbers.items()
        if not (isinstance(target, Node) and target.flops is None and target.kernels)
    }
    return (to_figure("flops", known),)


def _backward_flops(graph: Graph) -> tuple[Figure, ...]:
    costs = node_costs(graph)
    numbers: dict[Target, Number] = {
        node: cost.backward_flops
        for node, cost in costs.items()
        if cost.backward_flops or not cost.uncounted
    }
    return (to_figure("backward_flops", numbers),)


def _from_holdings(name: str, number: Callable[[Holdings], int]) -> _Maker:
    """Return a maker of a figure that sums a number over parameters, each counted once."""

    def make(graph: Graph) -> tuple[Figure, ...]:
        numbers: dict[Target, Number] = defaultdict(int)
        once = {held.identity: held for held in held_parameters(graph)}
        for held in once.values():
            if held.parameter.kind == "parameter":
                holdings = Holdings()
                holdings.add(held.parameter)
                numbers[held.place] += number(holdings)
        return (to_figure(name, numbers),)

    return make


def _calls(graph: Graph) -> tuple[Figure, ...]:
    return (to_figure("calls", {call.scope: 1 for call in graph.calls}),)


def _kernels(graph: Graph) -> tuple[Figure, ...]:
    operations = (node for node in graph.nodes if node.kind in OPERATIONS)
    return (to_figure("kernels", {node: len(node.kernels) for node in operations}),)


def _parameters_here(graph: Graph) -> tuple[Figure, ...]:
    numbers: dict[Target, Number] = defaultdict(int)
    for held in {held.identity: held for held in held_parameters(graph)}.values():
        if held.parameter.kind == "parameter":
            numbers[held.place] += bytes_here(held.parameter)
    return (to_figure("parameter_bytes_here", numbers),)


def _flops_here(graph: Graph) -> tuple[Figure, ...]:
    nodes = (node for node in graph.nodes if node.kind in OPERATIONS and node.flops is not None)
    return (to_figure("flops_here", {node: flops_here(node) for node in nodes}),)


def communication(graph: Graph, mesh: str | None = None) -> tuple[Figure, ...]:
    """Return how many bytes each operation moves between ranks, as one of them sees it.

    Args:
        graph: A graph as it was recorded.
        mesh: The dimension of the device mesh along which they are moved; None for any.
    Raises:
        ArgumentError: Nothing is moved along this dimension.
    """
    moved = communication_bytes(graph)
    known = sorted({node.collective.mesh for node in moved if node.collective is not None} - {""})
    if mesh is not None and mesh not in known:
        raise ArgumentError(
            f"nothing in the graph of {graph.name} is moved along {shown(mesh)}",
            why=f"the dimensions of the device mesh are {', '.join(known) or 'none'}",
            fix=f"communication_bytes/{known[0]}" if known else "communication_bytes",
        )
    name = "communication_bytes"
    along: dict[Target, Number] = {
        node: count
        for node, count in moved.items()
        if mesh is None or (node.collective is not None and node.collective.mesh == mesh)
    }
    return (to_figure(name, along),)


def _saved(graph: Graph) -> tuple[Figure, ...]:
    if not has_backward(graph):
        raise ArgumentError(
            f"the graph of {graph.name} has no backward pass",
            why="what is saved is what a recorded backward pass has read",
            fix="graph = tbscope.trace(model, input, loss=..., backward=True)",
        )
    numbers: dict[Target, Number] = dict.fromkeys(
        (node for node in graph.nodes if node.kind in OPERATIONS), 0
    )
    for node, saved in saved_bytes(graph).items():
        numbers[node] = saved
    return (to_figure("saved_bytes", numbers),)


def _peak(graph: Graph) -> tuple[Figure, ...]:
    held = bytes_at_peak(graph)
    return (to_figure("at_peak_bytes", {node: held[node] for node in held}),)


def _time(graph: Graph) -> tuple[Figure, ...]:
    if graph.profile is None:
        raise ArgumentError(
            f"the graph of {graph.name} has no times",
            why="nothing was measured when it ran",
            fix="graph = tbscope.trace(model, input, profile=True)",
        )
    return profile_figures(graph)


BUILT_IN: Mapping[str, _Maker] = {
    "flops": _flops,
    "backward_flops": _backward_flops,
    "parameters": _from_holdings("parameters", lambda held: held.parameters),
    "parameter_bytes": _from_holdings("parameter_bytes", lambda held: held.parameter_bytes),
    "activation_bytes": _from_costs("activation_bytes", lambda costs: costs.activation_bytes),
    "moved_bytes": _from_costs("moved_bytes", lambda costs: costs.moved_bytes),
    "saved_bytes": _saved,
    "time": _time,
    "memory": _from_costs("allocated_bytes", lambda costs: costs.activation_bytes),
    "peak": _peak,
    "calls": _calls,
    "operations": _from_costs("operations", lambda costs: costs.operations),
    "kernels": _kernels,
    "communication_bytes": communication,
    "parameter_bytes_here": _parameters_here,
    "flops_here": _flops_here,
}
"""The functions that make the figures of each built-in overlay."""
