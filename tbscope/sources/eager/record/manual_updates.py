"""Boxes for updates of parameters by a script's own loops: weight averages, manual steps, noise.

No optimizer and no helper of torch reports these operations. Without a box each would be drawn
alone beside the model, the gradients and the optimizer, some for each parameter. Three effects
identify them: they write into a learnt tensor (`p.mul_(0.9)`), or set it (`p.data = ...`,
`p.grad = ...`), or compute from it, element by element, a tensor that the script keeps itself
(`average[name] = 0.9 * average[name] + 0.1 * p`). Learnt tensors are parameters, buffers and
gradients.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Node, Value

if TYPE_CHECKING:
    from tbscope.ir.scopes import Scope


_BOX = "update"
# The name of a user scope that contains a whole training step.
_STEP = "step"
# Up to so many operations need no box.
_FEW = 2
# The operations that begin and end to compute tangents; such a step may have no backward pass.
_FORWARD_MODE, _TANGENT = "make_dual", "unpack_dual"


def box_updates(builder: GraphBuilder) -> None:
    """Put each sequence of these operations in a box, in a graph with a backward pass or tangents.

    The box is named after the function that contains nothing else (`update_average`), or "update".

    Args:
        builder: The graph builder.
    """
    graph = builder.graph
    if not any(node.phase == "backward" or node.op == _FORWARD_MODE for node in graph.nodes):
        return
    updates = _Updates(graph.nodes)
    operations = updates.operations
    if not operations:
        return
    others = {_function(node) for node in graph.nodes if _is_loose(node) and node not in operations}
    for run in _runs(graph.nodes, operations):
        if len(run) <= _FEW:
            continue
        names = {_function(node) for node in run if updates.is_last(node)}
        name = names.pop() if len(names) == 1 and not names & others else None
        box = builder.new_scope(name or _BOX, None, parent=run[0].scope, kind="hand")
        box.phase = "optimizer"
        for node in run:
            node.scope, node.phase = box, "optimizer"


def _is_loose(node: Node) -> bool:
    """Whether an operation is in no box at all, or directly in the box of a whole step.

    Collectives do not count: each finds the module that it serves.
    """
    if node.kind != "op" or node.phase != "forward" or node.collective is not None:
        return False
    scope = node.scope
    return scope is None or (
        scope.parent is None and scope.kind == "hand" and scope.part.label == _STEP
    )


def _function(node: Node) -> str | None:
    """Return the name of the function that called an operation; None for the script itself."""
    if node.source is None or node.run is None or node.run.around is None:
        return None
    name = node.source.function
    return name if name.isidentifier() else None


class _Updates:
    """Search for these operations, and for operations that lead to them.

    Args:
        nodes: All nodes of the graph, in order.

    Attributes:
        operations: The updates and the operations that lead to them.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.operations: set[Node] = set()
        self._names = {node.name for node in nodes if node.kind in ("parameter", "buffer")}
        self._loose = [node for node in nodes if _is_loose(node)]
        if not self._loose:
            # This is so in most steps.
            return
        self._readers: dict[Node, set[Node]] = {node: set() for node in self._loose}
        for node in nodes:
            for value in node.inputs:
                if value.producer in self._readers:
                    self._readers[value.producer].add(node)
            for before in node.control_inputs:
                if before in self._readers:
                    self._readers[before].add(node)
        # Operations that compute element by element from a learnt tensor, and those that compute
        # only from tensors that the script keeps.
        self._follow: set[Node] = set()
        self._of_kept: set[Node] = set()
        for node in self._loose:
            self._look(node)
        # Backwards, so that the readers of an operation are classified before the operation.
        for node in reversed(self._loose):
            if self._leads(node) or self._sets(node):
                self.operations.add(node)
        self.operations.update(node for node in self._loose if "gradient_of" in node.attributes)
        for node in reversed(self._loose):
            if self._leads_to(node):
                self.operations.add(node)

    def is_last(self, node: Node) -> bool:
        """Whether an operation is an end to which other operations lead."""
        sets = bool(node.writes) or self._sets(node) or "gradient_of" in node.attributes
        return sets or not self._readers[node]

    def _leads(self, node: Node) -> bool:
        """Whether all readers are updates (`operations`), or only the script keeps its result."""
        after = self._readers[node]
        if not self.operations.issuperset(after) or node.op == _TANGENT:
            return False
        if node.role == "view" and not after:
            # A view changes nothing.
            return False
        written = (node.inputs[index] for index in node.writes)
        return bool(after) or node in self._follow or any(map(_is_kept, written))

    def _leads_to(self, node: Node) -> bool:
        """Whether an operation only leads to updates, as for a gradient that is set.

        An operation that reads results of the model is part of the loss, also if a script makes a
        gradient of the loss.
        """
        after = self._readers[node]
        if not after or node.op == _TANGENT or not self.operations.issuperset(after):
            return False
        return not any(value.producer.scope for value in node.inputs if _ran(value))

    def _sets(self, node: Node) -> bool:
        """Whether an operation changes a learnt tensor."""
        written = [node.inputs[index] for index in node.writes]
        return node.attributes.get("fills") in self._names or any(map(self._is_learnt, written))

    def _look(self, node: Node) -> None:
        """Record whether an operation computes element by element with learnt or kept tensors."""
        shapes = {value.shape for value in node.outputs}
        learnt = False
        for value in node.inputs:
            if value.producer in self._follow or self._is_learnt(value):
                learnt = True
            elif value.shape == () and not _ran(value):
                # A factor from outside: it may take part in any of these computations.
                continue
            elif value.producer not in self._of_kept and not _is_kept(value):
                return
            if {value.shape} != shapes:
                return
        if node.inputs:
            (self._follow if learnt else self._of_kept).add(node)

    def _is_learnt(self, value: Value) -> bool:
        """Whether a value is a parameter, a buffer or a gradient, or a part of one."""
        return any(
            node.kind in ("parameter", "buffer")
            or "gradient_of" in node.attributes
            or node.attributes.get("fills") in self._names
            for node in producers_back(value)
        )


def _ran(value: Value) -> bool:
    """Whether an operation of the forward pass produced a value."""
    node = value.producer
    return node.kind == "op" and node.phase == "forward"


def _is_kept(value: Value) -> bool:
    """Whether the script has kept a value from before the run (an average of a parameter)."""
    return origin_of(value).kind in ("input", "constant")


def _runs(nodes: Iterable[Node], updates: set[Node]) -> Iterator[list[Node]]:
    """Yield the updates, in sequences between which no operation in a box has run."""
    runs: dict[Scope | None, list[Node]] = {}
    for node in nodes:
        if node in updates:
            runs.setdefault(node.scope, []).append(node)
        elif node.kind == "op" and node.role != "view" and not _is_loose(node):
            # A view leads to the next update: a gradient that is spread over ranks.
            yield from runs.values()
            runs.clear()
    yield from runs.values()


def origin_of(value: Value) -> Node:
    """Return the producer behind a value, before all views and in-place writes."""
    *_, origin = producers_back(value)
    return origin


def producers_back(value: Value) -> Iterator[Node]:
    """Yield the producers of a value, back through views and in-place writes."""
    while True:
        node = value.producer
        yield node
        # The outputs for written tensors come last.
        at = value.index - len(node.outputs) + len(node.writes)
        if node.role == "view" and node.inputs:
            value = node.inputs[0]
        elif node.writes and at >= 0:
            value = node.inputs[node.writes[at]]
        else:
            return
