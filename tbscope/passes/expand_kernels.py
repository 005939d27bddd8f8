"""Draws the kernels inside of each operation, as a scope that is named like the operation."""

from collections import Counter

from tbscope.errors import ArgumentError
from tbscope.ir.editing import Editor
from tbscope.ir.graph import Body, Graph, Node, Value
from tbscope.ir.nodes import sources_of
from tbscope.ir.scopes import Scope, ScopePart

__all__ = ["expand_kernels"]


def expand_kernels(graph: Graph) -> None:
    """Make a scope of each operation in which several kernels ran, with them inside.

    What read the operation reads the kernel that gave it, and what it read is read by the
    kernels that took it. An operation of one kernel stays one node, as does one of whose
    kernels not all could be followed.

    Args:
        graph: Changed in place.
    Raises:
        ArgumentError: No kernels were recorded, though operations ran several.
    """
    if not any(node.body is not None for node in graph.nodes):
        if any(len(node.kernels) > 1 for node in graph.nodes):
            raise ArgumentError(
                f"the graph of {graph.name} cannot be drawn at the level 'aten'",
                why="the kernels inside its operations were not recorded",
                fix="trace it with tbscope.trace(model, input, kernels=True)",
            )
        return
    numbers: Counter[tuple[Scope | None, str]] = Counter()
    for scope in graph.scopes():
        part = scope.part
        if part.attribute is None:
            key = scope.parent, part.label
            numbers[key] = max(numbers[key], part.index + 1)
    editor = Editor(graph)
    for node in graph.nodes:
        if node.body is not None and node.body.nodes:
            part = ScopePart(node.op, None, numbers[node.scope, node.op])
            numbers[node.scope, node.op] += 1
            _expand(node, node.body, Scope(part, parent=node.scope, kind="op"), editor)
    editor.apply()


def _expand(node: Node, body: Body, scope: Scope, editor: Editor) -> None:
    """Have the kernels of an operation stand in a scope in its place."""
    kernels = body.nodes
    for kernel in kernels:
        kernel.scope = scope
        kernel.run, kernel.step = node.run, node.step
        kernel.attributes["operation"] = node.op
    inside = set(kernels)
    renamed: dict[Value, Value] = {}
    for value, inner in zip(node.outputs, body.results, strict=True):
        result = editor.now(inner)
        if result.producer not in inside:
            # What an operation handed on is what it read.
            editor.read_instead(value, result)
        elif result in renamed:
            editor.read_instead(value, renamed[result])
        else:
            renamed[result] = value
            editor.give(value, result.producer, result.index)
    for result, value in renamed.items():
        editor.read_instead(result, value)
    writers = _latest(body.writers, inside)
    given = body.results[0].producer if body.results else None
    stands = given if given in inside else (writers or kernels)[-1]
    assert stands is not None
    stands.attributes.update(node.attributes)
    editor.put_instead(node, kernels)
    editor.stand_for(node, writers or kernels[-1:], noted=stands)


def _latest(writers: list[Node], inside: set[Node]) -> list[Node]:
    """Return the kernels of one operation on which no later one of them depends."""
    if len(writers) < 2:
        return writers
    reached: set[Node] = set()
    pending = list(writers)
    while pending:
        node = pending.pop()
        for other in sources_of(node):
            if other in inside and other not in reached:
                reached.add(other)
                pending.append(other)
    return [writer for writer in writers if writer not in reached]
