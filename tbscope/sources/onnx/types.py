"""Types of the values of an ONNX model: dtypes, shapes, and sizes with a name."""

import functools
import math
from typing import TYPE_CHECKING, NamedTuple

from tbscope.ir.graph import Shape
from tbscope.messages import error_text
from tbscope.sources.onnx.optional_deps import import_extra

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from onnx import (
        FunctionProto,
        GraphProto,
        ModelProto,
        NodeProto,
        TensorProto,
        TensorShapeProto,
        TypeProto,
    )

__all__ = [
    "MOST_ELEMENTS",
    "UNKNOWN",
    "Inferred",
    "ValueType",
    "dtype_name",
    "infer",
    "infer_function",
    "size_of",
    "type_of",
    "types_in",
]


class ValueType(NamedTuple):
    """The type of one value.

    Attributes:
        dtype: torch's name of the dtype; the kind of a value that is no tensor (`sequence`).
        shape: The sizes, None for an unknown size; None for an unknown rank.
        symbols: The sizes as in the file, if one of them has a name (`(batch, 3)`); else empty.
    """

    dtype: str
    shape: Shape | None
    symbols: str = ""


UNKNOWN = ValueType("unknown", None)
"""The type of a value without a type in the file."""

# onnx/onnx.proto: TensorProto.DataType; torch has the same types under other names.
_DTYPES = {
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "FLOAT16": "float16",
    "BFLOAT16": "bfloat16",
    "FLOAT8E4M3FN": "float8_e4m3fn",
    "FLOAT8E4M3FNUZ": "float8_e4m3fnuz",
    "FLOAT8E5M2": "float8_e5m2",
    "FLOAT8E5M2FNUZ": "float8_e5m2fnuz",
    "UNDEFINED": "unknown",
}
MOST_ELEMENTS = 1024
"""Most elements of a small tensor, whose content may determine shapes: axes, sizes, steps."""


@functools.cache
def dtype_name(number: int) -> str:
    """Return torch's name of a `TensorProto.DataType`, or `unknown`."""
    onnx = import_extra("onnx")
    try:
        name: str = onnx.TensorProto.DataType.Name(number)
    except ValueError:
        return "unknown"
    return _DTYPES.get(name, name.lower())


def type_of(message: "TypeProto") -> ValueType:
    """Return the type in a `TypeProto`."""
    kind = message.WhichOneof("value")
    if kind is None:
        return UNKNOWN
    if kind not in ("tensor_type", "sparse_tensor_type"):
        return ValueType(kind.removesuffix("_type"), None)
    tensor = getattr(message, kind)
    dtype = dtype_name(tensor.elem_type)
    if not tensor.HasField("shape"):
        return ValueType(dtype, None)
    entries = [*tensor.shape.dim]
    sizes = [_size(entry) for entry in entries]
    if None not in sizes:
        # The common case; a dimension has either a number or a name.
        return ValueType(dtype, tuple(sizes))
    named = any(entry.dim_param for entry in entries)
    texts = [
        entry.dim_param or ("?" if size is None else str(size))
        for entry, size in zip(entries, sizes, strict=True)
    ]
    return ValueType(dtype, tuple(sizes), f"({', '.join(texts)})" if named else "")


def types_in(graph: "GraphProto") -> "Iterator[tuple[str, TypeProto]]":
    """Yield the name and the `TypeProto` of each value that has a type in a graph."""
    for entry in (*graph.value_info, *graph.output, *graph.input):
        yield entry.name, entry.type
    for tensor in graph.initializer:
        yield tensor.name, _type_of_tensor(tensor)


def _type_of_tensor(tensor: "TensorProto") -> "TypeProto":
    sizes = [max(0, size) for size in tensor.dims]
    onnx = import_extra("onnx")
    message: TypeProto = onnx.helper.make_tensor_type_proto(tensor.data_type, sizes)
    return message


class Inferred(NamedTuple):
    """The nodes of a model, with the types of its values.

    Attributes:
        nodes: The nodes; their bodies contain the inferred types, too.
        types: The `TypeProto` of each value, by its name.
        failure: The reason why no types were inferred; an empty text without a failure.
    """

    nodes: "Sequence[NodeProto]"
    types: "dict[str, TypeProto]"
    failure: str


def infer(model: "ModelProto") -> Inferred:
    """Return the types of the values of a model: those in the model, else inferred ones.

    Inference runs on a copy without large tensors: the type of a large initializer suffices.

    Args:
        model: A `ModelProto`, which is not changed.
    """
    onnx = import_extra("onnx")
    copy = onnx.ModelProto(
        # Before IR version 4, each initializer had to be an input, too.
        ir_version=max(model.ir_version, 4),
        opset_import=model.opset_import,
        functions=model.functions,
    )
    graph = copy.graph
    graph.name = model.graph.name or "graph"
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    listed = {entry.name for entry in graph.input}
    for tensor in model.graph.initializer:
        if size_of(tensor) <= MOST_ELEMENTS and not tensor.external_data:
            graph.initializer.append(tensor)
        elif tensor.name not in listed:
            graph.input.add(name=tensor.name, type=_type_of_tensor(tensor))
    try:
        graph, failure = onnx.shape_inference.infer_shapes(copy, data_prop=True).graph, ""
    except Exception as error:  # noqa: BLE001  It becomes a note: the graph is drawn without shapes.
        failure = error_text(error)
    return Inferred(graph.node, dict(types_in(graph)), failure)


def infer_function(
    model: "ModelProto",
    function: "FunctionProto",
    nodes: "Sequence[NodeProto]",
    kinds: "Sequence[TypeProto | None]",
) -> Inferred:
    """Return the types of the values of a function in one call.

    Args:
        model: The model that has the function.
        function: The function.
        nodes: Its nodes, with the attributes of the call.
        kinds: The `TypeProto`s of its inputs; None for an unknown type.
    """
    copy = type(model)(
        ir_version=model.ir_version,
        opset_import=function.opset_import,
        functions=model.functions,
    )
    copy.graph.node.extend(nodes)
    copy.graph.value_info.extend(function.value_info)
    for name, type_proto in zip(function.input, kinds, strict=True):
        if type_proto is not None:
            copy.graph.input.add(name=name, type=type_proto)
    return infer(copy)


def size_of(tensor: "TensorProto") -> int:
    """Return the number of elements of a `TensorProto`, from its dims."""
    return math.prod(max(0, size) for size in tensor.dims)


def _size(entry: "TensorShapeProto.Dimension") -> int | None:
    return entry.dim_value if entry.HasField("dim_value") and entry.dim_value >= 0 else None
