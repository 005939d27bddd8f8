"""The records of an event file: lengths, checksums, and the bytes between them.

Source: tensorflow/core/lib/io/record_writer.cc
"""

import struct
from collections.abc import Iterator

from tbscope.files import masked_crc
from tbscope.sources.files import Readable

__all__ = ["RecordError", "records"]

_HEAD = struct.Struct("<QI")
_TAIL = struct.Struct("<I")


class RecordError(Exception):
    """A record is damaged; its text says where and how."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(f"the record at byte {offset:,} {why}")


def records(file: Readable, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield the records of a file with their offsets, each checked.

    Args:
        file: The file, at its start.
        size: Its bytes. No record is taken for longer than what is left of them.
    Raises:
        RecordError: A record is cut off, claims more than there is, or a checksum is wrong.
    """
    offset = 0
    while offset < size:
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise RecordError(offset, f"is cut off: {len(head)} bytes are left for its head")
        length, checksum = _HEAD.unpack(head)
        if masked_crc(head[:8]) != checksum:
            raise RecordError(offset, "is damaged: its length and the checksum of that differ")
        left = size - offset - _HEAD.size - _TAIL.size
        if length > left:
            raise RecordError(
                offset, f"is cut off: it claims {length:,} bytes, and {max(left, 0):,} are left"
            )
        data = file.read(length)
        tail = file.read(_TAIL.size)
        if len(data) < length or len(tail) < _TAIL.size:
            raise RecordError(offset, "is cut off: the file has become shorter")
        if masked_crc(data) != _TAIL.unpack(tail)[0]:
            raise RecordError(offset, "is damaged: its content and the checksum of that differ")
        yield offset, data
        offset += _HEAD.size + length + _TAIL.size
