"""Op types that have a special meaning in TensorBoard's page.

A user's operation or class that has one of these names by accident would vanish from the
drawing, or break the whole page, so its case is changed.
"""

import re
from functools import lru_cache

from tbscope.page.constants import ASIDE_OP

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
"""Op types whose first input is drawn as a reference edge, against the flow (graph.ts:1000)."""


def is_circle(op: str) -> bool:
    """Whether nodes of an op type are drawn as small circles beside their readers.

    Source: graph.ts, `DefaultBuildParams.inEmbeddingTypes`
    """
    return _CONSTANT in op


@lru_cache(4096)
def is_embedded(op: str) -> bool:
    """Whether nodes of an op type are embedded (circles and summary icons) and so no glyphs.

    Source: graph.ts, `DefaultBuildParams`
    """
    return _CONSTANT in op or _SUMMARY.fullmatch(op) is not None


def op_type(text: str) -> str:
    """Return an op type without a special meaning for an operation or a module.

    Args:
        text: The operation as the user wrote it, or the class of a leaf module.
    Returns:
        The text itself in ASCII, or a spelling in other case if it has a special meaning
        (`ConstantPad2d` becomes `constantPad2d`).

    Source: tensorboard/plugins/graph/tf_graph_common/graph.ts (`DefaultBuildParams`)
    and render.ts (`PARAMS.outExtractTypes`).
    """
    text = text.encode("ascii", "backslashreplace").decode() or "op"
    text = text.replace(_CONSTANT, _CONSTANT.lower())
    if match := _SUMMARY.fullmatch(text):
        text = f"{match[1]}summary"
    if text in RESERVED:
        # In capitals, since `Constructor` contains `Const` and would be a constant.
        return text.strip("_").upper()
    if text in REFERENCE or text == ASIDE_OP:
        swapped = text[0].swapcase() + text[1:]
        # The page treats `assign` like `Assign`, so that another case of the first letter is
        # not enough.
        return text.upper() if swapped in REFERENCE else swapped
    return text
