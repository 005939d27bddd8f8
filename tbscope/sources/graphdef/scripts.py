"""What torch's own graphs write as nodes and is none: constants, lists, and the way to parameters.

torch draws a TorchScript graph: `prim::Constant` with the text of its value, `prim::ListConstruct`,
`prim::GetAttr` for each step to a parameter, and `IO Node` for inputs and outputs.
"""

import re

from tbscope.ir.graph import Constant, Nest
from tbscope.page.ops import op_type
from tbscope.sources.graphdef.ops import Op

__all__ = ["BUFFERS", "CONSTANT", "DICTS", "GET", "IO", "MAKERS", "attribute_name", "literal_of"]

CONSTANT, GET, IO = "prim::Constant", "prim::GetAttr", "IO Node"
_DICT = "prim::DictConstruct"
# As torch writes them, and as they stand in a GraphDef that was mended for the page.
DICTS = frozenset({_DICT, op_type(_DICT)})
_LISTS = ("prim::ListConstruct", "prim::TupleConstruct")
MAKERS = DICTS.union(_LISTS, map(op_type, _LISTS))
BUFFERS = frozenset({"running_mean", "running_var", "num_batches_tracked"})
"""The names that torch's own modules give to buffers; a graph does not tell buffers otherwise."""

_HELD = re.compile(r"\{ *(\w+) : ?(.*)\}", re.S)
_NUMBER = re.compile(r"-?(?:[0-9]{1,40}(?:\.[0-9]*)?(?:e[+-]?[0-9]{1,4})?|inf|nan)")


def attribute_name(op: Op) -> str:
    """Return the attribute that a `prim::GetAttr` gets; empty where it tells none."""
    return _held(op).get("name", "").strip()


def literal_of(op: Op) -> Nest:
    """Return what a `prim::Constant` holds: torch writes it without the quotes of a text."""
    text = _held(op).get("value")
    if text is None:
        return None
    bare = text.strip()
    if _NUMBER.fullmatch(bare):
        return int(bare) if bare.lstrip("-").isdigit() else float(bare)
    if text.startswith(" ") and text.endswith(" "):
        return bare
    return Constant(bare)


def _held(op: Op) -> dict[str, str]:
    found = _HELD.fullmatch(str(op.facts.get("attr", "")))
    return {found[1]: found[2]} if found else {}
