"""TensorBoard's record writer, with its checksums computed in C.

An event file is a list of records, each with two CRC-32C checksums, which TensorBoard
computes in Python at some 12 MB/s: most of the time that a large graph takes to write.
This is the one file that knows private parts of TensorBoard; where they are named
otherwise in some release, its own writer stays as it is, with the same bytes.
"""

import functools
import importlib.util
import io
import os
import struct
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.summary.writer.record_writer import RecordWriter

__all__ = ["file_name", "has_lost_its_thread", "speed_up"]

Checksum: TypeAlias = Callable[[bytes], int]
"""A function that computes the CRC-32C of some bytes, not masked."""


def speed_up(file_writer: object) -> bool:
    """Let an event file writer compute its checksums in C; the bytes stay the same.

    Args:
        file_writer: TensorBoard's `EventFileWriter`, or an object that holds one as
            `event_writer`, as torch's `FileWriter` does. Any other stays as it is.
    Returns:
        Whether its records are now written with checksums from C.
    Source: tensorboard/summary/writer/event_file_writer.py
    """
    record_writer: Any = getattr(_async_writer(file_writer), "_writer", None)
    checksum = checksum_in_c()
    if checksum is None or type(record_writer) is not RecordWriter:
        return False
    file = getattr(record_writer, "_writer", None)
    if file is None:
        return False
    if "write" not in vars(record_writer):
        record_writer.write = _make_write(file, checksum)
    return True


def has_lost_its_thread(file_writer: object) -> bool:
    """Tell whether events added to an event file writer never reach its file.

    That is so in a forked process: TensorBoard writes in a thread, and a thread does
    not live on in a fork. Events added there are lost, and a flush never returns.

    Args:
        file_writer: As in `speed_up`; the answer for any other is False.
    """
    async_writer = _async_writer(file_writer)
    worker = getattr(async_writer, "_worker", None)
    if worker is None or getattr(async_writer, "_closed", True):
        return False
    return worker.exception is None and not worker.is_alive()


def file_name(file_writer: object) -> str:
    """Return the name, without directories, of the file to which an event file writer writes.

    Args:
        file_writer: As in `speed_up`, or one of tensorboardX; for any other the name is empty.
    """
    held: Any = getattr(file_writer, "event_writer", file_writer)
    # tensorboardX keeps the name one step further in.
    for holder in (held, getattr(held, "_ev_writer", None)):
        name = getattr(holder, "_file_name", None)
        if isinstance(name, str):
            return os.path.basename(name)
    return ""


def _async_writer(file_writer: object) -> Any:
    """Return the queue and thread inside an event file writer; None where there is none."""
    held = getattr(file_writer, "event_writer", file_writer)
    return getattr(held, "_async_writer", None) if isinstance(held, EventFileWriter) else None


@functools.cache
def checksum_in_c() -> Checksum | None:
    """Return google-crc32c's function if it is in C and writes the same bytes as TensorBoard."""
    if importlib.util.find_spec("google_crc32c") is None:
        return None
    with warnings.catch_warnings():
        # Without its C part it warns that it is slow; TensorBoard's own is then as good.
        warnings.simplefilter("ignore", RuntimeWarning)
        import google_crc32c
    if google_crc32c.implementation != "c":
        return None
    sample = bytes(range(100))
    theirs, ours = io.BytesIO(), io.BytesIO()
    RecordWriter(theirs).write(sample)
    _make_write(ours, google_crc32c.value)(sample)
    return google_crc32c.value if theirs.getvalue() == ours.getvalue() else None


def _make_write(file: Any, checksum: Checksum) -> Callable[[bytes], None]:
    """Make the `write` of a record writer: length, checksum, data, checksum."""

    def write(data: bytes) -> None:
        length = struct.pack("<Q", len(data))
        file.write(b"".join((length, _mask(checksum(length)), data, _mask(checksum(data)))))

    return write


def _mask(checksum: int) -> bytes:
    """Mask a checksum as records store it: rotated by 15 bits, a constant added, in four bytes.

    Source: tensorflow/core/lib/hash/crc32c.h, `Mask`.
    """
    rotated = (checksum >> 15) | (checksum << 17)
    return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)
