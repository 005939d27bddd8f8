"""Pass for the level "aten": draws the kernels of an operation in a box named like it."""

from collections import Counter

from tbscope.errors import ArgumentError
from tbscope.ir.editing import Editor
from tbscope.ir.graph import Body, Graph, Node, Value
from tbscope.ir.scopes import Scope, ScopePart


def expand_kernels(graph: Graph) -> None:
    """Turn each operation in which several kernels ran into a scope that contains them.

    Readers of the operation read the kernel that produced the value, and the kernels read
    the inputs of the operation themselves. An operation of one kernel stays one node, and so
    does an operation whose kernels could not all be followed.

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
    """Replace an operation by its kernels, in a scope of their own.

    The outputs of the operation keep their `Value` objects, which other nodes and calls
    already name; the kernels become their producers.
    """
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
            # The operation returned one of its inputs: readers use that input instead.
            editor.read_instead(value, result)
        elif result in renamed:
            editor.read_instead(value, renamed[result])
        else:
            renamed[result] = value
            editor.give(value, result.producer, result.index)
    for result, value in renamed.items():
        editor.read_instead(result, value)
    writers = body.writers
    first_producer = body.results[0].producer if body.results else None
    representative = first_producer if first_producer in inside else (writers or kernels)[-1]
    assert representative is not None
    representative.attributes.update(node.attributes)
    editor.put_instead(node, kernels)
    editor.stand_for(node, writers or kernels[-1:], noted=representative)
