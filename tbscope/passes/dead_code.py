"""Finds what was computed for nothing: operations that nothing which remains depends on."""

from typing import Literal, TypeAlias

from tbscope.ir.editing import Editor
from tbscope.ir.graph import Constant, Graph, Node, Value
from tbscope.ir.nodes import OPERATIONS, TOLD
from tbscope.ir.scope_io import read_only_by

__all__ = ["Dead", "mark_dead"]

Dead: TypeAlias = Literal["keep", "drop"]
"""Whether operations that nothing depends on are drawn."""

_UNUSED = Constant("<unused>")


def mark_dead(graph: Graph, dead: Dead = "keep") -> None:
    """Mark the operations that nothing depends on, or drop them.

    Something depends on an operation if an output, a note or an error does, if it gives
    nothing (it is run for what it does, as `save`), if other ranks take part in it, or if it
    writes into what was there before the run: an input, a parameter or a buffer. A reader of
    what it gave, or one that waits for it, hands this on.

    Args:
        graph: Changed in place. With `dead="keep"`, a dead operation gets the attribute
            `unused`; with `dead="drop"` it goes, and with it the parameters, buffers
            and constants that it alone has read. Inputs stay.
        dead: What to do with it.
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
    # From the last one, all that read a node have been asked before it.
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
    """Return the operations that are run for more than their results."""
    found: set[Node] = set()
    # What may share its storage with something that was there before the run.
    outer: set[Value] = set()
    for node in graph.nodes:
        if node.kind not in OPERATIONS:
            outer.update(node.outputs)
            continue
        if (
            node.collective is not None
            or not node.outputs
            or (node.attributes and not node.attributes.keys().isdisjoint(TOLD))
        ):
            found.add(node)
        if outer.isdisjoint(node.inputs):
            continue
        if node.writes:
            found.add(node)
        if node.writes or len(node.inputs) == 1 or node.role == "view":
            # It may give a view of what it reads, or what it wrote into.
            outer.update(node.outputs)
    return found
