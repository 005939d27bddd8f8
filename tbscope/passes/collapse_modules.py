"""Pass that draws each module that calls no other module as one node."""

from collections import Counter
from collections.abc import Iterable, Mapping

from tbscope.ir.editing import Editor
from tbscope.ir.graph import Argument, Call, Graph, Node, Value
from tbscope.ir.nodes import EFFECT_ATTRIBUTES, sources_of
from tbscope.ir.pytree import values_in
from tbscope.ir.scope_io import OPERATIONS, STATE, NearestProperty, first_calls, with_above
from tbscope.passes.collapse_leaves import represent_call

_MOST_OPERATIONS = 200


def collapse_modules(graph: Graph) -> None:
    """Merge each module call in which no other module runs an operation into one node.

    The inputs of the node are the values that enter the call, its parameters included. Its
    outputs are the values that are read outside: the results of the call first, then the
    rest. The attribute `operations` lists the operations inside (`linear x2, relu`).

    A call stays unchanged if its operations interleave with operations of other calls (a leaf
    that called a module of another model). The graph stays unchanged if it would become a single
    node.

    Args:
        graph: Changed in place.
    """
    inside = _leaf_calls(graph)
    broken = _interleaved(graph, inside)
    groups: dict[Call, list[Node]] = {}
    for node, call in [*inside.items()]:
        if call in broken:
            del inside[node]
        else:
            groups.setdefault(call, []).append(node)
    if not groups:
        return
    outer = read_outside(graph, inside)
    editor = Editor(graph)
    for call, nodes in groups.items():
        merge_call(call, nodes, outer.get(call, {}), editor)
    editor.apply()


def _leaf_calls(graph: Graph) -> dict[Node, Call]:
    """Return the call of the enclosing leaf module for each operation that ran in one."""
    enclosing_call = NearestProperty(first_calls(graph).get)
    calls = {node: enclosing_call(node.scope) for node in graph.nodes if node.kind in OPERATIONS}
    call_of = {node: call for node, call in calls.items() if call is not None}
    parents = with_above(call.scope.parent for call in dict.fromkeys(call_of.values()))
    # Collectives are never merged into another node.
    parents |= {call.scope for node, call in call_of.items() if node.collective is not None}
    call_of = {node: call for node, call in call_of.items() if call.scope not in parents}
    one_leaf = len(call_of) == len(calls) and len(set(call_of.values())) == 1
    return {} if one_leaf else call_of


def _interleaved(graph: Graph, inside: Mapping[Node, Call]) -> set[Call]:
    """Return the calls of which an outside node uses a result before their last operation ran."""
    last = {inside[node]: index for index, node in enumerate(graph.nodes) if node in inside}
    broken: set[Call] = set()
    for index, node in enumerate(graph.nodes):
        for source in sources_of(node):
            call = inside.get(source)
            if call is not None and call is not inside.get(node) and last[call] > index:
                broken.add(call)
    return broken


def read_outside(graph: Graph, inside: Mapping[Node, Call]) -> dict[Call, dict[Value, None]]:
    """Return the values of each leaf call that are used outside of it, its results first.

    Nodes, outputs of the graph, and the arguments and results of calls count as uses.

    Args:
        graph: The graph.
        inside: The leaf call of each operation that ran in one.
    """
    used: dict[Call, dict[Value, None]] = {}

    def read(values: Iterable[Value], reader: Call | None = None) -> None:
        for value in values:
            call_of_producer = inside.get(value.producer)
            if call_of_producer is not None and call_of_producer is not reader:
                used.setdefault(call_of_producer, {})[value] = None

    for call in graph.calls:
        read(value for value in values_in(call.results) if inside.get(value.producer) is call)
    for node in graph.nodes:
        read(node.inputs, inside.get(node))
    read(output.value for output in graph.outputs)
    for call in graph.calls:
        read(call.values())
    return used


def merge_call(call: Call, nodes: list[Node], values: Iterable[Value], editor: Editor) -> Node:
    """Replace the operations of a call by one node of kind "module".

    A call that already consists of a single node of kind "module" keeps that node.

    Args:
        call: The call.
        nodes: Its operations, in order; at least one.
        values: The values that are used outside of the call; they become the outputs of the node.
        editor: Records the replacement, and makes it once it is applied.
    Returns:
        The node that represents the call.
    """
    first = nodes[0]
    if len(nodes) == 1 and first.kind == "module":
        return first
    own = set(nodes)
    entering = [
        *dict.fromkeys(
            value for node in nodes for value in node.inputs if value.producer not in own
        )
    ]
    named = set(values_in([nest for _, nest in call.arguments]))
    written = _written(nodes)
    counted = [node.flops for node in nodes if node.flops is not None]
    module_node = Node(
        name=first.name,
        op=call.scope.part.label,
        scope=call.scope,
        source=first.source,
        inputs=entering,
        arguments=[
            *call.arguments,
            *(
                # Parameters and buffers are named by the last part of their path: `weight`.
                Argument(
                    value.producer.name.rpartition(".")[2]
                    if value.producer.kind in STATE
                    else None,
                    value,
                )
                for value in entering
                if value not in named
            ),
        ],
        control_inputs=[
            *dict.fromkeys(
                source for node in nodes for source in node.control_inputs if source not in own
            )
        ],
        kernels=[kernel for node in nodes for kernel in node.kernels],
        flops=sum(counted) if counted else None,
        random=any(node.random for node in nodes),
        writes=tuple([index for index, value in enumerate(entering) if value in written]),
        phase=first.phase,
    )
    for value in values:
        editor.give(value, module_node)
    counts = Counter(node.op for node in nodes)
    text = ", ".join(f"{op} x{count}" if count > 1 else op for op, count in counts.items())
    if text != module_node.op:
        module_node.attributes["operations"] = text[:_MOST_OPERATIONS]
    for node in nodes:
        for name in EFFECT_ATTRIBUTES:
            if name in node.attributes:
                module_node.attributes[name] = node.attributes[name]
    represent_call(module_node, call)
    # The node takes the place of the last operation, so that all of its inputs precede it.
    editor.put_instead(nodes[-1], [module_node])
    editor.drop(nodes)
    for node in nodes:
        editor.stand_for(node, (module_node,))
    return module_node


def _written(nodes: list[Node]) -> set[Value]:
    """Return the values from outside that operations write into, directly or through a view.

    An operation with a single input may return a view of it, whatever its role says.
    """
    # For each value that the operations produce, the values of which it may be a view.
    origins: dict[Value, set[Value]] = {}
    written: set[Value] = set()
    for node in nodes:
        inputs = node.inputs
        may_be_view = len(inputs) == 1 or (node.role == "view" and inputs)
        indices = node.writes or ((0,) if may_be_view else ())
        aliased: set[Value] = set()
        for index in indices:
            value = inputs[index]
            aliased |= origins.get(value, {value})
        if node.writes:
            written |= aliased
        if aliased:
            origins.update(dict.fromkeys(node.outputs, aliased))
    return written
