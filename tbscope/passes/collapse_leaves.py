"""Draws a leaf module as one node: `Linear`, with its hyper-parameters, not a box with a `linear`.

A node of the kind "module" stands for the call in its scope; what its card tells of that
call is decided where cards are made (`drawing/cards.py`).
"""

from collections.abc import Iterator

from tbscope.ir.editing import Editor
from tbscope.ir.graph import Call, Graph, Node, Value
from tbscope.ir.nodes import sources_of
from tbscope.ir.pytree import values_in
from tbscope.ir.scope_io import add_with_above, first_calls
from tbscope.ir.scopes import Scope

__all__ = ["collapse_leaves", "stand_for"]


def collapse_leaves(graph: Graph) -> None:
    """Make the operation of each leaf module a node that stands for the module.

    A leaf is a module call in whose scope one operation ran, and below which nothing
    stands; its own parameters and buffers do not count, and keep their scope. Neither
    do operations on its buffers alone that the other one does not read (BatchNorm
    counts its batches), nor what the operation has saved for the backward pass: what
    they read and give, the node reads and gives too. The node gets the kind "module",
    the label of the scope as its op, and the place of the call as its source. Its
    edges stay.

    A module that gives back a tensor which its operation did not give (an argument
    passed through beside it) stays a box: as one node it would seem to give nothing
    that its readers read.

    Args:
        graph: Changed in place.
    """
    calls = first_calls(graph)
    alone = [
        (call, node, counters)
        for scope, node, counters in _alone(graph)
        if (call := calls.get(scope)) is not None
        and (
            call.results.producer is node
            if type(call.results) is Value
            else all(value.producer is node for value in values_in(call.results))
        )
    ]
    into = {counter: node for _, node, counters in alone for counter in counters}
    open_ones = _needed_before(graph, into) if into else set()
    editor = Editor(graph)
    for call, node, counters in alone:
        if node in open_ones:
            continue
        stand_for(node, call)
        for counter in counters:
            editor.fold(counter, node)
    if into:
        editor.apply()


def _needed_before(graph: Graph, into: dict[Node, Node]) -> set[Node]:
    """Return the operations whose counters are read, or waited for, before they run."""
    ran: set[Node] = set()
    needed: set[Node] = set()
    for node in graph.nodes:
        ran.add(node)
        here = into.get(node, node)
        for other in sources_of(node):
            whole = into.get(other)
            if whole is not None and whole is not here and whole not in ran:
                needed.add(whole)
    return needed


def _alone(graph: Graph) -> Iterator[tuple[Scope, Node, list[Node]]]:
    """Return each scope in which, and below which, one operation and no constant stands.

    With it come the operations on buffers alone that stand beside it.
    """
    ran: dict[Scope, list[Node]] = {}
    occupied: set[Scope] = set()
    # Scopes with a constant, or with anything below them.
    crowded: set[Scope] = set()
    counters: set[Node] = set()
    for node in graph.nodes:
        scope = node.scope
        if scope is None:
            continue
        if scope not in occupied:
            occupied.add(scope)
            add_with_above(scope.parent, crowded)
        if node.kind == "op":
            ran.setdefault(scope, []).append(node)
            # It reads something, or gives what another one has saved.
            if node.inputs or (node.control_inputs and not node.kernels):
                for value in node.inputs:
                    if value.producer.kind != "buffer" and value.producer not in counters:
                        break
                else:
                    counters.add(node)
        elif node.kind == "constant":
            crowded.add(scope)
    for scope, ops in ran.items():
        if scope in crowded:
            continue
        if len(ops) == 1:
            yield scope, ops[0], []
            continue
        beside = [node for node in ops if node in counters]
        if len(beside) == len(ops) - 1:
            only = next(node for node in ops if node not in beside)
            if not any(value.producer in beside for value in only.inputs):
                yield scope, only, beside


def stand_for(node: Node, call: Call) -> None:
    """Make a node one that stands for the call in its scope.

    The operation that it was is its attribute `operation`, unless it is called like the
    module: one that ran no operation has a node named after itself.
    """
    label = call.scope.part.label
    if node.op != label:
        node.attributes["operation"] = node.op
    node.kind = "module"
    node.op = label
    node.source = call.source or node.source
