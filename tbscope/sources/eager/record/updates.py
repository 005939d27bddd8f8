"""What a script's own loops do to parameters: averages of weights, steps by hand, noise.

No optimizer and no helper of torch tells of these. Beside the model, the gradients and the
optimizer each operation would stand for itself, some for each parameter.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Node, Value
from tbscope.sources.eager.record.origins import origin_of, way_back

if TYPE_CHECKING:
    from tbscope.ir.scopes import Scope

__all__ = ["box_updates"]

_BOX = "update"
# A block of the user's that holds a whole training step.
_STEP = "step"
# So many operations are seen at a glance.
_FEW = 2


def box_updates(builder: GraphBuilder) -> None:
    """Give each run of such operations a box, in a graph that has a backward pass.

    The box is called like the function that does nothing else (`update_average`), or "update".

    Args:
        builder: The door to the graph.
    """
    graph = builder.graph
    if not any(node.phase == "backward" for node in graph.nodes):
        return
    found = _updates(graph.nodes)
    if not found:
        return
    others = {_function(node) for node in graph.nodes if _is_loose(node) and node not in found}
    for run in _runs(graph.nodes, found):
        if len(run) <= _FEW:
            continue
        names = {_function(node) for node in run if node.writes}
        name = names.pop() if len(names) == 1 and not names & others else None
        above = run[0].scope
        box = builder.new_scope(name or _BOX, None, parent=above, kind="hand")
        box.phase = "optimizer"
        for node in run:
            node.scope, node.phase = box, "optimizer"


def _is_loose(node: Node) -> bool:
    """Tell whether an operation stands in no box at all, or in that of a whole step."""
    if node.kind != "op" or node.phase != "forward":
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


def _updates(nodes: Collection[Node]) -> set[Node]:
    """Return what writes into parameters, gradients and what is kept of them, and leads to that."""
    loose = [node for node in nodes if _is_loose(node)]
    if not any(node.writes for node in loose):
        # As in most steps: what leads to a write needs one.
        return set()
    readers: dict[Node, list[Node]] = {node: [] for node in loose}
    for node in nodes:
        for before in {*(value.producer for value in node.inputs), *node.control_inputs}:
            if before in readers:
                readers[before].append(node)
    found: set[Node] = set()
    for node in reversed(loose):
        after = readers[node]
        written = [node.inputs[place] for place in node.writes]
        leads = found.issuperset(after) and (after or any(map(_is_kept, written)))
        if leads or any(map(_is_learnt, written)):
            found.add(node)
    return found


def _is_learnt(value: Value) -> bool:
    """Tell whether a value is a parameter, a buffer or a gradient, or a part of one."""
    return any(
        node.kind in ("parameter", "buffer") or "gradient_of" in node.attributes
        for node in way_back(value)
    )


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
