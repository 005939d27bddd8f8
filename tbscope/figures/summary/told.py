"""What a graph tells of its parameters where no module of it tells: what stands at their nodes.

So it is of what was read from a GraphDef or from a log of another program. What such a graph
leaves open is None in the table, never 0.
"""

from collections.abc import Iterable
from typing import NamedTuple

from tbscope.figures.summary.rows import Row
from tbscope.ir.graph import Graph, Node, Parameter
from tbscope.ir.regions import OPERATIONS, STATE

__all__ = ["Told", "leave_open", "parameter_of", "told_of"]

_COUNTS = ("parameters", "own_parameters", "shared_parameters", "share")


class Told(NamedTuple):
    """What the nodes of a graph tell of its parameters.

    Attributes:
        unsized: Of how many parameters they tell no size.
        any_size: Whether they tell the size of one.
        buffers: Whether they tell the sizes of all buffers.
        bytes: Whether they tell the element types of all.
        learning: Whether they tell of all which ones are trained.
    """

    unsized: int
    any_size: bool
    buffers: bool
    bytes: bool
    learning: bool


def told_of(graph: Graph) -> Told | None:
    """Return what the nodes of a graph tell of its parameters; None where its modules tell."""
    if graph.modules or any(call.parameters for call in graph.calls):
        return None
    state = [node for node in graph.nodes if node.kind in STATE]
    if not state and _was_watched(graph):
        # What ran read none.
        return None
    parameters = [node for node in state if node.kind == "parameter"]
    unsized = sum(not _has_size(node) for node in parameters)
    return Told(
        unsized,
        unsized < len(parameters),
        all(_has_size(node) for node in state if node.kind == "buffer"),
        all(node.outputs[0].size_bytes is not None for node in state if _has_size(node)),
        all("requires_grad" in node.attributes for node in parameters),
    )


def parameter_of(node: Node, number: int) -> Parameter:
    """Return the parameter or buffer that a node stands for; without a shape, it counts nothing.

    Args:
        node: One of a graph whose modules do not tell what they hold.
        number: Which of all it is.
    """
    value = node.outputs[0]
    return Parameter(
        node.name.rpartition(".")[2],
        "buffer" if node.kind == "buffer" else "parameter",
        value.shape if _has_size(node) else None,
        value.dtype,
        value.size_bytes or 0,
        node.attributes.get("requires_grad") is True,
        number=number,
    )


def leave_open(told: Told, totals: Row, rows: Iterable[Row]) -> None:
    """Put None in the place of each figure of which a graph does not tell.

    Args:
        told: What it tells.
        totals: The figures of the whole.
        rows: Those of its parts.
    """
    for row in (totals, *rows):
        if (told.unsized or not told.any_size) and not row["parameters"]:
            row.update(dict.fromkeys(_COUNTS & row.keys()))
        counted = row["parameters"] is not None
        if not (counted and told.learning):
            row["trainable_parameters"] = None
        if not (counted and told.bytes):
            row["parameter_bytes"] = None
        if not told.buffers and not row["buffers"]:
            row["buffers"] = None
        if row["buffers"] is None or not told.bytes:
            row["buffer_bytes"] = None
    totals["unsized_parameters"] = told.unsized


def _was_watched(graph: Graph) -> bool:
    """Tell whether a graph is of a run: no file but our own tells which memory was taken."""
    operations = [node for node in graph.nodes if node.kind in OPERATIONS]
    return not operations or any(node.allocated_bytes for node in operations)


def _has_size(node: Node) -> bool:
    shape = node.outputs[0].shape
    return shape is not None and None not in shape
