"""Shapes that a GraphDef of torch's own does not list, as far as the nodes around tell them.

torch lists none for parameters and for numbers. What a layer reads and gives tells those of its
parameters, None where a size cannot be told.
"""

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["told_shapes"]

_Shape = tuple[int | None, ...]

_NUMBERS = frozenset(
    {
        *("aten::size", "aten::Int", "aten::Bool", "aten::Float", "aten::ScalarImplicit"),
        *("aten::IntImplicit", "aten::FloatImplicit", "aten::item", "aten::dim", "aten::len"),
        "prim::NumToTensor",
    }
)
_CONVOLUTIONS = frozenset({"aten::_convolution", "aten::convolution"})
# Where the parameters of one size for each channel stand among the inputs.
_CHANNELS = {
    "aten::batch_norm": (1, 2, 3, 4),
    "aten::instance_norm": (1, 2, 3, 4),
    "aten::group_norm": (2, 3),
}


def told_shapes(nodes: Mapping[str, Any]) -> dict[str, _Shape]:
    """Return shapes of the first outputs of nodes that list none.

    Args:
        nodes: The nodes by their names.
    """
    found: dict[str, _Shape] = {}
    for node in nodes.values():
        if node.op in _NUMBERS and not (node.op == "aten::size" and len(node.input) < 2):
            found[node.name] = ()
        for name, shape in _of_inputs(node, nodes):
            found.setdefault(name, shape)
    return {name: shape for name, shape in found.items() if name in nodes}


def _of_inputs(node: Any, nodes: Mapping[str, Any]) -> Iterator[tuple[str, _Shape]]:
    """Yield the names of what a layer of torch's reads, with the shapes that it must have."""
    inputs = [text for text in node.input if text]
    result = _listed(node)
    data = _listed(nodes[inputs[0]]) if inputs and inputs[0] in nodes else None
    if node.op == "aten::embedding" and inputs and result:
        yield inputs[0], (None, result[-1])
    if result is None or data is None:
        return
    last = data[-1] if data else None
    if node.op == "aten::linear" and len(inputs) > 1 and result:
        yield inputs[1], (result[-1], last)
        if len(inputs) > 2:
            yield inputs[2], (result[-1],)
    elif node.op in _CONVOLUTIONS and len(inputs) > 2 and len(result) > 2:
        channels = result[1]
        yield inputs[1], (channels, *(None,) * (len(data) - 1))
        yield inputs[2], (channels,)
    elif node.op == "aten::layer_norm" and len(inputs) > 3:
        sizes = nodes.get(inputs[1])
        count = len([text for text in sizes.input if text]) if sizes is not None else 0
        if 0 < count <= len(data):
            yield inputs[2], data[-count:]
            yield inputs[3], data[-count:]
    elif node.op in _CHANNELS and len(data) > 1:
        for place in _CHANNELS[node.op]:
            if place < len(inputs):
                yield inputs[place], (data[1],)


def _listed(node: Any) -> _Shape | None:
    """Return the shape of a node's first output; None where it lists none, or no rank."""
    if "_output_shapes" not in node.attr:
        return None
    shapes = node.attr["_output_shapes"].list.shape
    if not shapes or shapes[0].unknown_rank:
        return None
    return tuple(None if dim.size < 0 else dim.size for dim in shapes[0].dim)
