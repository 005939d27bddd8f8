"""Types of TorchScript values, and the inputs, outputs and nodes of graphs and blocks.

Values are read by index, and nodes by `prev()`: iteration over torch's lists costs ten times as
much, as torch ends each iteration with an exception.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from tbscope.sources.fx.aliasing import UNKNOWN, Content, Slot, TensorType
from tbscope.sources.torch.subclasses import type_names

__all__ = [
    "ScriptBlock",
    "ScriptNode",
    "ScriptType",
    "ScriptValue",
    "block_inputs",
    "block_outputs",
    "common_type",
    "dtype_code",
    "dtype_of",
    "gives_tensors",
    "node_inputs",
    "node_outputs",
    "nodes_of",
    "tensor_type_of",
    "types_from_kind",
]

ScriptNode: TypeAlias = Any
"""Node of a graph, `torch._C.Node`; torch's stubs lack its attributes and its neighbours."""

ScriptValue: TypeAlias = Any
"""Value in a graph, `torch._C.Value`."""

ScriptBlock: TypeAlias = Any
"""Graph, or a block of a node: `torch._C.Graph` or `torch._C.Block`."""

ScriptType: TypeAlias = Any
"""Type of a value, `torch._C.Type`."""

# Source: c10/core/ScalarType.h, in the order of its numbers.
_DTYPES = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("complex32", "complex64", "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16"),
    *("quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16"),
    *("float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz"),
    *("uint16", "uint32", "uint64"),
)
_CPU = torch.device("cpu")


def dtype_of(code: object) -> object:
    """Return the dtype for TorchScript's number of it; any other object is returned as it is."""
    if type(code) is int and 0 <= code < len(_DTYPES):
        return getattr(torch, _DTYPES[code], code)
    return code


def dtype_code(name: str) -> int | None:
    """Return TorchScript's number for the name of a dtype, or None if it has no number."""
    return _DTYPES.index(name) if name in _DTYPES else None


def tensor_type_of(kind: ScriptType) -> TensorType | None:
    """Return the type of a tensor in a graph, or None if its sizes or its dtype are missing."""
    if kind.kind() != "TensorType":
        return None
    sizes = kind.sizes()
    dtype = None if sizes is None else kind.dtype()
    if dtype is None:
        return None
    strides = kind.strides()
    return TensorType(
        tuple(sizes),
        *type_names(dtype, kind.device() or _CPU),
        stride=None if strides is None else tuple(strides),
    )


def gives_tensors(kind: ScriptType) -> bool:
    """Whether a value of a type may be a tensor, or contain one."""
    name = kind.kind()
    if name == "TensorType":
        return True
    return name in _NESTS and any(map(gives_tensors, kind.containedTypes()))


_NESTS = frozenset({"ListType", "TupleType", "OptionalType", "DictType", "FutureType", "UnionType"})


def types_from_kind(kind: ScriptType, count: Callable[[], int | None] = lambda: None) -> Content:
    """Return the tensor types in a value, from its TorchScript type alone; None without tensors.

    Args:
        kind: The TorchScript type.
        count: Returns the length of a list, or None if it is unknown.
    """
    name = kind.kind()
    if name == "TensorType":
        return tensor_type_of(kind) or UNKNOWN
    if name == "TupleType":
        return [types_from_kind(entry_type) for entry_type in kind.containedTypes()]
    if name == "ListType":
        entries = count()
        if entries is not None:
            return [types_from_kind(kind.containedTypes()[0])] * entries
    # A list or a dict of tensors is one value while its length is unknown.
    return UNKNOWN if gives_tensors(kind) else None


def common_type(slots: list[Slot]) -> TensorType:
    """Return a type with the sizes, dtype and strides that all slots have in common.

    Differing sizes are None, differing dtypes `unknown`; strides remain only if all types are
    equal. The device is the first slot's.
    """
    types = [slot.type for slot in slots]
    first = types[0]
    shapes = [tensor_type.shape for tensor_type in types if tensor_type.shape is not None]
    shape = None
    if len(shapes) == len(types) and len(set(map(len, shapes))) == 1:
        sizes = zip(*shapes, strict=True)
        shape = tuple(
            [tensor_type[0] if len(set(tensor_type)) == 1 else None for tensor_type in sizes]
        )
    dtype = first.dtype if len({tensor_type.dtype for tensor_type in types}) == 1 else "unknown"
    stride = first.stride if len(set(types)) == 1 else None
    return TensorType(shape, dtype, first.device, stride=stride)


def node_inputs(node: ScriptNode) -> list[ScriptValue]:
    """Return the inputs of a node, in order."""
    input_at = node.inputsAt
    return [input_at(index) for index in range(node.inputsSize())]


def node_outputs(node: ScriptNode) -> list[ScriptValue]:
    """Return the outputs of a node, in order."""
    output_at = node.outputsAt
    return [output_at(index) for index in range(node.outputsSize())]


def nodes_of(block: ScriptBlock) -> list[tuple[str, ScriptNode]]:
    """Return the nodes of a graph or a block in order, each with its kind."""
    node = _last(block)
    if not hasattr(node, "prev"):
        return [(node.kind(), node) for node in block.nodes()]
    nodes: list[tuple[str, ScriptNode]] = []
    while True:
        node = node.prev()
        kind = node.kind()
        if kind == "prim::Param":
            return nodes[::-1]
        nodes.append((kind, node))


def block_inputs(block: ScriptBlock) -> list[ScriptValue]:
    """Return the inputs of a graph or a block."""
    node = block.param_node() if hasattr(block, "param_node") else block.paramNode()
    return node_outputs(node)


def block_outputs(block: ScriptBlock) -> list[ScriptValue]:
    """Return the outputs of a graph or a block."""
    return node_inputs(_last(block))


def _last(block: ScriptBlock) -> ScriptNode:
    return block.return_node() if hasattr(block, "return_node") else block.returnNode()
