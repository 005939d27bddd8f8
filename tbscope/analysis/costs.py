"""Costs: compute and memory of operations, by node, by scope and in total.

The graph must be as recorded, and not changed by passes for a drawing: an operation that the
drawing leaves out ran nevertheless.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from tbscope.ir.graph import Graph, Node, Parameter, Shape, Sharding, Value, require_graph
from tbscope.ir.scope_io import OPERATIONS, STATE, children_first
from tbscope.ir.scopes import Scope
from tbscope.utils.validation import check_truth

__all__ = [
    "Costs",
    "GraphCosts",
    "communication_bytes",
    "costs",
    "has_backward",
    "local_bytes",
    "local_flops",
    "local_numel",
    "needs_gradient",
    "node_costs",
    "saved_bytes",
    "scope_work",
    "uncounted_kernels",
    "work_of",
]

# Operations that stop gradients, among them those that read only the shape of a tensor.
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
    """Compute and memory of one operation, or of all operations in a scope.

    Attributes:
        flops: Floating-point operations of matrix products, convolutions and attention, two
            for each multiply-add.
        backward_flops: FLOPs of the backward pass: of its operations if it was recorded, else of
            the gradients that training would need.
        activation_bytes: Bytes of the storages of the results, without views.
        moved_bytes: Bytes of all tensors that are read and written by operations that compute or
            copy something.
        saved_bytes: Bytes of results that a recorded backward pass has read.
        duration_us: Duration in microseconds; None if it was not measured.
        operations: The number of operations.
        calls: The number of module calls that began in the scope.
        uncounted: The number of runs of each kernel that computes but has no FLOPs formula.
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
        """FLOPs per moved byte, or None if no bytes are moved."""
        return self.flops / self.moved_bytes if self.moved_bytes else None

    def add(self, other: "Costs") -> None:
        """Add other costs to these."""
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


class GraphCosts(NamedTuple):
    """The costs of a graph, as `tbscope.costs` returns them.

    Attributes:
        total: The costs of all operations.
        nodes: The costs of each operation.
        scopes: The costs of all operations in each scope and below it.
    """

    total: Costs
    nodes: dict[Node, Costs]
    scopes: dict[Scope, Costs]


def costs(graph: Graph, *, backward: bool = True) -> GraphCosts:
    """Return the compute and the memory of a graph: in total, of each operation and scope.

    >>> import torch, tbscope
    >>> graph = tbscope.trace(torch.nn.Linear(3, 5), torch.rand(2, 3))
    >>> costs = tbscope.costs(graph)
    >>> costs.total.flops, costs.nodes[graph.nodes[-1]].activation_bytes
    (60, 40)

    Args:
        graph: A graph as recorded.
        backward: Whether to compute the costs of the backward pass, too.
    Returns:
        The costs; the costs of a scope include those of all scopes in it.
    Raises:
        ArgumentError: An argument has the wrong type.
    """
    require_graph(graph, "costs")
    check_truth("backward", backward)
    total = Costs(calls=len(graph.calls))
    nodes = node_costs(graph, backward=backward)
    scopes: dict[Scope, Costs] = {scope: Costs() for scope in graph.scopes()}
    for node, cost in nodes.items():
        total.add(cost)
        if node.scope is not None:
            scopes[node.scope].add(cost)
    for call in graph.calls:
        scopes[call.scope].calls += 1
    for scope, parent in children_first(scopes):
        scopes[parent].add(scopes[scope])
    return GraphCosts(total, nodes, scopes)


def node_costs(graph: Graph, *, backward: bool = True) -> dict[Node, Costs]:
    """Return the costs of each operation, with those of the backward pass or without."""
    recorded = backward and has_backward(graph)
    gradients = needs_gradient(graph) if backward and not recorded else frozenset()
    saved = saved_bytes(graph) if recorded else {}
    uncounted = graph.uncounted
    by_node: dict[Node, Costs] = {}
    for node in graph.nodes:
        if node.kind not in OPERATIONS:
            continue
        cost = by_node[node] = Costs(
            node.flops or 0,
            activation_bytes=node.allocated_bytes,
            duration_us=node.duration_us,
            operations=1,
        )
        if node.allocated_bytes or node.flops:
            # A set counts a tensor once that is read several times.
            cost.moved_bytes = sum(value.size_bytes or 0 for value in {*node.inputs, *node.outputs})
        if node.gradients and not gradients.isdisjoint(node.outputs):
            inputs = node.inputs
            cost.backward_flops = sum(
                part.flops
                for part in node.gradients
                if any(inputs[index] in gradients for index in part.inputs)
            )
        if recorded:
            # The recorded backward pass replaces the estimate from `node.gradients`.
            cost.saved_bytes = saved.get(node, 0)
            if node.phase == "backward":
                cost.flops, cost.backward_flops = 0, cost.flops
        kernels = uncounted_kernels(node, uncounted)
        if kernels:
            cost.uncounted = Counter(kernels)
    return by_node


def uncounted_kernels(node: Node, uncounted: Mapping[str, str]) -> list[str]:
    """Return the kernels that a node's FLOPs leave out, once per run of the kernel.

    Args:
        node: An operation.
        uncounted: `Graph.uncounted` of its graph.
    """
    if node.flops == 0 or uncounted.keys().isdisjoint(node.kernels):
        return []
    return [name for name in node.kernels if name in uncounted]


def scope_work(graph: Graph) -> dict[Scope, Costs]:
    """Return the FLOPs and uncounted kernels of each scope that has any, without other costs.

    This takes a small part of the time of `costs`.
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
    for scope, parent in children_first(graph.scopes()):
        if scope in totals:
            totals[parent].add(totals[scope])
    return totals


def work_of(node: Node, graph: Graph) -> Costs:
    """Return the FLOPs and uncounted kernels of one node."""
    return Costs(node.flops or 0, uncounted=Counter(uncounted_kernels(node, graph.uncounted)))


# -- the backward pass ----------------------------------------------------------------------


def needs_gradient(graph: Graph) -> frozenset[Value]:
    """Return the values through which gradients would flow back in training.

    A value needs a gradient if a path of floating-point values leads from a trainable parameter
    through it to an output of the graph, and no operation on the path stops gradients. The
    assumptions are that a loss reads every output, and that no input requires a gradient.
    """
    flows = [node for node in graph.nodes if node.kind in OPERATIONS and not _cuts(node)]
    # The first sweep finds the values that depend on a trainable parameter.
    reachable: set[Value] = set()
    for node in graph.nodes:
        if node.kind == "parameter" and node.attributes.get("requires_grad"):
            reachable.update(node.outputs)
    for node in flows:
        if not reachable.isdisjoint(_written(node.control_inputs)):
            # A control dependency that needs a gradient wrote into an operand, through a view.
            operands = [value for value in node.inputs if value.producer.kind not in STATE]
            reachable.update(value for value in operands if value.dtype.startswith(_FLOATS))
        if not reachable.isdisjoint(node.inputs):
            reachable.update(value for value in node.outputs if value.dtype.startswith(_FLOATS))
    # The second sweep, backwards, keeps the values on which an output depends.
    needed: set[Value] = set()
    for output in graph.outputs:
        needed.update(reachable.intersection((output.value, *_written(output.control_inputs))))
    for node in reversed(flows):
        if not needed.isdisjoint(node.outputs):
            needed.update(reachable.intersection((*node.inputs, *_written(node.control_inputs))))
    return frozenset(needed)


def _cuts(node: Node) -> bool:
    """Whether no gradient flows back through an operation, according to its kernels.

    `x.data` and `x.detach()` run equal kernels. An operation with `out=` has no backward pass.
    """
    if any(name == "out" and nest is not None for name, nest in node.arguments):
        return True
    return all(name.removeprefix("aten::") in _CUTS for name in node.kernels or (node.op,))


def _written(writers: Iterable[Node]) -> list[Value]:
    return [value for writer in writers for value in writer.outputs]


def has_backward(graph: Graph) -> bool:
    """Whether a backward pass was recorded."""
    return any(node.phase == "backward" for node in graph.nodes)


def saved_bytes(graph: Graph) -> dict[Node, int]:
    """Return the bytes of each operation's results that a recorded backward pass has read.

    These bytes stay allocated from the forward pass to the backward pass. Views are counted once,
    with their base; parameters and inputs are not counted, since they exist anyway. The loss is not
    saved: the backward pass begins with a tensor of its shape.
    """
    saved: dict[Value, None] = {}
    for node in graph.nodes:
        if node.phase == "backward" and node.role != "maker" and node.op != "ones_like":
            for value in node.inputs:
                # A view, or an operation without kernels, is replaced by the tensor that it reads.
                base = value
                while (maker := base.producer).inputs and (
                    maker.role == "view" or not maker.kernels
                ):
                    base = maker.inputs[0]
                saved[base] = None
    bytes_of = Counter[Node]()
    for value in saved:
        maker = value.producer
        if maker.kind in OPERATIONS and maker.phase == "forward":
            bytes_of[maker] += value.size_bytes or 0
    return bytes_of


# -- local shards of distributed tensors -----------------------------------------------------


def local_numel(parameter: Parameter) -> int:
    """Return the number of elements of a parameter on this rank."""
    return _numbers_in(parameter.shape if parameter.sharding is None else parameter.sharding.shape)


def local_bytes(parameter: Parameter) -> int:
    """Return the bytes of a parameter on this rank."""
    return int(parameter.size_bytes * _share_here(parameter.shape, parameter.sharding))


def local_flops(node: Node) -> int:
    """Return the share of a node's floating-point operations that this rank computes.

    `Node.flops` counts for global tensors. A rank computes the smallest fraction that it has of any
    operand or result: of the result if a product is sharded by rows, of an operand if a product is
    sharded along the summed dimension.
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
    """Return the bytes that each operation moves between ranks, from the view of one rank."""
    return {
        node: node.collective.moved_bytes
        for node in graph.nodes
        if node.kind in OPERATIONS and node.collective is not None
    }


def _share_here(shape: Shape | None, sharding: Sharding | None) -> Fraction:
    size = _numbers_in(shape)
    return Fraction(_numbers_in(sharding.shape), size) if sharding and size else Fraction(1)


def _numbers_in(shape: Iterable[int | None] | None) -> int:
    return 0 if shape is None else math.prod(size or 0 for size in shape)
