"""Pass that draws a leaf module as one node, `Linear`, and not as a box with a `linear` inside.

A node of the kind "module" represents the call in its scope. Its info card, with the
hyper-parameters of that call, is written by `drawing/info_cards.py`.
"""

from tbscope.ir.editing import Editor
from tbscope.ir.graph import Call, Graph, Node, Value
from tbscope.ir.nodes import sources_of
from tbscope.ir.pytree import values_in
from tbscope.ir.scope_io import first_calls, with_above
from tbscope.ir.scopes import Scope


def collapse_leaves(graph: Graph) -> None:
    """Turn the operation of each leaf module into a node that represents the module.

    A leaf is a module call in whose scope one operation ran, with no constant in that scope
    and no node below it. Three kinds of nodes do not count: the module's own parameters and
    buffers, which keep their scope; operations that read only its buffers and are not read
    by the main operation (BatchNorm counts its batches); and the nodes of tensors that the
    operation saved for the backward pass. The latter two kinds are merged into the node,
    with their inputs and outputs. The node gets the kind "module", the label of the scope as
    its op, and the call site as its source. Its edges stay.

    A module that returns a tensor which its operation did not produce (an argument
    passed through) stays a box: drawn as one node, it would lose the edge to the readers
    of that tensor.

    Args:
        graph: Changed in place.
    """
    calls = first_calls(graph)
    leaves = [
        (call, node, counters)
        for scope, node, counters in _alone(graph)
        if (call := calls.get(scope)) is not None
        and (
            call.results.producer is node
            if type(call.results) is Value
            else all(value.producer is node for value in values_in(call.results))
        )
    ]
    into = {counter: node for _, node, counters in leaves for counter in counters}
    open_ones = _needed_before(graph, into) if into else set()
    editor = Editor(graph)
    for call, node, counters in leaves:
        if node in open_ones:
            continue
        represent_call(node, call)
        for counter in counters:
            editor.fold(counter, node)
    if into:
        editor.apply()


def _needed_before(graph: Graph, into: dict[Node, Node]) -> set[Node]:
    """Return the main operations of which a counter is used before the operation runs.

    A node that reads a counter, or has a control dependency on it, would precede its own
    source if that counter were merged into an operation that runs later.

    Args:
        graph: The graph.
        into: The main operation of the module, by counter.
    """
    ran: set[Node] = set()
    needed: set[Node] = set()
    for node in graph.nodes:
        ran.add(node)
        reader = into.get(node, node)
        for source in sources_of(node):
            main_op = into.get(source)
            if main_op is not None and main_op is not reader and main_op not in ran:
                needed.add(main_op)
    return needed


def _alone(graph: Graph) -> list[tuple[Scope, Node, list[Node]]]:
    """Return each scope with one main operation, no constant, and nothing in the scopes below.

    Returns:
        The scope, its main operation, and its counters: the operations beside the main one
        that read only buffers, or carry what that one saved.
    """
    ran: dict[Scope, list[Node]] = {}
    occupied: set[Scope] = set()
    with_constants: set[Scope] = set()
    counters: set[Node] = set()
    for node in graph.nodes:
        scope = node.scope
        if scope is None:
            continue
        occupied.add(scope)
        if node.kind == "op":
            ran.setdefault(scope, []).append(node)
            # A node with neither inputs nor kernels, but with a control dependency, carries
            # tensors that another operation saved for the backward pass.
            if node.inputs or (node.control_inputs and not node.kernels):
                for value in node.inputs:
                    if value.producer.kind != "buffer" and value.producer not in counters:
                        break
                else:
                    counters.add(node)
        elif node.kind == "constant":
            with_constants.add(scope)
    crowded = with_constants | with_above([scope.parent for scope in occupied])
    alone: list[tuple[Scope, Node, list[Node]]] = []
    for scope, ops in ran.items():
        if scope in crowded:
            continue
        if len(ops) == 1:
            alone.append((scope, ops[0], []))
            continue
        others = [node for node in ops if node in counters]
        if len(others) == len(ops) - 1:
            main_op = next(node for node in ops if node not in others)
            if not any(value.producer in others for value in main_op.inputs):
                alone.append((scope, main_op, others))
    return alone


def represent_call(node: Node, call: Call) -> None:
    """Turn a node into the node of kind "module" that represents the call in its scope.

    The attribute `operation` records the former op of the node, unless that equals the label
    of the module: a module that ran no operation already has a node of its own name.
    """
    label = call.scope.part.label
    if node.op != label:
        node.attributes["operation"] = node.op
    node.kind = "module"
    node.op = label
    node.source = call.source or node.source
