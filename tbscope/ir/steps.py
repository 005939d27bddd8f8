"""Steps of a training that are equal: of each run of them, one is kept.

Two steps are equal if the same operations ran in the same places, in the same order, on tensors
of the same types that came from the same operations. What they were given besides (a step size)
may differ, and is told.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tbscope.ir.editing import Editor, replace_calls
from tbscope.ir.graph import Graph, Node, Note, Value
from tbscope.ir.regions import OPERATIONS
from tbscope.ir.scopes import PHASE_BOXES, Scope
from tbscope.words import shown

__all__ = ["fold_steps"]

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
    for phase, label in reversed(PHASE_BOXES.items()):
        ends: dict[Scope, int] = {}
        for at, node in enumerate(graph.nodes):
            top = _top(node.scope)
            if top is not None and top.phase == phase and top.part.label == label:
                ends[top] = at
        if ends:
            break
    if not ends or len(ends) % steps:
        return None
    each = len(ends) // steps
    last = sorted(ends.values())[each - 1 :: each]
    found: list[list[Node]] = [[] for _ in range(steps)]
    number = 0
    for at, node in enumerate(graph.nodes):
        if number < steps and at > last[number]:
            number += 1
        if number < steps and node.kind in OPERATIONS:
            found[number].append(node)
    return found


def _top(scope: Scope | None) -> Scope | None:
    while scope is not None and scope.parent is not None:
        scope = scope.parent
    return scope


@dataclass(slots=True)
class _Twins:
    """What of one step is what of an earlier one.

    Attributes:
        values: The values of the earlier step, by those of the later one.
        scopes: The same of scopes.
        taken: The scopes of the earlier step that one of the later step has.
        differ: Where their operations were given other constants.
    """

    values: dict[Value, Value] = field(default_factory=dict)
    scopes: dict[Scope, Scope] = field(default_factory=dict)
    taken: set[Scope] = field(default_factory=set)
    differ: dict[str, None] = field(default_factory=dict)


def _fold(graph: Graph, steps: Sequence[list[Node]]) -> None:
    editor = Editor(graph)
    first, dropped = steps[0], set[Node]()
    names: list[list[int]] = [[1]]
    gone: set[Scope] = set()
    differ: list[dict[str, None]] = [{}]
    notes = []
    for number, step in enumerate(steps[1:], 2):
        twins = _twins(first, step)
        if twins is None:
            notes.append(f"step {number} is not equal to the one before: {_changes(first, step)}")
            first = step
            names.append([number])
            differ.append({})
            continue
        names[-1].append(number)
        differ[-1].update(twins.differ)
        for node, kept in zip(step, first, strict=True):
            editor.stand_for(node, (kept,), noted=kept)
            for value, instead in zip(node.outputs, kept.outputs, strict=True):
                editor.read_instead(value, instead)
        dropped.update(step)
        gone.update(scope for scope, other in twins.scopes.items() if scope is not other)
    if not dropped:
        graph.notes[:0] = map(Note, notes)
        return
    replace_calls(graph, [call for call in graph.calls if not _is_in(call.scope, gone)])
    dropped.update(_unread(graph, dropped))
    editor.drop(dropped)
    editor.apply()
    for numbers, constants in reversed(list(zip(names, differ, strict=True))):
        if len(numbers) > 1:
            text = f"steps {numbers[0]} to {numbers[-1]} are equal and drawn as one"
            if constants:
                text += f"; they differ in what was given to {_some(constants)}"
            notes.insert(0, text)
    # It tells what the drawing is.
    graph.notes[:0] = map(Note, notes)


def _is_in(scope: Scope, scopes: set[Scope]) -> bool:
    return scope in scopes or any(above in scopes for above in scope.ancestors())


def _unread(graph: Graph, dropped: set[Node]) -> Iterator[Node]:
    """Yield the sources that nothing but steps which are dropped has read (their batches)."""
    read = {value.producer for node in dropped for value in node.inputs}
    kept = {value.producer for node in graph.nodes if node not in dropped for value in node.inputs}
    kept.update(output.value.producer for output in graph.outputs)
    for node in graph.nodes:
        if node.kind not in OPERATIONS and node in read and node not in kept:
            yield node


def _twins(first: Sequence[Node], later: Sequence[Node]) -> _Twins | None:
    """Match a step with an earlier one; None where they are not equal."""
    if len(first) != len(later):
        return None
    twins, inside = _Twins(), set(first)
    for one, other in zip(first, later, strict=True):
        if not (_alike(one, other) and _same_place(twins, one.scope, other.scope)):
            return None
        for value, was in zip(other.inputs, one.inputs, strict=True):
            if value not in twins.values:
                # What neither step has made: a batch, or what an earlier step has left.
                if was.producer in inside or _type(was) != _type(value):
                    return None
                twins.values[value] = was
            elif twins.values[value] is not was:
                return None
        twins.values.update(zip(other.outputs, one.outputs, strict=True))
        if _constants(one) != _constants(other):
            twins.differ[_place(one)] = None
    return twins


def _alike(one: Node, other: Node) -> bool:
    return (
        (one.op, one.kind, one.phase, one.writes)
        == (other.op, other.kind, other.phase, other.writes)
        and one.kernels == other.kernels
        and list(map(_type, one.outputs)) == list(map(_type, other.outputs))
        and len(one.inputs) == len(other.inputs)
    )


def _type(value: Value) -> tuple[object, ...]:
    return value.shape, value.dtype, value.device


def _same_place(twins: _Twins, one: Scope | None, other: Scope | None) -> bool:
    """Tell whether two scopes are one place, but for how often each was entered before."""
    while one is not other:
        if one is None or other is None:
            return False
        known = twins.scopes.get(other)
        if known is not None:
            return known is one
        parts = one.part, other.part
        if one in twins.taken or len({(part.label, part.attribute) for part in parts}) > 1:
            return False
        twins.scopes[other] = one
        twins.taken.add(one)
        one, other = one.parent, other.parent
    return True


def _constants(node: Node) -> str:
    """Return the arguments of a node without its tensors, as text."""
    return repr([(name, _without_values(nest)) for name, nest in node.arguments])


def _without_values(nest: object) -> object:
    if isinstance(nest, Value):
        return None
    if isinstance(nest, list | tuple):
        return [_without_values(inner) for inner in nest]
    if isinstance(nest, dict):
        return {key: _without_values(inner) for key, inner in nest.items()}
    return nest


def _place(node: Node) -> str:
    return f"{node.op} in {node.scope}" if node.scope else node.op


def _changes(first: Iterable[Node], later: Iterable[Node]) -> str:
    """Tell in which operations two steps differ."""
    before, now = (Counter(map(_line, step)) for step in (first, later))
    told = [f"no {line}" for line in before - now] + list(now - before)
    return _some(dict.fromkeys(told)) if told else "its tensors come from elsewhere"


def _line(node: Node) -> str:
    # How often a place was entered before tells one step from the next.
    scope, parts = node.scope, list[str]()
    while scope is not None:
        label, attribute = scope.part.label, scope.part.attribute
        parts.append(label if attribute is None else f"{label}[{attribute}]")
        scope = scope.parent
    shapes = ", ".join(str(list(value.shape or ())) for value in node.outputs)
    place = f" in {'/'.join(reversed(parts))}" if parts else ""
    added = " (accumulates)" if node.attributes.get("accumulates") else ""
    return f"{node.op}{added} -> {shapes or 'nothing'}{place}"


def _some(texts: Iterable[str]) -> str:
    told = list(texts)
    more = f", and {len(told) - _MOST_TOLD} more" if len(told) > _MOST_TOLD else ""
    return ", ".join(told[:_MOST_TOLD]) + more
