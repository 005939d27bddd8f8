"""Protobuf's wire format, as far as most of a GraphDef's bytes need it: texts and their lengths.

Making a message for each small text takes ten times as long as joining its bytes, and parsing
the whole GraphDef once takes less time than setting its fields one by one.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from operator import add
from typing import TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Made = TypeVar("_Made")


def varint(number: int) -> bytes:
    """Encode a number from 0 to 2**64 - 1: seven bits a byte, the lowest bits first."""
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


class Once(dict[_Key, _Made]):
    """A dict that makes a missing entry from its key, and keeps it.

    Args:
        make: Makes the entry of a key that is missing.
    """

    def __init__(self, make: Callable[[_Key], _Made]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: _Key) -> _Made:
        made = self[key] = self._make(key)
        return made


# A graph has few different lengths, and many texts.
_VARINTS = Once(varint)


def delimited(data: bytes) -> bytes:
    """Return bytes with their length as a varint before them."""
    return _VARINTS[len(data)] + data


def delimited_each(items: Sequence[bytes]) -> list[bytes]:
    """Return each of several bytes as `delimited` does."""
    return [*map(add, _lengths(items), items)]


def _lengths(items: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the length of each of several bytes as a varint."""
    return map(_VARINTS.__getitem__, map(len, items))


def _head(number: int) -> bytes:
    """Return the bytes before a field that is a text or a message."""
    return _VARINTS[number << 3 | 2]


# tensorboard/compat/proto/node_def.proto: the fields of an entry of `attr`, which is field 5.
_ATTRIBUTE = _head(5)
_KEY = 1
_VALUE = 2
# tensorboard/compat/proto/attr_value.proto: the fields `list` and `s`.
_LIST = _head(1)
_TEXT = _head(2)


def field(number: int, data: bytes) -> bytes:
    """Encode one field (a string, bytes, or a message) with its number, which is below 16."""
    return _head(number) + delimited(data)


def repeated(number: int, items: Sequence[bytes]) -> list[bytes]:
    """Return the parts of fields of one number, which joined are as `field` encodes each."""
    heads = repeat(_head(number), len(items))
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
    return field(_KEY, key.encode("ascii")) + _head(_VALUE)


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
    named = [*map(add, heads, delimited_each(values))]
    return [_ATTRIBUTE + entry for entry in delimited_each(named)]


def text_attributes(head: bytes, texts: Sequence[bytes]) -> list[bytes]:
    """Encode attributes of one name that are texts: see `attribute`."""
    values = [_TEXT + text for text in delimited_each(texts)]
    return attributes([head] * len(values), values)
