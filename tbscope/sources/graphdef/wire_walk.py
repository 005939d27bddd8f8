"""Walks over the fields of a message in protobuf's wire format, and tells where one is damaged.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mmap import mmap

__all__ = ["WireError", "Field", "fields"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MOST_DIGITS = 10


class WireError(Exception):
    """A message breaks off, or its bytes are none.

    Attributes:
        offset: Where, in bytes from the start.
    """

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(why)
        self.offset = offset


class Field(NamedTuple):
    """One field.

    Attributes:
        number: Its number.
        kind: The wire type: 0 for a number, 1 and 5 for 8 and 4 bytes, 2 for bytes with a length.
        start: Where its content starts.
        end: Where it ends.
        value: The number; 0 for any other kind.
        at: Where the field starts, with its number.
    """

    number: int
    kind: int
    start: int
    end: int
    value: int
    at: int


def fields(data: "bytes | mmap") -> Iterator[Field]:
    """Yield the fields of a message, in order, without a copy of what they hold.

    Raises:
        WireError: A field breaks off, or claims more than there is.
    """
    place, end = 0, len(data)
    while place < end:
        at = place
        key, place = _varint(data, place)
        number, kind = key >> 3, key & 7
        value = 0
        if number == 0:
            raise WireError(at, "a field has the number 0")
        if kind == _VARINT:
            first = place
            value, place = _varint(data, place)
            yield Field(number, kind, first, place, value, at)
            continue
        if kind == _BYTES:
            size, place = _varint(data, place)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise WireError(at, f"a field is of the wire type {kind}, which is none")
        if size > end - place:
            raise WireError(at, f"a field claims {size:,} bytes, and {end - place:,} are left")
        yield Field(number, kind, place, place + size, value, at)
        place += size


def _varint(data: "bytes | mmap", place: int) -> tuple[int, int]:
    value = shift = 0
    first = place
    while place < len(data):
        digit = data[place]
        place += 1
        value |= (digit & 0x7F) << shift
        if digit < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, place
        shift += 7
        if place - first >= _MOST_DIGITS:
            raise WireError(first, "a number has more than ten digits")
    raise WireError(first, "it breaks off in a number")
