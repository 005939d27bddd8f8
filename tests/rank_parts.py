"""What the boxes of a rank in a merged graph hold, in a form that the graph of one rank has too."""

from collections import Counter

from tbscope.ir.metadata import split_device
from tbscope.ir.scopes import self_and_ancestors


def rows_of(graph, box):
    """Count what a rank runs: each operation with its place, its kernels, values and inputs.

    Args:
        graph: A graph of one rank, or of several.
        box: How the boxes of the rank are called, that of the forward pass and those in
            `gradients` and `optimizer`; empty for the whole graph. What is joined between boxes
            counts where the rank hands something in, or reads of it.
    """
    taken = {
        value.producer
        for node in graph.nodes
        if _is_in(node, box)
        for value in node.inputs
        if _is_between(value.producer)
    }
    return Counter(
        _row(node, box)
        for node in graph.nodes
        if node.kind != "input"
        and (_is_in(node, box) or node in taken or (_is_between(node) and _read(node, box)))
    )


def _is_in(node, box):
    return _place(node, box) is not None


def _place(node, box):
    """Return the path of a node without the box of its rank; None where it stands in no such."""
    steps = [] if node.scope is None else node.scope.path.split("/")
    if not box:
        return "/".join(steps)
    if box not in steps[:2]:
        return None
    at = steps.index(box)
    # What stood at the top level stands with what it reads.
    loose = at == len(steps) - 1 and node.phase == "forward"
    return "" if loose else "/".join(steps[:at] + steps[at + 1 :])


def _is_between(node):
    """Tell whether a node stands where boxes of ranks are joined."""
    if node.collective is None or node.scope is None:
        return node.collective is not None
    *_, top = self_and_ancestors(node.scope)
    around = [one for one in self_and_ancestors(node.scope) if one.kind == "rank"]
    return node.scope is top and not around


def _read(node, box):
    """Return what a node reads; a collective between boxes of this one alone."""
    joined = node.collective
    if joined is None:
        made = node.inputs
    elif joined.kind in ("send", "recv"):
        made = [value for value in node.inputs if not _is_send(value.producer)]
    else:
        # Of what ranks have together, nobody tells whose it is.
        made = [value for value in node.inputs if value.producer.collective is None]
        made = [value for value in made if _is_in(value.producer, box)]
    return [(value.producer.op, _text(value)) for value in made]


def _awaited(node, box):
    """Return what a node waits for in its box, collectives apart."""
    inside = (other for other in node.control_inputs if _is_in(other, box))
    return [other.op for other in inside if other.collective is None]


def _is_send(node):
    return node.collective is not None and node.collective.kind == "send"


def _row(node, box):
    joined = node.collective
    path = _place(node, box) or ""
    told, outputs = None, node.outputs
    if joined is not None:
        told = joined.kind, joined.reduction, joined.mesh, joined.sequence
        # It stands where all see it that take part, and has results for each.
        outputs = outputs[:1] if joined.kind == "recv" else []
        path = path if joined.kind in ("send", "recv") else ""
    return (
        (node.op, node.kind, path, node.phase, told),
        tuple(node.kernels),
        tuple(map(_text, outputs)),
        tuple(_read(node, box)),
        tuple(sorted(_awaited(node, box))),
    )


def _text(value):
    return value.shape, value.dtype, str(value.sharding), split_device(value.device)[1]
