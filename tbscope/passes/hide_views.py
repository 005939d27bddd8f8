"""Leaves out plumbing: views, casts and copies, told by what gives and by what reads them.

A `view` between two operations is no step that the author of a model would draw. One
that alone reads what an operation of the same scope gave becomes part of that
operation: its output is what the view gave, and its attribute `then` tells the view.
Any other is left out of the edges, and what reads it tells it by its attribute `via`:

    then: view(1, 8, -1, 16) > transpose(1, 2)
    via:  query: transpose(1, 2); key: view(1, 8, -1) > to(torch.float16)

Which operation is plumbing, its role says, not its name. What is made of nothing, and is
the same in every run (`arange`, `zeros`), becomes a constant.
"""

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

from tbscope.errors import ArgumentError
from tbscope.ir.graph import Graph, Node, Value
from tbscope.ir.nodes import TOLD
from tbscope.ir.pytree import values_in
from tbscope.ir.scope_io import OPERATIONS, STATE, add_with_above, read_only_by
from tbscope.messages import shown
from tbscope.passes.replace_uses import Bypass, step_text
from tbscope.passes.user_hidden import Patterns, check_found, find_hidden

if TYPE_CHECKING:
    from tbscope.ir.scopes import Scope

__all__ = ["check_patterns", "hide_plumbing"]

_PLUMBING = frozenset({"view", "cast", "copy"})


def check_patterns(keep: Sequence[str], hide: Sequence[str]) -> None:
    """Check that patterns are texts, before anything has been run for them.

    Raises:
        ArgumentError: `keep` or `hide` is a text itself, or holds something else.
    """
    for option, patterns in (("keep", keep), ("hide", hide)):
        # An iterator could be read once, and it is read twice.
        listed = isinstance(patterns, list | tuple | Set)
        if not listed or any(type(each) is not str for each in patterns):
            raise ArgumentError(
                f"{option}={shown(patterns)} is no list of patterns",
                why="each pattern is a text, and there may be several",
                fix=f"{option}=['view', 'encoder.layer.0.*'], or {option}=() for none",
            )


def hide_plumbing(graph: Graph, *, keep: Sequence[str] = (), hide: Sequence[str] = ()) -> None:
    """Leave plumbing out of a graph, and what the user wants hidden.

    An operation stays that waits for another one, whose value Python read, which a note
    is about, which copies what is written into then, or without which nothing would be
    left of a scope, or but one module in it. What a call was given and gave is afterwards
    what stands before the plumbing, with the shape and the dtype that the call saw; an output
    keeps its own, too (`Output.given`).

    Args:
        graph: Changed in place.
        keep: Patterns of what stays though it is plumbing.
        hide: Patterns of what is left out though it is none: operations and modules
            which read one tensor beside their parameters, and give one.

    A pattern is matched, as by `fnmatch`, with the name of an operation (`view`, `relu*`),
    with the qualified name of a module (`encoder.layer.0`, `*.attn`), or with its class
    (`Dropout`); a module stands for all inside it.

    Raises:
        ArgumentError: A pattern matches nothing, or nothing that can be left out.
    """
    check_patterns(keep, hide)
    hidden = find_hidden(graph, hide) if hide else {}
    # Before what is made of nothing becomes a constant: what is hidden may hand that on.
    sources = read_only_by(graph, hidden.keys()) if hidden else set()
    plumbing = _candidates(graph, keep, hidden.keys())
    if not plumbing and not hidden:
        return
    bypass = Bypass(graph, plumbing, hidden.keys())
    for node in graph.nodes:
        if node in plumbing:
            value = node.inputs[0]
            if not bypass.fold(node, value):
                bypass.skip(node.outputs[0], value, step_text(node))
        elif left := hidden.get(node):
            bypass.skip(*left)
    bypass.apply(sources | _unread_constants(graph, plumbing, plumbing | hidden.keys()))


def _candidates(graph: Graph, keep: Sequence[str], hidden: Set[Node]) -> set[Node]:
    """Return the plumbing that can be left out."""
    kept = {note.node for note in graph.notes if note.node is not None}
    patterns = Patterns(keep) if keep else None
    found: list[Node] = []
    makers: list[Node] = []
    shown: set[Scope] = set()
    unread = _unread_views(graph)
    for node in graph.nodes:
        if node.kind not in OPERATIONS or node in hidden:
            continue
        if patterns is not None and patterns.keys(node):
            kept.add(node)
        # What the attributes `TOLD` tell, a reader of the drawing looks for at their node.
        told = node.attributes and not node.attributes.keys().isdisjoint(TOLD)
        may_go = node.kind == "op" and node not in kept and not told
        if may_go and _reads_one(node) and (not node.control_inputs or node in unread):
            found.append(node)
        elif (
            may_go
            and node.role == "maker"
            and not (node.inputs or node.control_inputs)
            and len(node.outputs) == 1
        ):
            makers.append(node)
        else:
            add_with_above(node.scope, shown)
    if patterns is not None:
        check_found(graph, "keep", patterns)
    # A copy that something is written into afterwards stays: the original is another tensor.
    written = {node.inputs[place].producer for node in graph.nodes for place in node.writes}
    plumbing: set[Node] = set()
    # The last one of a scope stays without which nothing of it would be drawn.
    for node in reversed(found):
        scope = node.scope
        is_written = node in written and node.role != "view"
        if is_written or (scope is not None and scope not in shown):
            add_with_above(scope, shown)
        else:
            plumbing.add(node)
    of_circles = [node for node in plumbing if node.inputs[0].producer.kind in STATE]
    if makers or of_circles:
        read = _read(graph, plumbing | hidden)
        # A view of a parameter that nobody reads stays: the page draws a circle only beside
        # what reads it. A constant is no part of a model, and goes with its last reader.
        plumbing.difference_update(node for node in of_circles if node.inputs[0] not in read)
        for node in makers:
            # One that nothing reads stays an operation.
            if node.outputs[0] in read and (node.scope is None or node.scope in shown):
                node.kind = "constant"
                node.attributes["operation"] = node.op
    return plumbing


def _unread_constants(graph: Graph, plumbing: Set[Node], left_out: Set[Node]) -> set[Node]:
    """Return the constants of which only plumbing tells that nothing reads.

    The page would draw each as an operation that stands alone. Those that a call was given
    stay.
    """
    sources = {node.inputs[0].producer for node in plumbing}
    constants = {node for node in sources if node.kind == "constant"}
    if not constants:
        return constants
    constants.difference_update(value.producer for value in _read(graph, left_out))
    for call in graph.calls if constants else ():
        named = values_in([*(nest for _, nest in call.arguments), call.results])
        constants.difference_update(value.producer for value in named)
    return constants


def _reads_one(node: Node) -> bool:
    """Tell whether an operation only describes one tensor anew, casts it or copies it."""
    return (
        node.role in _PLUMBING and len(node.outputs) == 1 and len(dict.fromkeys(node.inputs)) == 1
    )


def _unread_views(graph: Graph) -> set[Node]:
    """Return the views that wait for a write, and that nothing reads.

    Memory that each step fills once more (`out=view`) is described by such views: whatever
    is read later is the result of the filling, so that there is no order to be kept.
    """
    late = {
        node
        for node in graph.nodes
        if node.control_inputs and node.role == "view" and _reads_one(node)
    }
    read = _read(graph, late) if late else set()
    return {node for node in late if node.outputs[0] not in read}


def _read(graph: Graph, left_out: Set[Node]) -> set[Value]:
    """Return the values that are read by what is drawn, also through what is left out."""
    read = {output.value for output in graph.outputs}
    for node in reversed(graph.nodes):
        if node not in left_out or not read.isdisjoint(node.outputs):
            read.update(node.inputs)
    return read
