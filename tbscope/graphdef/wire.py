"""Protobuf's wire format, as far as most of a GraphDef's bytes need it: texts and their lengths.

Making a message for each small text takes ten times as long as joining its bytes, and parsing
the whole GraphDef once takes less time than setting its fields one by one.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Iterable, Sequence
from itertools import chain, repeat

__all__ = [
    "attribute",
    "attribute_head",
    "attributes",
    "delimited",
    "delimited_each",
    "field",
    "list_value",
    "repeated",
    "text_attributes",
    "text_value",
    "varint",
]

_SHORT = [bytes((length,)) for length in range(0x80)]
_LONG = 0x4000

# tensorboard/compat/proto/node_def.proto: the fields of an entry of `attr`, which is field 5.
_ATTRIBUTE = _SHORT[5 << 3 | 2]
_KEY = 1
_VALUE = 2
# tensorboard/compat/proto/attr_value.proto: the fields `list` and `s`.
_LIST = _SHORT[1 << 3 | 2]
_TEXT = _SHORT[2 << 3 | 2]


def varint(number: int) -> bytes:
    """Encode a number from 0 to 2**64 - 1: seven bits a byte, the lowest bits first."""
    if number < 0x80:
        return _SHORT[number]
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def delimited(data: bytes) -> bytes:
    """Return bytes with their length as a varint before them."""
    return delimited_each((data,))[0]


def delimited_each(items: Sequence[bytes]) -> list[bytes]:
    """Return each of several bytes as `delimited` does."""
    return [length + data for length, data in zip(_lengths(items), items, strict=True)]


def _lengths(items: Sequence[bytes]) -> list[bytes]:
    """Return the length of each of several bytes as a varint."""
    lengths: list[bytes] = []
    for length in map(len, items):
        if length < 0x80:
            lengths.append(_SHORT[length])
        elif length < _LONG:
            lengths.append(bytes((length & 0x7F | 0x80, length >> 7)))
        else:
            lengths.append(varint(length))
    return lengths


def field(number: int, data: bytes) -> bytes:
    """Encode one field (a string, bytes, or a message) with its number, which is below 16."""
    return _SHORT[number << 3 | 2] + delimited(data)


def repeated(number: int, items: Sequence[bytes]) -> list[bytes]:
    """Return the parts of fields of one number, which joined are as `field` encodes each."""
    heads = repeat(_SHORT[number << 3 | 2], len(items))
    return [*chain.from_iterable(zip(heads, _lengths(items), items, strict=True))]


def list_value(items: bytes) -> bytes:
    """Encode an AttrValue that is a list, from the joined bytes of its items."""
    return _LIST + delimited(items)


def text_value(text: bytes) -> bytes:
    """Encode an AttrValue that is a text."""
    return _TEXT + delimited(text)


def attribute_head(key: str) -> bytes:
    """Return the first bytes of the entry of an attribute with this name, for `attribute`.

    Args:
        key: The name, ASCII.
    """
    return field(_KEY, key.encode("ascii")) + _SHORT[_VALUE << 3 | 2]


def attribute(head: bytes, value: bytes) -> bytes:
    """Encode one attribute of a NodeDef.

    Args:
        head: The bytes that `attribute_head` returns for the name.
        value: An AttrValue, serialised.
    Returns:
        One entry of the map `attr`. Joined entries are a NodeDef with these attributes alone.
    """
    return attributes([head], [value])[0]


def attributes(heads: Iterable[bytes], values: Sequence[bytes]) -> list[bytes]:
    """Encode several attributes, as `attribute` does each."""
    named = [head + value for head, value in zip(heads, delimited_each(values), strict=True)]
    return [_ATTRIBUTE + entry for entry in delimited_each(named)]


def text_attributes(head: bytes, texts: Sequence[bytes]) -> list[bytes]:
    """Encode attributes of one name that are texts: see `attribute`."""
    values = [_TEXT + text for text in delimited_each(texts)]
    return attributes([head] * len(values), values)
