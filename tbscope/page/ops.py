"""Op types that TensorBoard draws as what they are.

Its page gives some op types a meaning of their own. An operation or a class of the
user's that has such a name by accident would vanish from the drawing, or take the
whole page down, so it gets one with another case.
"""

import re

__all__ = ["RESERVED", "op_type"]

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

_CONSTANT = re.compile("Const")
_SUMMARY = re.compile(r"^([a-zA-Z]+)Summary$")
# Edges into the first input of these are drawn as references, against the flow.
REFERENCE = frozenset(
    {
        *("Assign", "AssignAdd", "AssignSub", "ScatterAdd", "ScatterSub", "ScatterUpdate"),
        *("assign", "assign_add", "assign_sub", "count_up_to"),
        *("scatter_add", "scatter_sub", "scatter_update"),
    }
)


def op_type(text: str) -> str:
    """Give the op type under which an operation is drawn as an operation.

    Args:
        text: The operation as the user wrote it, or the class of a leaf module.
    Returns:
        The same text, ASCII, where the page gives it no meaning of its own; else one
        that differs from it in case (`ConstantPad2d` becomes `constantPad2d`).

    Source: tensorboard/plugins/graph/tf_graph_common/graph.ts (`DefaultBuildParams`)
    and render.ts (`PARAMS.outExtractTypes`).
    """
    text = text.encode("ascii", "backslashreplace").decode() or "op"
    text = _CONSTANT.sub("const", text)
    text = _SUMMARY.sub(r"\1summary", text)
    if text in RESERVED:
        # In capitals, since `Constructor` would be a constant.
        return text.strip("_").upper()
    if text in REFERENCE or text == "NoOp":
        other = text[0].swapcase() + text[1:]
        # `assign` means to the page what `Assign` means.
        return text.upper() if other in REFERENCE else other
    return text
