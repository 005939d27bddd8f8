"""Pass that hides plumbing: views, casts and copies are listed at their neighbours instead.

A `view` between two operations is no step that the author of a model would draw. If it is
the only reader of an operation of its own scope, it becomes part of that operation, which
then produces the output of the view and lists the view in its attribute `then`. Any other
view is taken out of its edges, and its readers list it in their attribute `via`:

    then: view(1, 8, -1, 16) > transpose(1, 2)
    via:  query: transpose(1, 2); key: view(1, 8, -1) > to(torch.float16)

Plumbing is recognized by the role of a node, not by its name. A node of role "maker", which
has no inputs and an equal result in every run (`arange`, `zeros`), becomes a constant.
"""

from collections.abc import Sequence, Set

from tbscope.errors import ArgumentError
from tbscope.ir.graph import Graph, Node, Value
from tbscope.ir.nodes import EFFECT_ATTRIBUTES
from tbscope.ir.scope_io import OPERATIONS, STATE, add_with_ancestors, read_only_by, with_above
from tbscope.messages import shown
from tbscope.passes.replace_uses import Bypass, step_text
from tbscope.passes.user_hidden import Patterns, check_found, find_hidden

_PLUMBING = frozenset({"view", "cast", "copy"})


def check_patterns(option: str, patterns: Sequence[str]) -> None:
    """Check that an option is a list of texts, before a model is run for it.

    Raises:
        ArgumentError: The option is a text itself, or contains something else than texts.
    """
    # Iterators are refused: patterns are read twice.
    if not isinstance(patterns, list | tuple | Set) or not all(
        type(pattern) is str for pattern in patterns
    ):
        raise ArgumentError(
            f"{option}={shown(patterns)} is no list of patterns",
            why="each pattern is a text, and there may be several",
            fix=f"{option}=['view', 'encoder.layer.0.*'], or {option}=() for none",
        )


def hide_plumbing(graph: Graph, *, keep: Sequence[str] = (), hide: Sequence[str] = ()) -> None:
    """Remove plumbing from a graph, and the operations and modules that the user hides.

    A view, cast or copy stays if it has a control dependency on an operation (unless nothing
    reads it), if it has an attribute in `EFFECT_ATTRIBUTES` (Python read its value, for example),
    if a note is about it, if it is a copy that is written into afterwards, or if its scope would
    have no operation left. Arguments and results of calls afterwards refer to the value before the
    plumbing, with the shape and dtype that the call saw; outputs keep their own value as well
    (`Output.given`).

    Args:
        graph: Changed in place.
        keep: Patterns of plumbing that stays.
        hide: Patterns of operations and modules to remove; each must read one tensor beside
            its parameters, and return one.

    A pattern is matched, as by `fnmatch`, with the name of an operation (`view`, `relu*`),
    with the qualified name of a module (`encoder.layer.0`, `*.attn`), or with its class
    (`Dropout`); a module means all operations inside it.

    Raises:
        ArgumentError: A pattern matches nothing, or nothing that can be left out.
    """
    hidden = find_hidden(graph, hide) if hide else {}
    # This runs before makers become constants: a hidden operation may pass the result of a
    # maker on.
    sources = read_only_by(graph, hidden.keys()) if hidden else set()
    plumbing = _candidates(graph, keep, hidden.keys())
    if not plumbing and not hidden:
        return
    bypass = Bypass(graph, plumbing, hidden.keys())
    # In the order of the graph, so that the texts of a chain of views accumulate.
    for node in graph.nodes:
        if node in plumbing:
            value = node.inputs[0]
            if not bypass.fold(node, value):
                bypass.skip(node.outputs[0], value, step_text(node))
        elif exchange := hidden.get(node):
            bypass.skip(*exchange)
    bypass.apply(sources | _unread_constants(graph, plumbing, plumbing | hidden.keys()))


def _candidates(graph: Graph, keep: Sequence[str], hidden: Set[Node]) -> set[Node]:
    """Return the plumbing that can be removed, and turn makers that are read into constants."""
    kept = {note.node for note in graph.notes if note.node is not None}
    patterns = Patterns(keep) if keep else None
    views: list[Node] = []
    makers: list[Node] = []
    drawn: list[Node] = []
    unread = _unread_views(graph)
    for node in graph.nodes:
        if node.kind not in OPERATIONS or node in hidden:
            continue
        if patterns is not None and patterns.keys(node):
            kept.add(node)
        # Nodes with an attribute in `EFFECT_ATTRIBUTES` stay, since readers look for that fact
        # there.
        reported = node.attributes and not node.attributes.keys().isdisjoint(EFFECT_ATTRIBUTES)
        may_go = node.role is not None and node.kind == "op" and node not in kept and not reported
        if may_go and _reads_one(node) and (not node.control_inputs or node in unread):
            views.append(node)
        elif (
            may_go
            and node.role == "maker"
            and not (node.inputs or node.control_inputs)
            and len(node.outputs) == 1
        ):
            makers.append(node)
        else:
            drawn.append(node)
    shown = with_above([node.scope for node in drawn])
    if patterns is not None:
        check_found(graph, "keep", patterns)
    # A copy that is written into afterwards stays: its original is another tensor.
    written = {node.inputs[index].producer for node in graph.nodes for index in node.writes}
    plumbing: set[Node] = set()
    # The last view of a scope stays if the scope would be empty otherwise.
    for node in reversed(views):
        scope = node.scope
        is_written = node in written and node.role != "view"
        if is_written or (scope is not None and scope not in shown):
            add_with_ancestors(scope, shown)
        else:
            plumbing.add(node)
    of_circles = [node for node in plumbing if node.inputs[0].producer.kind in STATE]
    if makers or of_circles:
        read = _read(graph, plumbing | hidden)
        # A view of a parameter without any other reader stays: the page draws a parameter as
        # a circle only beside its reader. A constant is no part of a model, and goes with its
        # last reader.
        plumbing.difference_update(node for node in of_circles if node.inputs[0] not in read)
        for node in makers:
            # A maker without readers stays an operation.
            if node.outputs[0] in read and (node.scope is None or node.scope in shown):
                node.kind = "constant"
                node.attributes["operation"] = node.op
    return plumbing


def _unread_constants(graph: Graph, plumbing: Set[Node], left_out: Set[Node]) -> set[Node]:
    """Return the constants that lose their last reader with the plumbing.

    The page would draw each as an operation without edges. Constants in the arguments or
    results of a call stay.

    Args:
        graph: The graph.
        plumbing: The operations that are removed as plumbing.
        left_out: All operations that are removed.
    """
    sources = {node.inputs[0].producer for node in plumbing}
    constants = {node for node in sources if node.kind == "constant"}
    if not constants:
        return constants
    constants.difference_update(value.producer for value in _read(graph, left_out))
    for call in graph.calls if constants else ():
        constants.difference_update(value.producer for value in call.values())
    return constants


def _reads_one(node: Node) -> bool:
    """Whether an operation is a view, cast or copy of a single tensor, with one output."""
    return (
        node.role in _PLUMBING and len(node.outputs) == 1 and len(dict.fromkeys(node.inputs)) == 1
    )


def _unread_views(graph: Graph) -> set[Node]:
    """Return the views that have a control dependency on a write, and no readers.

    Views of memory that each step fills anew (`out=view`) are examples: all later readers read
    the result of the write, so the order needs no edge.
    """
    late = {
        node
        for node in graph.nodes
        if node.control_inputs and node.role == "view" and _reads_one(node)
    }
    read = _read(graph, late) if late else set()
    return {node for node in late if node.outputs[0] not in read}


def _read(graph: Graph, left_out: Set[Node]) -> set[Value]:
    """Return the values that drawn nodes and outputs read, directly or through removed nodes."""
    read = {output.value for output in graph.outputs}
    for node in reversed(graph.nodes):
        if node not in left_out or not read.isdisjoint(node.outputs):
            read.update(node.inputs)
    return read
