"""Tensors in an ONNX model: parameters, buffers, and constants short enough to print."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from tbscope.ir.builder import SourceKind
from tbscope.ir.graph import Constant, Nest, Shape
from tbscope.sources.onnx.metadata import FOLDED, properties, texts_of
from tbscope.sources.onnx.optional_deps import import_extra
from tbscope.sources.onnx.types import dtype_name, size_of

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, TensorProto

__all__ = ["Initializer", "attribute_value", "initializers_of", "is_made_up", "literal"]

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
        attributes: Attributes for its node: the file of its data.
        literal: Its content, if that is a few whole numbers or a single number; else None.
    """

    name: str
    kind: SourceKind
    shape: Shape
    dtype: str
    attributes: Mapping[str, Nest]
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
        dtype = dtype_name(tensor.data_type)
        tensors[tensor.name] = Initializer(tensor.name, "parameter", tuple(sparse.dims), dtype, {})
    return tensors


def _initializer(name: str, tensor: "TensorProto", facts: Mapping[str, str]) -> Initializer:
    shape = tuple(max(0, size) for size in tensor.dims)
    dtype = dtype_name(tensor.data_type)
    attributes: dict[str, Nest] = {}
    kind = _KINDS.get(facts.get(_KIND, ""))
    folded_from = texts_of(facts.get(FOLDED, ""))
    if kind is None and len(folded_from) == 1 and not is_made_up(folded_from[0]):
        name, kind = folded_from[0], "parameter"
    content = None if kind in ("parameter", "buffer") else literal(tensor)
    if kind is None:
        # Integers of 64 bits, truth values and texts are indices and masks; the small integers of a
        # quantised model are parameters.
        is_index_or_mask = dtype in ("int64", "bool", "string")
        kind = "constant" if is_index_or_mask or is_made_up(name) else "parameter"
    if tensor.external_data:
        attributes["data"] = next(
            (entry.value for entry in tensor.external_data if entry.key == "location"), "elsewhere"
        )
    return Initializer(name, kind, shape, dtype, attributes, content)


def is_made_up(name: str) -> bool:
    """Whether an exporter made up a name, so that it is no parameter's name.

    >>> is_made_up("val_12"), is_made_up("onnx::MatMul_7"), is_made_up("layer1.0.weight")
    (True, True, False)
    """
    return _MADE_UP.fullmatch(name) is not None


def literal(tensor: "TensorProto") -> Nest:
    """Return the content of a tensor with a few whole numbers, or a single number; else None."""
    onnx = import_extra("onnx")
    dtype = dtype_name(tensor.data_type)
    size = size_of(tensor)
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
        content = literal(attribute.t)
        sizes = ", ".join(map(str, attribute.t.dims))
        return (
            Constant(f"{dtype_name(attribute.t.data_type)}({sizes})")
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
