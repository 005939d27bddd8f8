"""Attributes: Python constants as the values that TensorBoard's info card shows.

The page shows a value as JSON and escapes non-ASCII characters twice, so texts are ASCII
and one line. It loads every byte of every node before it draws, so no attribute is over 1 KB.

The page lists attributes by the bytes of their names, the largest first, and HTML shows no
blanks at the start of a line: a name that begins with a blank is listed after all names that do
not. So the less important attributes have blanks; class, shapes and hyper-parameters keep their
plain names, by which scripts read them.

Source: tensorboard/plugins/graph/tf_graph_info/tf-node-info.ts; upb prints maps in this order
"""

import re
from typing import Any

from tensorboard.compat.proto.attr_value_pb2 import AttrValue

from tbscope.ir.graph import Nest, Value
from tbscope.page.constants import ATTRIBUTE_BYTES, EXACT_INTEGER

__all__ = [
    "MOST_BYTES",
    "MOST_CHARACTERS",
    "ascii_line",
    "key_by_worth",
    "nest_to_text",
    "to_attr_value",
]

MOST_BYTES = ATTRIBUTE_BYTES
"""The largest size of an attribute, in bytes."""

MOST_CHARACTERS = MOST_BYTES - 3
"""The length of the longest ASCII text in such an attribute, after its tag and length."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_FIELDS: dict[type | None, str] = {bool: "b", int: "i", float: "f", str: "s"}


def to_attr_value(constant: Nest) -> AttrValue | None:
    """Convert a constant to an attribute value.

    Args:
        constant: bool, int, float, str, a list or tuple of one of them, or any other
            pytree, which becomes its text (`None`, `(1, None)`, `torch.float32`).
    Returns:
        A new message, or None if it would be over `MOST_BYTES`. Numbers that the page
        cannot show exactly become their text, too.

    Source: tensorboard/compat/proto/attr_value.proto
    """
    several = type(constant) in (list, tuple)
    items: list[Any] = list(constant) if several else [constant]
    kind = type(items[0]) if items else None
    alike = kind in _FIELDS and {kind}.issuperset(map(type, items))
    if not (alike and all(map(_fits, items))):
        items, several, kind = [nest_to_text(constant)], False, str
    if kind is str:
        items = [ascii_line(item).encode("ascii") for item in items]
    message = AttrValue()
    if several:
        getattr(message.list, _FIELDS[kind]).extend(items)
    else:
        message = AttrValue(**{_FIELDS[kind]: items[0]})
    return message if message.ByteSize() <= MOST_BYTES else None


def _fits(item: object) -> bool:
    """Whether the page shows a number exactly: as a 32-bit float, if it is a float."""
    if type(item) is int:
        return -EXACT_INTEGER <= item <= EXACT_INTEGER
    if type(item) is float and item:
        return 1e-37 <= abs(item) < 1e38 and float(f"{item:.6g}") == item
    return True


def ascii_line(text: str) -> str:
    """Return a text in ASCII on one line; other characters are escaped as in Python."""
    if text.isascii() and text.isprintable():
        return text
    line = " ".join(text.split()).encode("ascii", "backslashreplace").decode("ascii")
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", line)


def nest_to_text(nest: Nest) -> str:
    """Return a pytree as compact text, its tensors by their printed names: `(1, %3, None)`."""
    if isinstance(nest, Value):
        return f"%{nest.name}"
    if isinstance(nest, list):
        return f"[{', '.join(map(nest_to_text, nest))}]"
    if isinstance(nest, tuple):
        return f"({', '.join(map(nest_to_text, nest))}{',' if len(nest) == 1 else ''})"
    if isinstance(nest, dict):
        entries = (f"{nest_to_text(key)}: {nest_to_text(entry)}" for key, entry in nest.items())
        return f"{{{', '.join(entries)}}}"
    return repr(nest)


# -- worth ----------------------------------------------------------------------------------------

# Names that come after all others: each group after the group before it.
_LATER = (
    ("parameters", "buffers", "parameter_count", "trainable_parameter_count"),
    ("flops",),
    ("flops_not_counted", "bytes"),
    (
        *("module", "call", "name", "operation", "operations", "kernels", "via", "then"),
        *("training", "source", "scope", "defined"),
    ),
)
_BLANKS = {name: " " * blanks for blanks, names in enumerate(_LATER, 1) for name in names}


def key_by_worth(name: str) -> str:
    """Return the name of an attribute with the blanks that put it in its group on the card."""
    return _BLANKS.get(name, "") + name
