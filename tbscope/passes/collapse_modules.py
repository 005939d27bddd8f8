"""Draws each module that calls no other one as one node, whatever runs inside it."""

from collections import Counter
from collections.abc import Iterable, Mapping

from tbscope.ir.editing import Editor
from tbscope.ir.graph import Argument, Call, Graph, Node, Value
from tbscope.ir.nodes import TOLD, sources_of
from tbscope.ir.pytree import values_in
from tbscope.ir.scope_io import OPERATIONS, STATE, Nearest, first_calls, with_above
from tbscope.passes.collapse_leaves import stand_for

__all__ = ["collapse_modules", "join", "read_outside"]

_MOST_OPERATIONS = 200


def collapse_modules(graph: Graph) -> None:
    """Make one node of each module call in which no other module runs an operation.

    The node reads what was read from outside, its parameters too, and gives what is read
    outside: first what the call gave, then anything else. The operations that ran inside
    are its attribute `operations` (`linear x2, relu`). Where several modules take turns (a
    leaf that has called another model's), and where one leaf would be the whole graph, all
    stays as it is.

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
        join(call, nodes, outer.get(call, {}), editor)
    editor.apply()


def _leaf_calls(graph: Graph) -> dict[Node, Call]:
    """Return for each operation that ran in a leaf the call of that leaf."""
    call_around = Nearest(first_calls(graph).get)
    around = {node: call_around(node.scope) for node in graph.nodes if node.kind in OPERATIONS}
    found = {node: call for node, call in around.items() if call is not None}
    holds_others = with_above(call.scope.parent for call in dict.fromkeys(found.values()))
    # What ranks do together is never inside of something.
    holds_others |= {call.scope for node, call in found.items() if node.collective is not None}
    found = {node: call for node, call in found.items() if call.scope not in holds_others}
    whole = len(found) == len(around) and len(set(found.values())) == 1
    return {} if whole else found


def _interleaved(graph: Graph, inside: Mapping[Node, Call]) -> set[Call]:
    """Return the calls that something outside has read before they had ended."""
    last = {inside[node]: place for place, node in enumerate(graph.nodes) if node in inside}
    broken: set[Call] = set()
    for place, node in enumerate(graph.nodes):
        for source in sources_of(node):
            call = inside.get(source)
            if call is not None and call is not inside.get(node) and last[call] > place:
                broken.add(call)
    return broken


def read_outside(graph: Graph, inside: Mapping[Node, Call]) -> dict[Call, dict[Value, None]]:
    """Return for each leaf call the values that are read outside of it, its results first."""
    found: dict[Call, dict[Value, None]] = {}

    def read(values: Iterable[Value], reader: Call | None = None) -> None:
        for value in values:
            giver = inside.get(value.producer)
            if giver is not None and giver is not reader:
                found.setdefault(giver, {})[value] = None

    for call in graph.calls:
        read(value for value in values_in(call.results) if inside.get(value.producer) is call)
    for node in graph.nodes:
        read(node.inputs, inside.get(node))
    read(output.value for output in graph.outputs)
    for call in graph.calls:
        read(values_in([*[nest for _, nest in call.arguments], call.results]))
    return found


def join(call: Call, nodes: list[Node], given: Iterable[Value], editor: Editor) -> Node:
    """Have one node stand for what ran in a call, and give what is read outside of it."""
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
    whole = Node(
        name=first.name,
        op=call.scope.part.label,
        scope=call.scope,
        source=first.source,
        inputs=entering,
        arguments=[
            *call.arguments,
            *(
                # A parameter has a name of its own: `weight`.
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
                other for node in nodes for other in node.control_inputs if other not in own
            )
        ],
        kernels=[kernel for node in nodes for kernel in node.kernels],
        flops=sum(counted) if counted else None,
        random=any(node.random for node in nodes),
        writes=tuple([at for at, value in enumerate(entering) if value in written]),
        phase=first.phase,
    )
    for value in given:
        editor.give(value, whole)
    counts = Counter(node.op for node in nodes)
    text = ", ".join(f"{op} x{count}" if count > 1 else op for op, count in counts.items())
    if text != whole.op:
        whole.attributes["operations"] = text[:_MOST_OPERATIONS]
    for node in nodes:
        for name in TOLD:
            if name in node.attributes:
                whole.attributes[name] = node.attributes[name]
    stand_for(whole, call)
    # It stands where the last of its operations stood.
    editor.put_instead(nodes[-1], [whole])
    editor.drop(nodes)
    for node in nodes:
        editor.stand_for(node, (whole,), noted=whole)
    return whole


def _written(nodes: list[Node]) -> set[Value]:
    """Return the values that operations write into, as they are or by what may be views of them."""
    # Of each value that they give, those of which it may be a view.
    origins: dict[Value, set[Value]] = {}
    found: set[Value] = set()
    for node in nodes:
        inputs = node.inputs
        may_be_view = len(inputs) == 1 or (node.role == "view" and inputs)
        places = node.writes or ((0,) if may_be_view else ())
        shown: set[Value] = set()
        for place in places:
            value = inputs[place]
            shown |= origins.get(value, {value})
        if node.writes:
            found |= shown
        if shown:
            origins.update(dict.fromkeys(node.outputs, shown))
    return found
