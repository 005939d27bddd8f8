"""Properties of ONNX operators: roles (view, cast, copy, maker), randomness, FLOPs, input names."""

import functools
import math
from collections.abc import Mapping, Sequence
from itertools import takewhile

from tbscope.ir.graph import Role, Shape
from tbscope.sources.onnx.optional_deps import import_extra

__all__ = ["NO_FORMULA", "UNCOUNTED", "flops_of", "input_names", "is_random", "role_of"]

# Source: the operator schemas, onnx/defs.
_ROLES: Mapping[str, Role] = {
    **dict.fromkeys(("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Expand"), "view"),
    **dict.fromkeys(("Slice", "DepthToSpace", "SpaceToDepth"), "view"),
    **dict.fromkeys(("Cast", "CastLike"), "cast"),
    "Identity": "copy",
    **dict.fromkeys(("Constant", "ConstantOfShape", "Range", "EyeLike"), "maker"),
}
_RANDOM = frozenset(
    {
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        *("Bernoulli", "Multinomial"),
    }
)
UNCOUNTED = frozenset(
    {
        *("LSTM", "GRU", "RNN", "Einsum", "Attention", "DeformConv", "DFT", "STFT"),
        *("MultiHeadAttention", "GroupQueryAttention", "PackedAttention", "LinearAttention"),
        *("QAttention", "FusedConv", "MatMulNBits", "MoE", "QMoE", "QLinearMatMul", "QLinearConv"),
        *("MatMulInteger", "FusedMatMul", "MatMulIntegerToFloat", "ConvInteger"),
    }
)
"""Operators that compute much, and have no FLOPs formula here."""

NO_FORMULA = "there is no formula for this ONNX operator"


def role_of(operator: str, *, reads: bool) -> Role | None:
    """Return the role of an operator that computes nothing, or None for any other operator.

    A maker reads no tensor; views, casts and copies read one.

    Args:
        operator: Its `op_type`.
        reads: Whether it reads a tensor.
    """
    role = _ROLES.get(operator)
    return None if (role == "maker") == reads else role


def is_random(operator: str, attributes: Mapping[str, object]) -> bool:
    """Whether an operator draws random numbers; a Dropout does in training mode only."""
    return operator in _RANDOM or (operator == "Dropout" and bool(attributes.get("training_mode")))


def flops_of(
    operator: str,
    inputs: Sequence[Shape | None],
    output: Shape | None,
    attributes: Mapping[str, object],
) -> int | None:
    """Return the FLOPs of a matrix product or a convolution, two for each multiplication.

    Args:
        operator: Its `op_type`.
        inputs: The shapes of its inputs.
        output: The shape of its first output.
        attributes: Its attributes.
    Returns:
        The FLOPs, or None if a size is unknown, and for any other operator.
    """
    if operator in ("Gemm", "MatMul"):
        return _count(output, _size(inputs, 0, 0 if attributes.get("transA") else -1))
    if operator in ("Conv", "ConvTranspose"):
        # A kernel over the channels of one group multiplies each element of the output, or of a
        # ConvTranspose's input.
        weight = inputs[1] if len(inputs) > 1 else None
        larger = output if operator == "Conv" else inputs[0]
        return _count(larger, _product(weight[1:]) if weight else None)
    return None


def input_names(operator: str, domain: str, version: int, count: int) -> list[str | None]:
    """Return the names of an operator's inputs in its schema; None for an input without a name.

    Args:
        operator: Its `op_type`.
        domain: Its domain, empty for ONNX's own.
        version: The version of that domain.
        count: The number of inputs.
    """
    try:
        names = _names_in_schema(operator, domain, version)
    except import_extra("onnx").defs.SchemaError:
        names = ()
    return [*names, *[None] * count][:count]


@functools.lru_cache(maxsize=4096)
def _names_in_schema(operator: str, domain: str, version: int) -> tuple[str, ...]:
    """Return the names of the inputs before the first variadic one."""
    defs = import_extra("onnx").defs
    variadic = defs.OpSchema.FormalParameterOption.Variadic
    entries = defs.get_schema(operator, version, domain).inputs
    return tuple(
        [entry.name for entry in takewhile(lambda entry: entry.option != variadic, entries)]
    )


def _count(shape: Shape | None, inner: int | None) -> int | None:
    size = _product(shape)
    return None if size is None or inner is None else 2 * size * inner


def _product(shape: Shape | None) -> int | None:
    if shape is None or None in shape:
        return None
    return math.prod(size for size in shape if size is not None)


def _size(inputs: Sequence[Shape | None], index: int, dimension: int) -> int | None:
    shape = inputs[index] if len(inputs) > index else None
    try:
        return None if shape is None else shape[dimension]
    except IndexError:
        return None
