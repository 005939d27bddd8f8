"""Attributes: Python constants as the values that TensorBoard's info card shows.

The page shows a value as JSON and escapes what is no ASCII twice, so texts are ASCII
and one line. It loads every byte of every node before it draws, so none is over 1 KB.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from tensorboard.compat.proto.attr_value_pb2 import AttrValue

from tbscope.ir.graph import Nest, Value
from tbscope.page.constants import ATTRIBUTE_BYTES, EXACT_INTEGER

__all__ = [
    "MOST_BYTES",
    "MOST_CHARACTERS",
    "ascii_line",
    "nest_to_text",
    "to_attr_value",
]

MOST_BYTES = ATTRIBUTE_BYTES
"""The size that no attribute exceeds, in bytes."""

MOST_CHARACTERS = MOST_BYTES - 3
"""The length of the longest ASCII text that is no larger: before it come a tag and its length."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LIST_FIELDS: dict[type, str] = {bool: "b", int: "i", float: "f", str: "s"}


def to_attr_value(constant: Nest) -> AttrValue | None:
    """Convert a constant to an attribute value.

    Args:
        constant: bool, int, float, str, a list or tuple of one of them, or any other
            nest, which becomes its text (`None`, `(1, None)`, `torch.float32`).
    Returns:
        A new message, or None where it would be over `MOST_BYTES`. Numbers that the page
        could not show as they are become their text, too.

    Source: tensorboard/compat/proto/attr_value.proto
    """
    message = _typed(constant)
    if message is None:
        message = _text_value(nest_to_text(constant))
    return message if message.ByteSize() <= MOST_BYTES else None


def ascii_line(text: str) -> str:
    """Return a text in ASCII on one line; other characters are escaped as in Python."""
    if text.isascii() and text.isprintable():
        return text
    line = " ".join(text.split()).encode("ascii", "backslashreplace").decode("ascii")
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", line)


def nest_to_text(nest: Nest) -> str:
    """Return a nest as compact text, its tensors by their printed names: `(1, %3, None)`."""
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


def _text_value(text: str) -> AttrValue:
    return AttrValue(s=ascii_line(text).encode("ascii"))


def _typed(constant: Nest) -> AttrValue | None:
    """Convert a constant of a type that AttrValue has a field for; None for any other type."""
    kind = type(constant)
    if kind is str:
        return _text_value(constant)
    if kind in _FITS and _FITS[kind](constant):
        return AttrValue(**{_LIST_FIELDS[kind]: constant})
    if kind in (list, tuple) and constant:
        return _typed_list(constant)
    return None


def _typed_list(items: Sequence[Any]) -> AttrValue | None:
    kind = type(items[0])
    if kind not in _LIST_FIELDS or any(type(item) is not kind for item in items):
        return None
    if kind is str:
        items = [ascii_line(item).encode("ascii") for item in items]
    elif not all(map(_FITS[kind], items)):
        return None
    message = AttrValue()
    getattr(message.list, _LIST_FIELDS[kind]).extend(items)
    return message


def _is_exact(number: int) -> bool:
    return -EXACT_INTEGER <= number <= EXACT_INTEGER


def _is_short(number: float) -> bool:
    """Tell whether a number is the same after a way through 32 bits."""
    return number == 0 or (1e-37 <= abs(number) < 1e38 and float(f"{number:.6g}") == number)


_FITS: dict[type, Callable[[Any], bool]] = {
    bool: lambda _: True,
    int: _is_exact,
    float: _is_short,
}
