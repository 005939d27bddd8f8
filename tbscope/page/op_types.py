"""Op types to which TensorBoard's page gives a meaning of their own.

An operation or a class of the user's that has such a name by accident would vanish from
the drawing, or take the whole page down, so it gets one with another case.
"""

import re

from tbscope.page.constants import ASIDE_OP

__all__ = ["REFERENCE", "RESERVED", "is_circle", "is_embedded", "op_type"]

RESERVED = frozenset(
    {
        "__defineGetter__",
        "__defineSetter__",
        "__lookupGetter__",
        "__lookupSetter__",
        "__proto__",
        "__root__",
        "constructor",
        "hasOwnProperty",
        "isPrototypeOf",
        "length",
        "propertyIsEnumerable",
        "toLocaleString",
        "toString",
        "valueOf",
    }
)
"""Keys that every JavaScript object has: as an op type, or as the first part of a name,
they break the page (tensorboard/plugins/graph/tf_graph_common/hierarchy.ts)."""

_CONSTANT = "Const"
_SUMMARY = re.compile(r"([a-zA-Z]+)Summary")
REFERENCE = frozenset(
    {
        *("Assign", "AssignAdd", "AssignSub", "ScatterAdd", "ScatterSub", "ScatterUpdate"),
        *("assign", "assign_add", "assign_sub", "count_up_to"),
        *("scatter_add", "scatter_sub", "scatter_update"),
    }
)
"""Edges into the first input of these are drawn as references, against the flow (graph.ts:1000)."""


def is_circle(op: str) -> bool:
    """Tell whether nodes of an op type are drawn as small circles beside what reads them.

    Source: graph.ts, `DefaultBuildParams.inEmbeddingTypes`
    """
    return _CONSTANT in op


def is_embedded(op: str) -> bool:
    """Tell whether nodes of an op type are no glyphs of their own: circles and summary icons.

    Source: graph.ts, `DefaultBuildParams`
    """
    return _CONSTANT in op or _SUMMARY.fullmatch(op) is not None


def op_type(text: str) -> str:
    """Return the op type under which an operation is drawn as an operation.

    Args:
        text: The operation as the user wrote it, or the class of a leaf module.
    Returns:
        The same text, ASCII, where the page gives it no meaning of its own; else one
        that differs from it in case (`ConstantPad2d` becomes `constantPad2d`).

    Source: tensorboard/plugins/graph/tf_graph_common/graph.ts (`DefaultBuildParams`)
    and render.ts (`PARAMS.outExtractTypes`).
    """
    text = text.encode("ascii", "backslashreplace").decode() or "op"
    text = text.replace(_CONSTANT, _CONSTANT.lower())
    if found := _SUMMARY.fullmatch(text):
        text = f"{found[1]}summary"
    if text in RESERVED:
        # In capitals, since `Constructor` would be a constant.
        return text.strip("_").upper()
    if text in REFERENCE or text == ASIDE_OP:
        other = text[0].swapcase() + text[1:]
        # `assign` means to the page what `Assign` means.
        return text.upper() if other in REFERENCE else other
    return text
