"""What a script's own loops do to parameters: averages of weights, steps by hand, noise.

No optimizer and no helper of torch tells of these. Beside the model, the gradients and the
optimizer each operation would stand for itself, some for each parameter. They write into what
is learnt (`p.mul_(0.9)`), or set it (`p.data = ...`, `p.grad = ...`), or make of it, element by
element, what the script keeps itself (`average[name] = 0.9 * average[name] + 0.1 * p`).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Node, Value

if TYPE_CHECKING:
    from tbscope.ir.scopes import Scope

__all__ = ["box_updates", "origin_of", "way_back"]

_BOX = "update"
# A block of the user's that holds a whole training step.
_STEP = "step"
# So many operations are seen at a glance.
_FEW = 2
# What begins to compute tangents, and what ends that: such a step may have no backward pass.
_FORWARD_MODE, _TANGENT = "make_dual", "unpack_dual"


def box_updates(builder: GraphBuilder) -> None:
    """Give each run of such operations a box, in a graph that has a backward pass, or tangents.

    The box is called like the function that does nothing else (`update_average`), or "update".

    Args:
        builder: The door to the graph.
    """
    graph = builder.graph
    if not any(node.phase == "backward" or node.op == _FORWARD_MODE for node in graph.nodes):
        return
    updates = _Updates(graph.nodes)
    found = updates.found
    if not found:
        return
    others = {_function(node) for node in graph.nodes if _is_loose(node) and node not in found}
    for run in _runs(graph.nodes, found):
        if len(run) <= _FEW:
            continue
        names = {_function(node) for node in run if updates.is_last(node)}
        name = names.pop() if len(names) == 1 and not names & others else None
        above = run[0].scope
        box = builder.new_scope(name or _BOX, None, parent=above, kind="hand")
        box.phase = "optimizer"
        for node in run:
            node.scope, node.phase = box, "optimizer"


def _is_loose(node: Node) -> bool:
    """Tell whether an operation stands in no box at all, or in that of a whole step.

    What ranks do together finds the module that it serves.
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
    """Finds such operations, with what leads to them.

    Args:
        nodes: All nodes of the graph, in order.

    Attributes:
        found: The operations.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.found: set[Node] = set()
        self._names = {node.name for node in nodes if node.kind in ("parameter", "buffer")}
        self._loose = [node for node in nodes if _is_loose(node)]
        if not self._loose:
            # As in most steps.
            return
        self._readers: dict[Node, set[Node]] = {node: set() for node in self._loose}
        for node in nodes:
            for value in node.inputs:
                if value.producer in self._readers:
                    self._readers[value.producer].add(node)
            for before in node.control_inputs:
                if before in self._readers:
                    self._readers[before].add(node)
        # What is made of something learnt, element by element, and of what the script keeps alone.
        self._follow: set[Node] = set()
        self._of_kept: set[Node] = set()
        for node in self._loose:
            self._look(node)
        for node in reversed(self._loose):
            if self._leads(node) or self._sets(node):
                self.found.add(node)
        self.found.update(node for node in self._loose if "gradient_of" in node.attributes)
        for node in reversed(self._loose):
            if self._leads_to(node):
                self.found.add(node)

    def is_last(self, node: Node) -> bool:
        """Tell whether an operation is one of those to which the others lead."""
        sets = bool(node.writes) or self._sets(node) or "gradient_of" in node.attributes
        return sets or not self._readers[node]

    def _leads(self, node: Node) -> bool:
        """Tell whether all that reads an operation is found, or nothing but the script keeps it."""
        after = self._readers[node]
        if not self.found.issuperset(after) or node.op == _TANGENT:
            return False
        written = (node.inputs[place] for place in node.writes)
        return bool(after) or node in self._follow or any(map(_is_kept, written))

    def _leads_to(self, node: Node) -> bool:
        """Tell whether all that reads an operation computes what a script sets as gradients.

        What reads the model is the loss, also where a script makes a gradient of that.
        """
        after = self._readers[node]
        if not after or node.op == _TANGENT or not self.found.issuperset(after):
            return False
        return not any(value.producer.scope for value in node.inputs if _ran(value))

    def _sets(self, node: Node) -> bool:
        """Tell whether an operation changes what is learnt."""
        written = [node.inputs[place] for place in node.writes]
        return node.attributes.get("fills") in self._names or any(map(self._is_learnt, written))

    def _look(self, node: Node) -> None:
        """Take note of what computes element by element with what is learnt or kept."""
        shapes = {value.shape for value in node.outputs}
        learnt = False
        for value in node.inputs:
            if value.producer in self._follow or self._is_learnt(value):
                learnt = True
            elif value.shape == () and not _ran(value):
                continue
            elif value.producer not in self._of_kept and not _is_kept(value):
                return
            if {value.shape} != shapes:
                return
        if node.inputs:
            (self._follow if learnt else self._of_kept).add(node)

    def _is_learnt(self, value: Value) -> bool:
        """Tell whether a value is a parameter, a buffer or a gradient, or a part of one."""
        return any(
            node.kind in ("parameter", "buffer")
            or "gradient_of" in node.attributes
            or node.attributes.get("fills") in self._names
            for node in way_back(value)
        )


def _ran(value: Value) -> bool:
    """Tell whether an operation of the forward pass has given a value."""
    node = value.producer
    return node.kind == "op" and node.phase == "forward"


def _is_kept(value: Value) -> bool:
    """Tell whether the script has kept a value from before (an average of a parameter)."""
    return origin_of(value).kind in ("input", "constant")


def _runs(nodes: Iterable[Node], found: set[Node]) -> Iterator[list[Node]]:
    """Yield the operations that were found, in runs between which nothing in a box has run."""
    runs: dict[Scope | None, list[Node]] = {}
    for node in nodes:
        if node in found:
            runs.setdefault(node.scope, []).append(node)
        elif node.kind == "op" and not _is_loose(node):
            yield from runs.values()
            runs.clear()
    yield from runs.values()


def origin_of(value: Value) -> Node:
    """Return what a value is a view of, and what that was before it was written into."""
    *_, origin = way_back(value)
    return origin


def way_back(value: Value) -> Iterator[Node]:
    """Yield what gave a value, what gave that of which it is a view, and so on."""
    while True:
        node = value.producer
        yield node
        # What it wrote into comes last among what it gave.
        at = value.index - len(node.outputs) + len(node.writes)
        if node.role == "view" and node.inputs:
            value = node.inputs[0]
        elif node.writes and at >= 0:
            value = node.inputs[node.writes[at]]
        else:
            return
