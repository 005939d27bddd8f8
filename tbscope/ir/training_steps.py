"""Steps of a training that are equal: of each run of them, one is kept.

Two steps are equal if the same operations ran in the same places, in the same order, on tensors
of the same types that came from the same operations. What they were given besides (a step size)
may differ, and is told.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tbscope.ir.editing import Editor, replace_calls
from tbscope.ir.graph import Graph, Node, Note, Value
from tbscope.ir.nodes import constants_of
from tbscope.ir.scope_io import OPERATIONS
from tbscope.ir.scopes import PHASE_BOXES, Scope, upward
from tbscope.messages import first_of, shown

__all__ = ["changed_operations", "fold_steps"]

# The block by which a user tells where a step begins and ends.
_STEP = "step"
_MOST_TOLD = 5


def fold_steps(graph: Graph, steps: int | None = None) -> None:
    """Keep one of each run of equal steps, and note how many there were, and what differs.

    Args:
        graph: Changed in place.
        steps: How many steps it holds, each with as many steps of optimizers; None for those
            that stand in blocks called "step".
    """
    found = _in_blocks(graph) if steps is None else _between(graph, steps)
    if found is None:
        graph.notes.append(
            Note(
                f"steps={shown(steps)}, and what was recorded cannot be divided by that: a step "
                "ends with the step of an optimizer, or with a backward pass where none has any"
            )
        )
    elif len(found) > 1:
        _fold(graph, found)


def _in_blocks(graph: Graph) -> list[list[Node]]:
    """Return the operations in each of the outermost blocks called "step"."""
    found: dict[Scope, list[Node]] = {}
    for node in graph.nodes:
        top = _top(node.scope)
        if top is not None and top.kind == "hand" and top.part.label == _STEP:
            found.setdefault(top, [])
            if node.kind in OPERATIONS:
                found[top].append(node)
    return list(found.values())


def _between(graph: Graph, steps: int) -> list[list[Node]] | None:
    """Return the operations of each of so many steps; None where the graph has not so many."""
    tops = [_top(node.scope) for node in graph.nodes]
    for box in reversed(PHASE_BOXES.items()):
        # Where each of the boxes ends, in their order.
        known = {
            top: at for at, top in enumerate(tops) if top and (top.phase, top.part.label) == box
        }
        ends = sorted(known.values())
        if ends:
            break
    if not ends or len(ends) % steps:
        return None
    each = len(ends) // steps
    found: list[list[Node]] = [[] for _ in range(steps)]
    for at, node in enumerate(graph.nodes[: ends[-1] + 1]):
        if node.kind in OPERATIONS:
            found[bisect_left(ends, at) // each].append(node)
    return found


def _top(scope: Scope | None) -> Scope | None:
    # Asked for each node: a walk by `upward` makes as many calls as there are scopes around it.
    while scope is not None and scope.parent is not None:
        scope = scope.parent
    return scope


def _fold(graph: Graph, steps: Sequence[list[Node]]) -> None:
    editor = Editor(graph)
    dropped = set[Node]()
    gone = set[Scope]()
    notes: list[str] = []
    # The numbers of equal steps, and the operations that were given other constants in them.
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
            editor.stand_for(node, (kept,), noted=kept)
            for value, instead in zip(node.outputs, kept.outputs, strict=True):
                editor.read_instead(value, instead)
            if constants_of(node) != constants_of(kept):
                differ[f"{kept.op} in {kept.scope}" if kept.scope else kept.op] = None
            twins = zip(upward(node.scope), upward(kept.scope), strict=True)
            gone.update(scope for scope, other in twins if scope is not other)
        dropped.update(step)
    if dropped:
        replace_calls(graph, [call for call in graph.calls if gone.isdisjoint(upward(call.scope))])
        dropped.update(_unread(graph, dropped))
        editor.drop(dropped)
        editor.apply()
    folded = []
    for numbers, differ in runs:
        if len(numbers) > 1:
            text = f"steps {numbers[0]} to {numbers[-1]} are equal and drawn as one"
            if differ:
                text += f"; they differ in what was given to {first_of(differ, _MOST_TOLD)}"
            folded.append(text)
    # It tells what the drawing is.
    graph.notes[:0] = map(Note, [*folded, *notes])


def _unread(graph: Graph, dropped: set[Node]) -> Iterator[Node]:
    """Yield the sources that nothing but steps which are dropped has read (their batches)."""
    read = {value.producer for node in dropped for value in node.inputs}
    kept = {value.producer for node in graph.nodes if node not in dropped for value in node.inputs}
    kept.update(output.value.producer for output in graph.outputs)
    for node in graph.nodes:
        if node.kind not in OPERATIONS and node in read and node not in kept:
            yield node


def _rows(step: Iterable[Node]) -> list[object]:
    """Return a row for each operation of a step, the same for operations that do the same.

    A batch, or the result of an earlier step, is any tensor of its type. Scopes have numbers in
    the order of their first use, so how often one was entered before does not count.
    """
    made: dict[Value, int] = {}
    scopes: dict[Scope, int] = {}
    rows: list[object] = []
    for node in step:
        place = [
            (scopes.setdefault(scope, len(scopes)), scope.part.label, scope.part.attribute)
            for scope in upward(node.scope)
        ]
        reads = [made.get(value, _type(value)) for value in node.inputs]
        for value in node.outputs:
            made[value] = len(made)
        kind = node.op, node.kind, node.phase, node.writes, node.kernels
        rows.append((kind, place, reads, list(map(_type, node.outputs))))
    return rows


def _read_alike(first: Iterable[Node], later: Iterable[Node]) -> bool:
    """Whether each tensor of a step is read where one tensor of an earlier step is."""
    known: dict[Value, Value] = {}
    return all(
        known.setdefault(value, was) is was
        for one, other in zip(first, later, strict=True)
        for was, value in zip(one.inputs, other.inputs, strict=True)
    )


def _type(value: Value) -> tuple[object, ...]:
    return value.shape, value.dtype, value.device


def changed_operations(first: Iterable[Node], later: Iterable[Node]) -> str:
    """Return in words which operations two runs do not have in common; empty where they do."""
    before, now = (
        Counter(_line(node) for node in run if node.kind in OPERATIONS) for run in (first, later)
    )
    return first_of([*(f"no {line}" for line in before - now), *(now - before)], _MOST_TOLD)


def _line(node: Node) -> str:
    # How often a place was entered before tells one step from the next.
    parts = [
        scope.part.label
        if scope.part.attribute is None
        else f"{scope.part.label}[{scope.part.attribute}]"
        for scope in upward(node.scope)
    ]
    shapes = ", ".join(str(list(value.shape or ())) for value in node.outputs)
    place = f" in {'/'.join(reversed(parts))}" if parts else ""
    added = " (accumulates)" if node.attributes.get("accumulates") else ""
    return f"{node.op}{added} -> {shapes or 'nothing'}{place}"
