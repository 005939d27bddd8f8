"""Nodes of a GraphDef as plain data: names, inputs, control inputs and attributes."""

import re
from dataclasses import dataclass, field
from typing import Any

from tensorboard.compat.proto.types_pb2 import DataType

from tbscope.analysis.units import names_counted
from tbscope.ir.graph import Constant, Nest, Shape
from tbscope.ir.metadata import device_on
from tbscope.messages import cut

__all__ = [
    "Op",
    "Reference",
    "attribute_value",
    "device_of",
    "dtypes_of",
    "op_of",
    "plain_op",
    "reference_of",
    "shapes_of",
]

Reference = tuple[str, int]
"""Data input of a node: the name of the producer and the index of the output."""

_DTYPES = {
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "HALF": "float16",
    "COMPLEX64": "complex64",
    "COMPLEX128": "complex128",
}
_TYPED_BY = ("dtype", "T", "DstT", "out_type", "output_type", "Tout")
_SHAPES = "_output_shapes"
# Op types with which tbscope's drawings keep the page from folding unlike nodes into a series.
_APART = re.compile(r"(Input|Output|Parameter|Buffer)\[.*\]")
_OF_RANKS = re.compile(r"ranks_([0-9][-0-9,a-z_]*)_([^_]+)")
_MOST_ENTRIES = 1000
_MOST_TEXT = 1000
_MOST_ELEMENTS = 16


@dataclass(slots=True, eq=False)
class Op:
    """Node of a GraphDef.

    Attributes:
        name: The name.
        op: The op type.
        reads: The data inputs, in order.
        waits: The names of the control inputs.
        facts: The attributes, without blanks before their names.
        shapes: The shapes of the outputs, as far as they are recorded.
        dtypes: The element types of the outputs with shapes, or of the first output.
        device: The device in torch's notation.
        drawn: Whether an attribute has blanks before its name, which only tbscope's drawings write.
    """

    name: str
    op: str
    reads: list[Reference] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)
    facts: dict[str, Nest] = field(default_factory=dict)
    shapes: list[Shape | None] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    device: str = "cpu"
    drawn: bool = False


def op_of(node: Any) -> Op:
    """Return a NodeDef as plain data."""
    result = Op(node.name, plain_op(node.op), device=device_of(node.device))
    for text in node.input:
        if text.startswith("^"):
            result.waits.append(text[1:])
        elif text:
            result.reads.append(reference_of(text))
    for key in sorted(node.attr):
        if key == _SHAPES:
            result.shapes = shapes_of(node)
            continue
        name = key.lstrip(" ")
        result.drawn |= name != key
        result.facts[name] = attribute_value(node.attr[key])
    result.dtypes = dtypes_of(node, len(result.shapes) or 1)
    return result


def shapes_of(node: Any) -> list[Shape | None]:
    """Return the shapes of the outputs of a NodeDef, as far as they are recorded."""
    if _SHAPES not in node.attr:
        return []
    return [_shape(shape) for shape in node.attr[_SHAPES].list.shape[:_MOST_ENTRIES]]


def plain_op(op: str) -> str:
    """Return an op type without the suffix with which tbscope's drawings prevent folding."""
    apart = _APART.fullmatch(op)
    return apart[1] if apart else op


def dtypes_of(node: Any, count: int) -> list[str]:
    """Return the element types of the first outputs of a NodeDef; "unknown" for missing ones.

    Args:
        node: The NodeDef.
        count: The number of the outputs.
    """
    for name in _TYPED_BY:
        attr = node.attr.get(name)
        if attr is None or not (name == "dtype" or attr.HasField("type") or attr.list.type):
            continue
        fact = attribute_value(attr)
        # tbscope's drawings write "float32", or "float32 x300" for very many results.
        dtypes = fact if isinstance(fact, list) else names_counted(str(fact))
        if len(dtypes) == 1:
            dtypes *= count
        return [*map(str, dtypes), *["unknown"] * count][:count]
    return ["unknown"] * count


def reference_of(text: str) -> Reference:
    """Parse a data input: `name`, or `name:1`."""
    name, _, output = text.partition(":")
    return name, int(output) if output.isdecimal() and len(output) < 10 else 0


def device_of(text: str) -> str:
    """Return a device in torch's notation: `cuda:0` for `/job:x/device:GPU:0`.

    The numbers of ranks come before their device: `ranks 0-7 cuda:0` for `/device:ranks_0-7_GPU:0`.
    """
    device = text.rpartition("device:")[2] if "device:" in text else text.strip("/")
    if ranks := _OF_RANKS.fullmatch(device):
        numbers = ranks[1].replace("_", " ")
        several = "rank" if numbers.isdecimal() else "ranks"
        return device_on(f"{several} {numbers}", device_of(f"device:{ranks[2]}"))
    kind, _, index = device.partition(":")
    kind = {"GPU": "cuda", "gpu": "cuda"}.get(kind, kind.lower())
    if not kind:
        return "cpu"
    return f"{kind}:{index}" if index and kind != "cpu" else kind


def _shape(message: Any) -> Shape | None:
    if message.unknown_rank:
        return None
    return tuple(dim.size if dim.size >= 0 else None for dim in message.dim)


def _dtype(number: int) -> str:
    try:
        name: str = DataType.Name(number)
    except ValueError:
        return "unknown"
    name = name.removeprefix("DT_").removesuffix("_REF")
    return "unknown" if name == "INVALID" else _DTYPES.get(name, name.lower())


def attribute_value(attribute: Any) -> Nest:
    """Return the value of an attribute as a constant."""
    kind = attribute.WhichOneof("value")
    if kind is None:
        return None
    if kind == "list":
        entries: list[Nest] = []
        for entry, items in attribute.list.ListFields():
            entries += [_single(entry.name, item) for item in items[:_MOST_ENTRIES]]
        return entries
    return _single(kind, getattr(attribute, kind))


def _single(kind: str, item: Any) -> Nest:
    if kind == "s" or kind == "placeholder":
        text = item.decode("utf-8", "backslashreplace") if isinstance(item, bytes) else item
        return cut(text, _MOST_TEXT)
    if kind == "f":
        # A float32 has some seven significant digits; more of them would be rounding noise.
        return float(f"{item:.7g}")
    if kind == "i" or kind == "b":
        return item
    if kind == "type":
        return _dtype(item)
    if kind == "shape":
        sizes = _shape(item)
        return sizes if sizes is not None else Constant("unknown rank")
    if kind == "tensor":
        return _literal(item)
    return Constant(cut(f"function {getattr(item, 'name', '')}", _MOST_TEXT))


def _literal(tensor: Any) -> Nest:
    """Return the content of a small tensor if it is stored number by number, else its type."""
    sizes = _shape(tensor.tensor_shape)
    for name in ("float_val", "double_val", "int_val", "int64_val", "bool_val", "string_val"):
        numbers = getattr(tensor, name)
        if 0 < len(numbers) <= _MOST_ELEMENTS:
            items = [_single("s" if name == "string_val" else "i", item) for item in numbers]
            return items[0] if sizes == () and len(items) == 1 else items
    return Constant(f"{_dtype(tensor.dtype)}{list(sizes) if sizes is not None else ''}")
