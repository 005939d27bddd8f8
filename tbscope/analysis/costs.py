"""Costs: what operations compute and what memory they take, by node, by scope, in all.

They are told of a graph as it was recorded, not of one that a pass has changed for the
drawing: what is left out of a drawing has run all the same.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from tbscope.ir.graph import Graph, Node, Parameter, Shape, Sharding, Value, require_graph
from tbscope.ir.scope_io import OPERATIONS, STATE, inside_out
from tbscope.ir.scopes import Scope
from tbscope.utils.validation import check_truth

__all__ = [
    "Costs",
    "bytes_here",
    "communication_bytes",
    "flops_here",
    "graph_costs",
    "has_backward",
    "needs_gradient",
    "node_costs",
    "numbers_here",
    "saved_bytes",
    "scope_costs",
    "scope_work",
    "uncounted_kernels",
    "work_of",
]

# What cuts the way of a gradient: what reads a tensor for its sizes alone does, too.
_CUTS = frozenset(
    {
        *("detach", "detach_", "empty_like", "full_like", "ones_like", "rand_like"),
        *("randint_like", "randn_like", "zeros_like", "new_empty", "new_empty_strided"),
        *("new_full", "new_ones", "new_zeros"),
    }
)
_FLOATS = ("float", "bfloat", "complex")


@dataclass(slots=True)
class Costs:
    """What one operation, or all in a scope, compute and take.

    Attributes:
        flops: Floating-point operations of matrix products, convolutions and attention, two
            for each multiplication with its addition.
        backward_flops: Those of the backward pass: where it was recorded, of what ran, else as
            far as gradients are needed.
        activation_bytes: Bytes of the storages that results take: views take none.
        moved_bytes: Bytes of all tensors that are read and given, where something is computed
            or copied.
        saved_bytes: Bytes of results that a recorded backward pass has read.
        duration_us: How long it ran, in microseconds; None where that was not measured.
        operations: How many operations these are.
        calls: How many module calls began there.
        uncounted: How often each kernel ran that computes and has no formula.
    """

    flops: int = 0
    backward_flops: int = 0
    activation_bytes: int = 0
    moved_bytes: int = 0
    saved_bytes: int = 0
    duration_us: float | None = None
    operations: int = 0
    calls: int = 0
    uncounted: Counter[str] = field(default_factory=Counter)

    @property
    def intensity(self) -> float | None:
        """FLOPs for each byte that is moved; None where none is."""
        return self.flops / self.moved_bytes if self.moved_bytes else None

    def add(self, other: "Costs") -> None:
        """Add what another one tells."""
        self.flops += other.flops
        self.backward_flops += other.backward_flops
        self.activation_bytes += other.activation_bytes
        self.moved_bytes += other.moved_bytes
        self.saved_bytes += other.saved_bytes
        self.operations += other.operations
        self.calls += other.calls
        if other.duration_us is not None:
            self.duration_us = (self.duration_us or 0.0) + other.duration_us
        for name, times in other.uncounted.items():
            self.uncounted[name] += times


def node_costs(graph: Graph, *, backward: bool = True) -> dict[Node, Costs]:
    """Return the costs of each operation.

    Args:
        graph: A graph as it was recorded.
        backward: Whether those of the backward pass are asked for, too.
    Raises:
        ArgumentError: It is no graph.
    """
    require_graph(graph, "node_costs")
    check_truth("backward", backward)
    recorded = backward and has_backward(graph)
    gradients = needs_gradient(graph) if backward and not recorded else frozenset()
    saved = saved_bytes(graph) if recorded else {}
    uncounted = graph.uncounted
    costs: dict[Node, Costs] = {}
    for node in graph.nodes:
        if node.kind not in OPERATIONS:
            continue
        cost = costs[node] = Costs(
            node.flops or 0,
            activation_bytes=node.allocated_bytes,
            duration_us=node.duration_us,
            operations=1,
        )
        if node.allocated_bytes or node.flops:
            cost.moved_bytes = sum(value.size_bytes or 0 for value in {*node.inputs, *node.outputs})
        if node.gradients and not gradients.isdisjoint(node.outputs):
            inputs = node.inputs
            cost.backward_flops = sum(
                part.flops
                for part in node.gradients
                if any(inputs[place] in gradients for place in part.inputs)
            )
        if recorded:
            # What has run is counted; no rule says what would run.
            cost.saved_bytes = saved.get(node, 0)
            if node.phase == "backward":
                cost.flops, cost.backward_flops = 0, cost.flops
        kernels = uncounted_kernels(node, uncounted)
        if kernels:
            cost.uncounted = Counter(kernels)
    return costs


def uncounted_kernels(node: Node, uncounted: Mapping[str, str]) -> list[str]:
    """Return the kernels that a node's FLOPs leave out, as often as they ran.

    Args:
        node: An operation.
        uncounted: Those of its graph.
    """
    if node.flops == 0 or uncounted.keys().isdisjoint(node.kernels):
        return []
    return [name for name in node.kernels if name in uncounted]


def scope_work(graph: Graph) -> dict[Scope, Costs]:
    """Return the FLOPs and the kernels without of each scope that has some, and of no others.

    It takes a small part of the time of all costs.
    """
    totals: dict[Scope, Costs] = defaultdict(Costs)
    uncounted = graph.uncounted
    for node in graph.nodes:
        if node.scope is None:
            continue
        if node.flops:
            totals[node.scope].flops += node.flops
        if uncounted and node.kernels:
            for name in uncounted_kernels(node, uncounted):
                totals[node.scope].uncounted[name] += 1
    for scope, above in inside_out(graph.scopes()):
        if scope in totals:
            totals[above].add(totals[scope])
    return totals


def work_of(node: Node, graph: Graph) -> Costs:
    """Return the FLOPs and the kernels without of one node."""
    return Costs(node.flops or 0, uncounted=Counter(uncounted_kernels(node, graph.uncounted)))


def scope_costs(graph: Graph) -> dict[Scope, Costs]:
    """Return the costs of all that ran in each scope and below it.

    Args:
        graph: A graph as it was recorded.
    Raises:
        ArgumentError: It is no graph.
    """
    require_graph(graph, "scope_costs")
    totals: dict[Scope, Costs] = {scope: Costs() for scope in graph.scopes()}
    for node, cost in node_costs(graph).items():
        if node.scope is not None:
            totals[node.scope].add(cost)
    for call in graph.calls:
        totals[call.scope].calls += 1
    for scope, above in inside_out(totals):
        totals[above].add(totals[scope])
    return totals


def graph_costs(graph: Graph, *, backward: bool = True) -> Costs:
    """Return the costs of everything that ran.

    Args:
        graph: A graph as it was recorded.
        backward: As for `node_costs`.
    Raises:
        ArgumentError: It is no graph.
    """
    require_graph(graph, "graph_costs")
    whole = Costs(calls=len(graph.calls))
    for cost in node_costs(graph, backward=backward).values():
        whole.add(cost)
    return whole


# -- the backward pass ----------------------------------------------------------------------


def needs_gradient(graph: Graph) -> frozenset[Value]:
    """Return the values through which gradients flow back in training.

    These are on a way from a parameter that requires one to an output of the graph, along
    floats only and through nothing that cuts it. It is taken that a loss reads every
    output, and that no input needs a gradient.
    """
    flows = [node for node in graph.nodes if node.kind in OPERATIONS and not _cuts(node)]
    found: set[Value] = set()
    for node in graph.nodes:
        if node.kind == "parameter" and node.attributes.get("requires_grad"):
            found.update(node.outputs)
    for node in flows:
        if not found.isdisjoint(_written(node.control_inputs)):
            # Into what it reads, another one wrote that needs a gradient, through a view.
            made = [value for value in node.inputs if value.producer.kind not in STATE]
            found.update(value for value in made if value.dtype.startswith(_FLOATS))
        if not found.isdisjoint(node.inputs):
            found.update(value for value in node.outputs if value.dtype.startswith(_FLOATS))
    wanted: set[Value] = set()
    for output in graph.outputs:
        wanted.update(found.intersection((output.value, *_written(output.control_inputs))))
    for node in reversed(flows):
        if not wanted.isdisjoint(node.outputs):
            wanted.update(found.intersection((*node.inputs, *_written(node.control_inputs))))
    return frozenset(wanted)


def _cuts(node: Node) -> bool:
    """Tell whether no gradient flows back through an operation, by its kernels.

    So `x.data` does not differ from `x.detach()`. What fills an `out` has no backward pass.
    """
    if any(name == "out" and nest is not None for name, nest in node.arguments):
        return True
    return all(name.removeprefix("aten::") in _CUTS for name in node.kernels or (node.op,))


def _written(writers: Iterable[Node]) -> list[Value]:
    return [value for writer in writers for value in writer.outputs]


def has_backward(graph: Graph) -> bool:
    """Tell whether a backward pass was recorded."""
    return any(node.phase == "backward" for node in graph.nodes)


def saved_bytes(graph: Graph) -> dict[Node, int]:
    """Return the bytes that each operation has made and a backward pass has read.

    They are alive from the one pass to the other. Views are counted once, with what they show;
    parameters and inputs are there anyhow. A loss, at which a pass begins, is not saved.
    """
    saved: dict[Value, None] = {}
    for node in graph.nodes:
        if node.phase == "backward" and node.role != "maker" and node.op != "ones_like":
            for value in node.inputs:
                # What gives what it reads, or a view of it, hands that on.
                shown = value
                while (maker := shown.producer).inputs and (
                    maker.role == "view" or not maker.kernels
                ):
                    shown = maker.inputs[0]
                saved[shown] = None
    found: dict[Node, int] = {}
    for value in saved:
        maker = value.producer
        if maker.kind in OPERATIONS and maker.phase == "forward":
            found[maker] = found.get(maker, 0) + (value.size_bytes or 0)
    return found


# -- what one rank has of what is spread over several ----------------------------------------


def numbers_here(one: Parameter) -> int:
    """Return how many numbers of a parameter a rank holds."""
    return _numbers_in(one.shape if one.sharding is None else one.sharding.shape)


def bytes_here(one: Parameter) -> int:
    """Return how many bytes of a parameter a rank holds."""
    return int(one.size_bytes * _share_here(one.shape, one.sharding))


def flops_here(node: Node) -> int:
    """Return the floating-point operations that a rank does of those of a node.

    They are those of whole tensors. A rank does as much of them as it has of the tensor of which
    it has least: of a product whose rows are spread that is the result, of one whose sums are
    spread an operand.
    """
    if not node.flops:
        return 0
    shares = [
        _share_here(value.shape, value.sharding)
        for value in (*node.inputs, *node.outputs)
        if value.sharding is not None
    ]
    return round(node.flops * min(shares, default=Fraction(1)))


def communication_bytes(graph: Graph) -> dict[Node, int]:
    """Return how many bytes each operation moves between ranks, as one of them sees it."""
    return {
        node: node.collective.moved_bytes
        for node in graph.nodes
        if node.kind in OPERATIONS and node.collective is not None
    }


def _share_here(shape: Shape | None, sharding: Sharding | None) -> Fraction:
    whole = _numbers_in(shape)
    return Fraction(_numbers_in(sharding.shape), whole) if sharding and whole else Fraction(1)


def _numbers_in(shape: Iterable[int | None] | None) -> int:
    return 0 if shape is None else math.prod(size or 0 for size in shape)
