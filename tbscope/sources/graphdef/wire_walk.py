"""Fields of a message in protobuf's wire format, with the offset of any damage.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mmap import mmap

__all__ = ["Field", "WireError", "fields"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MOST_DIGITS = 10


class WireError(Exception):
    """Message that breaks off, or bytes that are no message.

    Attributes:
        offset: The offset of the damage, in bytes from the start.
    """

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(why)
        self.offset = offset


class Field(NamedTuple):
    """Field of a message.

    Attributes:
        number: The field number.
        kind: The wire type: 0 for a number, 1 and 5 for 8 and 4 bytes, 2 for bytes with a length.
        start: The offset of the content.
        end: The offset of the end of the content.
        value: The number; 0 for any other kind.
        at: The offset of the tag, with which the field starts.
    """

    number: int
    kind: int
    start: int
    end: int
    value: int
    at: int


def fields(data: "bytes | mmap") -> Iterator[Field]:
    """Yield the fields of a message in order, without copying their content.

    Raises:
        WireError: A field breaks off, or claims more bytes than are left.
    """
    offset, end = 0, len(data)
    while offset < end:
        at = offset
        key, offset = _varint(data, offset)
        number, kind = key >> 3, key & 7
        value = 0
        if number == 0:
            raise WireError(at, "a field has the number 0")
        if kind == _VARINT:
            first = offset
            value, offset = _varint(data, offset)
            yield Field(number, kind, first, offset, value, at)
            continue
        if kind == _BYTES:
            size, offset = _varint(data, offset)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise WireError(at, f"a field is of the wire type {kind}, which is none")
        if size > end - offset:
            raise WireError(at, f"a field claims {size:,} bytes, and {end - offset:,} are left")
        yield Field(number, kind, offset, offset + size, value, at)
        offset += size


def _varint(data: "bytes | mmap", position: int) -> tuple[int, int]:
    value = shift = 0
    first = position
    while position < len(data):
        digit = data[position]
        position += 1
        value |= (digit & 0x7F) << shift
        if digit < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position
        shift += 7
        if position - first >= _MOST_DIGITS:
            raise WireError(first, "a number has more than ten digits")
    raise WireError(first, "it breaks off in a number")
