"""One box for the backward passes of a pipeline: together they are the pass through the model.

A rank runs a pass for each micro batch and for each of its stages, a zero-bubble schedule one for
each group of parameters, too, between the messages that join them.
"""

from tbscope.ir.graph import Graph
from tbscope.ir.scopes import PHASE_BOXES, MovedScopes, Scope, self_and_ancestors


def join_passes(graph: Graph) -> None:
    """Put the backward passes of a pipeline that one optimizer step follows into the first's box.

    Args:
        graph: Changed in place, if a rank sends or receives messages in it.
    """
    if not any(node.collective is not None and node.collective.is_message for node in graph.nodes):
        return
    first: Scope | None = None
    instead: dict[Scope, Scope] = {}
    for node in graph.nodes:
        if node.phase == "forward" or node.scope is None:
            continue
        *_, top = self_and_ancestors(node.scope)
        if top.part.label != PHASE_BOXES[node.phase]:
            continue
        if node.phase == "optimizer":
            first = None
        else:
            first = first or top
            instead[top] = first
    if any(scope is not kept for scope, kept in instead.items()):
        MovedScopes(instead).apply(graph.nodes, graph.calls)
