"""Types and tensors of an ONNX model: dtypes, shapes, sizes with a name, parameters, constants."""

import functools
import math
import re
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from tbscope.errors import ArgumentError
from tbscope.ir.builder import SourceKind
from tbscope.ir.graph import Constant, Nest, Shape
from tbscope.messages import error_text
from tbscope.sources.fx.tensor_types import UNKNOWN, TensorType
from tbscope.sources.onnx.origins import FOLDED, properties, texts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from onnx import (
        AttributeProto,
        FunctionProto,
        GraphProto,
        ModelProto,
        NodeProto,
        TensorProto,
        TensorShapeProto,
        TypeProto,
    )


def import_extra(package: str) -> Any:
    """Import a package of the extra.

    Args:
        package: The import name of the package or of a submodule (`onnx`, `onnx_ir`).
    Raises:
        ArgumentError: The package is not installed.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package.partition(".")[0]:
            raise
        raise ArgumentError(
            f"ONNX models need the package {package.partition('.')[0]!r}, which is not installed",
            why="it comes with an extra of tbscope, as most models never become ONNX",
            fix="pip install 'tbscope[onnx]'",
        ) from error


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
def _dtype_name(number: int) -> str:
    """Return torch's name of a `TensorProto.DataType`, or `unknown`."""
    onnx = import_extra("onnx")
    try:
        name: str = onnx.TensorProto.DataType.Name(number)
    except ValueError:
        return "unknown"
    return _DTYPES.get(name, name.lower())


def type_of(message: "TypeProto") -> TensorType:
    """Return the type in a `TypeProto`."""
    kind = message.WhichOneof("value")
    if kind is None:
        return UNKNOWN
    if kind not in ("tensor_type", "sparse_tensor_type"):
        return TensorType(None, kind.removesuffix("_type"), "cpu")
    tensor = getattr(message, kind)
    dtype = _dtype_name(tensor.elem_type)
    if not tensor.HasField("shape"):
        return TensorType(None, dtype, "cpu")
    entries = [*tensor.shape.dim]
    sizes = [_size(entry) for entry in entries]
    if None not in sizes:
        # The common case; a dimension has either a number or a name.
        return TensorType(tuple(sizes), dtype, "cpu")
    named = any(entry.dim_param for entry in entries)
    texts = [
        entry.dim_param or ("?" if size is None else str(size))
        for entry, size in zip(entries, sizes, strict=True)
    ]
    return TensorType(tuple(sizes), dtype, "cpu", f"({', '.join(texts)})" if named else "")


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


class _Inferred(NamedTuple):
    """The nodes of a model, with the types of its values.

    Attributes:
        nodes: The nodes; their bodies contain the inferred types, too.
        types: The `TypeProto` of each value, by its name.
        failure: The reason why no types were inferred; an empty text without a failure.
    """

    nodes: "Sequence[NodeProto]"
    types: "dict[str, TypeProto]"
    failure: str


def infer(model: "ModelProto") -> _Inferred:
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
        if _size_of(tensor) <= MOST_ELEMENTS and not tensor.external_data:
            graph.initializer.append(tensor)
        elif tensor.name not in listed:
            graph.input.add(name=tensor.name, type=_type_of_tensor(tensor))
    try:
        graph, failure = onnx.shape_inference.infer_shapes(copy, data_prop=True).graph, ""
    except Exception as error:  # noqa: BLE001  It becomes a note: the graph is drawn without shapes.
        failure = error_text(error)
    return _Inferred(graph.node, dict(types_in(graph)), failure)


def infer_function(
    model: "ModelProto",
    function: "FunctionProto",
    nodes: "Sequence[NodeProto]",
    kinds: "Sequence[TypeProto | None]",
) -> _Inferred:
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


def _size_of(tensor: "TensorProto") -> int:
    """Return the number of elements of a `TensorProto`, from its dims."""
    return math.prod(max(0, size) for size in tensor.dims)


def _size(entry: "TensorShapeProto.Dimension") -> int | None:
    return entry.dim_value if entry.HasField("dim_value") and entry.dim_value >= 0 else None


_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
_KINDS: Mapping[str, SourceKind] = {
    "PARAMETER": "parameter",
    "BUFFER": "buffer",
    "CONSTANT_TENSOR": "constant",
}
# Names that an exporter made up: `val_12`, `onnx::MatMul_7`, `123`.
_MADE_UP = re.compile(r"(_?val_|const[a-z]*_?|onnx::\w+_|)[0-9_]+", re.IGNORECASE)
_MOST_SHOWN = 8


class Initializer(NamedTuple):
    """A tensor in a model: an initializer.

    Attributes:
        name: Its name: for a parameter that was transformed before it was written, the original
            name (`layers.0.q.weight`, transposed).
        kind: Parameter, buffer or constant.
        shape: Its sizes.
        dtype: The name of its dtype.
        literal: Its content, if that is a few whole numbers or a single number; else None.
    """

    name: str
    kind: SourceKind
    shape: Shape
    dtype: str
    literal: Nest = None


def initializers_of(graph: "GraphProto") -> dict[str, Initializer]:
    """Return the initializers of a graph by value name, sparse ones too.

    torch's earlier exporter writes one of several equal parameters, and an Identity of it for each
    further one: these are initializers, too.
    """
    metadata = {entry.name: properties(entry.metadata_props) for entry in graph.value_info}
    tensors = {
        tensor.name: _initializer(tensor.name, tensor, metadata.get(tensor.name, {}))
        for tensor in graph.initializer
    }
    by_name = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Identity" and node.input and node.input[0] in by_name:
            name = node.output[0]
            tensors[name] = _initializer(name, by_name[node.input[0]], metadata.get(name, {}))
    for sparse in graph.sparse_initializer:
        tensor = sparse.values
        dtype = _dtype_name(tensor.data_type)
        tensors[tensor.name] = Initializer(tensor.name, "parameter", tuple(sparse.dims), dtype)
    return tensors


def _initializer(name: str, tensor: "TensorProto", facts: Mapping[str, str]) -> Initializer:
    shape = tuple(max(0, size) for size in tensor.dims)
    dtype = _dtype_name(tensor.data_type)
    kind = _KINDS.get(facts.get(_KIND, ""))
    folded_from = texts_of(facts.get(FOLDED, ""))
    if kind is None and len(folded_from) == 1 and not is_made_up(folded_from[0]):
        name, kind = folded_from[0], "parameter"
    content = None if kind in ("parameter", "buffer") else _literal(tensor)
    if kind is None:
        # Integers of 64 bits, truth values and texts are indices and masks; the small integers of a
        # quantised model are parameters.
        is_index_or_mask = dtype in ("int64", "bool", "string")
        kind = "constant" if is_index_or_mask or is_made_up(name) else "parameter"
    return Initializer(name, kind, shape, dtype, content)


def is_made_up(name: str) -> bool:
    """Whether an exporter made up a name, so that it is no parameter's name.

    >>> is_made_up("val_12"), is_made_up("onnx::MatMul_7"), is_made_up("layer1.0.weight")
    (True, True, False)
    """
    return _MADE_UP.fullmatch(name) is not None


def _literal(tensor: "TensorProto") -> Nest:
    """Return the content of a tensor with a few whole numbers, or a single number; else None."""
    onnx = import_extra("onnx")
    dtype = _dtype_name(tensor.data_type)
    size = _size_of(tensor)
    is_short = (
        size <= _MOST_SHOWN and len(tensor.dims) <= 1 and dtype.startswith(("int", "uint", "bool"))
    )
    if tensor.external_data or not (is_short or (size == 1 and dtype.startswith("float"))):
        return None
    try:
        numbers = onnx.numpy_helper.to_array(tensor)
    except Exception:  # noqa: BLE001  A broken tensor is drawn without its content.
        return None
    content: Nest = numbers.astype(float if dtype.startswith("float") else int).reshape(-1).tolist()
    if dtype == "bool":
        content = [bool(number) for number in content]
    return tuple(content) if tensor.dims else content[0]


def attribute_value(attribute: "AttributeProto") -> Nest:
    """Return the content of an attribute of a node, as a constant."""
    onnx = import_extra("onnx")
    if attribute.type == attribute.TENSOR:
        content = _literal(attribute.t)
        sizes = ", ".join(map(str, attribute.t.dims))
        return (
            Constant(f"{_dtype_name(attribute.t.data_type)}({sizes})")
            if content is None
            else content
        )
    try:
        return _plain(onnx.helper.get_attribute_value(attribute))
    except ValueError:
        # A file may have an attribute of a kind that this onnx lacks.
        return Constant("?")


def _plain(value: object) -> Nest:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        # Attributes are floats of 32 bits: 1e-05, not 9.999999747378752e-06.
        return float(f"{value:.7g}")
    if hasattr(value, "__iter__") and not hasattr(value, "DESCRIPTOR"):
        return tuple(map(_plain, value))
    return Constant(type(value).__name__)
