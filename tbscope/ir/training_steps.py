"""Folding of equal training steps: each run of equal steps is reduced to its first step.

Two steps are equal if they run equal operations in equal scopes, in equal order, on tensors of
equal types that come from the same operations. Constants among the arguments (a step size) may
differ; a note reports the difference.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

from tbscope.ir.editing import Editor, replace_calls
from tbscope.ir.graph import Graph, Node, Note, Value
from tbscope.ir.nodes import constants_of
from tbscope.ir.scope_io import OPERATIONS, SOURCES, read_only_by
from tbscope.ir.scopes import PHASE_BOXES, Scope, self_and_ancestors
from tbscope.messages import first_of, shown

# The label of the block with which a user marks a step.
_STEP = "step"
_MOST_TOLD = 5


def fold_steps(graph: Graph, steps: int | None = None) -> None:
    """Keep the first of each run of equal steps, and note the number of steps and differences.

    Args:
        graph: Changed in place.
        steps: The number of recorded steps, each with an equal number of optimizer steps (or of
            backward passes, if no optimizer ran); None to use the blocks called "step".
    """
    step_nodes = _in_blocks(graph) if steps is None else _between(graph, steps)
    if step_nodes is None:
        graph.notes.append(
            Note(
                f"steps={shown(steps)} does not divide the recording: a step ends with the step of "
                "an optimizer, or with a backward pass if no optimizer has any"
            )
        )
    elif len(step_nodes) > 1:
        _fold(graph, step_nodes)


def _in_blocks(graph: Graph) -> list[list[Node]]:
    """Return the operations in each of the outermost blocks called "step"."""
    operations: dict[Scope, list[Node]] = {}
    for node in graph.nodes:
        top = _top(node.scope)
        if top is not None and top.kind == "hand" and top.part.label == _STEP:
            operations.setdefault(top, [])
            if node.kind in OPERATIONS:
                operations[top].append(node)
    return list(operations.values())


def _between(graph: Graph, steps: int) -> list[list[Node]] | None:
    """Return the operations of each of `steps` steps, or None if they do not divide evenly."""
    tops = [_top(node.scope) for node in graph.nodes]
    # A step ends with its optimizer step or, if there is none, with its backward pass.
    for box in reversed(PHASE_BOXES.items()):
        # The index of the last node in each of these boxes, in order.
        last_nodes = {
            top: at for at, top in enumerate(tops) if top and (top.phase, top.part.label) == box
        }
        ends = sorted(last_nodes.values())
        if ends:
            break
    if not ends or len(ends) % steps:
        return None
    ends_per_step = len(ends) // steps
    operations: list[list[Node]] = [[] for _ in range(steps)]
    for at, node in enumerate(graph.nodes[: ends[-1] + 1]):
        if node.kind in OPERATIONS:
            operations[bisect_left(ends, at) // ends_per_step].append(node)
    return operations


def _top(scope: Scope | None) -> Scope | None:
    # A loop of its own, because this runs for each node: `self_and_ancestors` would cost a call per
    # ancestor.
    while scope is not None and scope.parent is not None:
        scope = scope.parent
    return scope


def _fold(graph: Graph, steps: Sequence[list[Node]]) -> None:
    editor = Editor(graph)
    dropped = set[Node]()
    gone = set[Scope]()
    notes: list[str] = []
    # The numbers of equal steps, and the operations whose constants differ among them.
    runs: list[tuple[list[int], dict[str, None]]] = []
    first, rows = steps[0], list[object]()
    for number, step in enumerate(steps, 1):
        own = _rows(step)
        if number == 1 or own != rows or not _read_alike(first, step):
            if number > 1:
                changes = changed_operations(first, step) or "its tensors come from elsewhere"
                notes.append(f"step {number} is not equal to the one before: {changes}")
            first, rows = step, own
            runs.append(([number], {}))
            continue
        numbers, differ = runs[-1]
        numbers.append(number)
        for node, kept in zip(step, first, strict=True):
            editor.merge(node, kept)
            if constants_of(node) != constants_of(kept):
                differ[f"{kept.op} in {kept.scope}" if kept.scope else kept.op] = None
            # Equal steps have equal paths, so the scopes correspond pairwise.
            scopes = zip(
                self_and_ancestors(node.scope), self_and_ancestors(kept.scope), strict=True
            )
            gone.update(scope for scope, kept_scope in scopes if scope is not kept_scope)
        dropped.update(step)
    if dropped:
        replace_calls(
            graph, [call for call in graph.calls if gone.isdisjoint(self_and_ancestors(call.scope))]
        )
        # The batches of steps are dropped, too.
        dropped |= read_only_by(graph, dropped, SOURCES)
        editor.drop(dropped)
        editor.apply()
    folded = []
    for numbers, differ in runs:
        if len(numbers) > 1:
            text = f"steps {numbers[0]} to {numbers[-1]} are equal and drawn as one"
            if differ:
                text += f"; they differ in what was given to {first_of(differ, _MOST_TOLD)}"
            folded.append(text)
    # These notes come first, because they explain the drawing.
    graph.notes[:0] = map(Note, [*folded, *notes])


def _rows(step: Iterable[Node]) -> list[object]:
    """Return a row for each operation of a step; equal rows mean equal operations.

    A batch, or the result of an earlier step, counts by its type only. Scopes are numbered
    in the order of their first use within the step, so earlier calls of a module do not count.
    """
    made: dict[Value, int] = {}
    scopes: dict[Scope, int] = {}
    rows: list[object] = []
    for node in step:
        path = [
            (scopes.setdefault(scope, len(scopes)), scope.part.label, scope.part.attribute)
            for scope in self_and_ancestors(node.scope)
        ]
        reads = [made.get(value, _type(value)) for value in node.inputs]
        for value in node.outputs:
            made[value] = len(made)
        kind = node.op, node.kind, node.phase, node.writes, node.kernels
        rows.append((kind, path, reads, list(map(_type, node.outputs))))
    return rows


def _read_alike(first: Iterable[Node], later: Iterable[Node]) -> bool:
    """Whether each tensor that a step reads replaces a single tensor of an earlier step."""
    earlier_values: dict[Value, Value] = {}
    return all(
        earlier_values.setdefault(value, earlier) is earlier
        for earlier_node, node in zip(first, later, strict=True)
        for earlier, value in zip(earlier_node.inputs, node.inputs, strict=True)
    )


def _type(value: Value) -> tuple[object, ...]:
    return value.shape, value.dtype, value.device


def changed_operations(first: Iterable[Node], later: Iterable[Node]) -> str:
    """Return a text of the operations that differ between two runs; empty if they are equal."""
    before, now = (
        Counter(_line(node) for node in run if node.kind in OPERATIONS) for run in (first, later)
    )
    return first_of([*(f"no {line}" for line in before - now), *(now - before)], _MOST_TOLD)


def _line(node: Node) -> str:
    # Call numbers are left out, because they differ from step to step.
    parts = [
        scope.part.label
        if scope.part.attribute is None
        else f"{scope.part.label}[{scope.part.attribute}]"
        for scope in self_and_ancestors(node.scope)
    ]
    shapes = ", ".join(str(list(value.shape or ())) for value in node.outputs)
    location = f" in {'/'.join(reversed(parts))}" if parts else ""
    added = " (accumulates)" if node.attributes.get("accumulates") else ""
    return f"{node.op}{added} -> {shapes or 'nothing'}{location}"
