"""Dead-code pass: marks or drops the operations on which no output or side effect depends."""

from typing import Literal, TypeAlias

from tbscope.ir.editing import Editor
from tbscope.ir.graph import Constant, Graph, Node, Value
from tbscope.ir.nodes import EFFECT_ATTRIBUTES, OPERATIONS
from tbscope.ir.scope_io import read_only_by

Dead: TypeAlias = Literal["keep", "drop"]
"""Whether operations that nothing depends on are drawn."""

_UNUSED = Constant("<unused>")


def mark_dead(graph: Graph, dead: Dead = "keep") -> None:
    """Mark dead operations, or drop them.

    An operation is alive if an output or a note refers to it, if it has no outputs (such as
    `save`, which runs for its side effect), if it is a collective, if it has an attribute in
    `EFFECT_ATTRIBUTES` (an error, for example), or if it writes into a tensor that existed before
    the run: an input, a parameter or a buffer. So is each node that an alive node reads, or on
    which it has a control dependency.

    Args:
        graph: Changed in place. With `dead="keep"`, a dead operation gets the attribute
            `unused`; with `dead="drop"` it is removed, together with the parameters, buffers
            and constants that only dead operations read. Inputs stay.
        dead: Whether dead operations stay.
    """
    unused = _unused(graph)
    if dead == "keep":
        for node in unused:
            node.attributes["unused"] = True
    elif unused:
        editor = Editor(graph)
        editor.drop(unused | read_only_by(graph, unused), word=_UNUSED)
        editor.apply()


def _unused(graph: Graph) -> set[Node]:
    alive = _with_effects(graph)
    for output in graph.outputs:
        alive.update((output.value.producer, *output.control_inputs))
    alive.update(note.node for note in graph.notes if note.node is not None)
    unused: set[Node] = set()
    # In reverse order, all readers of a node are decided before the node itself.
    for node in reversed(graph.nodes):
        if node in alive:
            for value in node.inputs:
                alive.add(value.producer)
            if node.control_inputs:
                alive.update(node.control_inputs)
        elif node.kind in OPERATIONS:
            unused.add(node)
    return unused


def _with_effects(graph: Graph) -> set[Node]:
    """Return the operations with an effect beside their results."""
    effective: set[Node] = set()
    # Values that may share storage with a tensor which existed before the run.
    outer: set[Value] = set()
    for node in graph.nodes:
        if node.kind not in OPERATIONS:
            outer.update(node.outputs)
            continue
        if (
            node.collective is not None
            or not node.outputs
            or (node.attributes and not node.attributes.keys().isdisjoint(EFFECT_ATTRIBUTES))
        ):
            effective.add(node)
        if outer.isdisjoint(node.inputs):
            continue
        if node.writes:
            effective.add(node)
        if node.writes or len(node.inputs) == 1 or node.role == "view":
            # Its result may be a view of its input, or the tensor that it wrote into.
            outer.update(node.outputs)
    return effective
