"""Boxes for updates of parameters by a script's own loops: weight averages, manual steps, noise.

No optimizer and no helper of torch reports these operations. Without a box each would be drawn
alone beside the model, the gradients and the optimizer, some for each parameter. Two effects
identify them: they write into a learnt tensor (`p.mul_(0.9)`), or into one that the script keeps
itself (an average), or they set one (`p.data = ...`, `p.grad = ...`). Learnt tensors are
parameters, buffers and gradients.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Node, Value

if TYPE_CHECKING:
    from tbscope.ir.scopes import Scope

__all__ = ["box_updates", "origin_of", "producers_back"]

_BOX = "update"
# The name of a user scope that contains a whole training step.
_STEP = "step"
# Up to so many operations need no box.
_FEW = 2
# The operations that begin and end to compute tangents; such a step may have no backward pass.
_FORWARD_MODE, _TANGENT = "make_dual", "unpack_dual"
# Tensors from before the run, which the script keeps (an average of a parameter).
_KEPT = ("input", "constant")


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
    if not updates.operations:
        return
    others = {
        _function(node)
        for node in graph.nodes
        if _is_loose(node) and node not in updates.operations
    }
    for run in _runs(graph.nodes, updates.operations):
        if len(run) <= _FEW:
            continue
        names = {_function(node) for node in run if updates.ends_in(node)}
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
        loose = [node for node in nodes if _is_loose(node)]
        self._readers: dict[Node, set[Node]] = {node: set() for node in loose}
        for node in nodes if loose else ():
            for value in node.inputs:
                if value.producer in self._readers:
                    self._readers[value.producer].add(node)
            for before in node.control_inputs:
                if before in self._readers:
                    self._readers[before].add(node)
        # Backwards, so that the readers of an operation are classified before the operation.
        for node in reversed(loose):
            if self._sets(node) or self._leads(node):
                self.operations.add(node)

    def ends_in(self, node: Node) -> bool:
        """Whether an operation is an end to which other operations lead."""
        return bool(node.writes) or self._sets(node) or not self._readers[node]

    def _sets(self, node: Node) -> bool:
        """Whether an operation changes a learnt tensor, or computes a gradient that is set."""
        if "gradient_of" in node.attributes or node.attributes.get("fills") in self._names:
            return True
        return any(self._is_learnt(node.inputs[index]) for index in node.writes)

    def _leads(self, node: Node) -> bool:
        """Whether all readers are updates, or only the script keeps the result.

        An operation that reads results of the model is part of the loss, also if a script makes a
        gradient of the loss.
        """
        after = self._readers[node]
        if not self.operations.issuperset(after) or node.op == _TANGENT:
            return False
        if not after:
            return any(origin_of(node.inputs[at]).kind in _KEPT for at in node.writes)
        return not any(_is_of_model(value.producer) for value in node.inputs)

    def _is_learnt(self, value: Value) -> bool:
        """Whether a value is a parameter, a buffer or a gradient, or a part of one."""
        return any(
            node.kind in ("parameter", "buffer")
            or "gradient_of" in node.attributes
            or node.attributes.get("fills") in self._names
            for node in producers_back(value)
        )


def _is_of_model(node: Node) -> bool:
    return node.kind == "op" and node.phase == "forward" and not _is_loose(node)


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
