"""Constant nodes: the parameters that cannot be drawn as small circles beside their readers.

The page puts an operation aside that has circles but no neighbour in its own box
(tensorboard/plugins/graph/tf_graph_common/render.ts, `extractHighDegrees`): it cuts the edges to
stubs, and shows five of them. An example is `nn.MultiheadAttention`, which runs one kernel over
all of its parameters. There, parameters are drawn as nodes.
"""

from collections.abc import Collection, Iterable, Set

from tbscope.drawing.naming import GraphDefNames, UniqueNames
from tbscope.ir.graph import Graph, Node
from tbscope.ir.nodes import sources_of
from tbscope.ir.scope_io import OPERATIONS, OWNED

_CONSTANTS = frozenset({"constant"})


def parameters_to_draw(
    graph: Graph, names: GraphDefNames, *, constants_only: bool = False
) -> set[Node]:
    """Return the parameters, buffers and constants that must be drawn as nodes.

    These are read by an operation without a neighbour in its own box (their own box does not
    matter), or only by Python (`float(self.scale)`). The operation may be a leaf module drawn as
    one node, such as a member of a list whose members are called one by one, with other
    operations in between.

    Args:
        graph: The graph.
        names: The names of its nodes.
        constants_only: Whether parameters and buffers are nodes in any case, so that only
            constants are considered.
    """
    circles = _CONSTANTS if constants_only else OWNED
    # The page draws a circle only beside its reader, so that one without readers is a node.
    as_nodes = {node for node in graph.nodes if node.kind in circles}
    if as_nodes:
        for output in graph.outputs:
            as_nodes.difference_update((output.value.producer, *output.control_inputs))
        as_nodes -= {value.producer for node in graph.nodes for value in node.inputs}
        as_nodes.difference_update(*[node.control_inputs for node in graph.nodes])
    for node in _without_neighbour(graph, names, circles):
        as_nodes.update(value.producer for value in node.inputs if value.producer.kind in circles)
    return as_nodes


def _without_neighbour(graph: Graph, names: GraphDefNames, circles: Set[str]) -> dict[Node, str]:
    """Return each operation that has circles and no neighbour in its box, with that box.

    The box is a prefix of names that ends in `/`; empty at the top level, whose operations are
    left out.
    """
    box_of: dict[Node, str] = {}
    named = names.nodes
    for node in graph.nodes:
        if node.kind in circles:
            continue
        sources = sources_of(node)
        name = named[node]
        box = ""
        if node.kind in OPERATIONS:
            for source in sources:
                if source.kind in circles:
                    box = name[: name.rfind("/") + 1]
                    break
        for source in sources:
            if source in box_of and name.startswith(box_of[source]):
                del box_of[source]
            if box and source.kind not in circles and named[source].startswith(box):
                box = ""
        if box:
            box_of[node] = box
    return box_of


def has_isolated_stack(graph: Graph, stacks: Collection[Node]) -> bool:
    """Whether some stack of blocks has no edge to or from an operation.

    In a root box, that stack would have circles and no neighbour.
    """
    joined = set[Node]()
    for node in graph.nodes if stacks else ():
        for source in sources_of(node):
            if source.kind in OPERATIONS and node.kind in OPERATIONS:
                joined.update((source, node))
    return not joined.issuperset(stacks)


def rename_beside_leaves(graph: Graph, names: GraphDefNames, parameters: set[Node]) -> None:
    """Rename the parameters of leaf modules that are drawn as nodes: `fc.weight` beside `fc`.

    As `fc/weight`, they would turn the node of the leaf module into a box.

    Args:
        graph: The graph.
        names: Changed in place.
        parameters: The parameters that are drawn as nodes.
    """
    leaves = {node.scope for node in graph.nodes if node.kind == "module"}
    _rename_beside(
        names, [node for node in graph.nodes if node in parameters and node.scope in leaves]
    )


def rename_beside_boxes(graph: Graph, names: GraphDefNames) -> None:
    """Rename operations of gradients that have circles, and no neighbour in their own box.

    In the box around, most have one. So their parameters remain circles, and the first call of a
    module is drawn like the others.

    Args:
        graph: The graph.
        names: Changed in place.
    """
    backward = {node for node in graph.nodes if node.phase == "backward"}
    if backward:
        lone = _without_neighbour(graph, names, OWNED)
        _rename_beside(names, [node for node in lone if node in backward])


def _rename_beside(names: GraphDefNames, nodes: Iterable[Node]) -> None:
    """Rename nodes from `fc/weight` to `fc.weight`."""
    unique = UniqueNames(
        [*names.nodes.values(), *names.scopes.values(), *names.outputs, *names.cards],
        numbered=lambda name, number: name + "_" * (number - 1),
    )
    for node in nodes:
        names.nodes[node] = unique.claim(".".join(names.nodes[node].rsplit("/", 1)))
