"""TensorBoard's record writer, with its checksums computed in C, and its failures kept.

An event file is a list of records, each with two CRC-32C checksums, which TensorBoard
computes in Python at some 12 MB/s: most of the time that a large graph takes to write.
This file and `at_once` alone know private parts of TensorBoard; where they are named
otherwise in some release, its own writer stays as it is, with the same bytes.
"""

import contextlib
import os
import struct
import time
from collections.abc import Callable
from typing import Any

from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.summary.writer.record_writer import RecordWriter

from tbscope.files import masked_crc

__all__ = [
    "async_writer_of",
    "await_free_name",
    "file_name",
    "file_path",
    "has_lost_its_thread",
    "keep_failures",
    "raise_kept",
    "speed_up",
    "write_whole",
]

_CRC = struct.Struct("<I")


def speed_up(file_writer: object) -> bool:
    """Let an event file writer compute its checksums in C; the bytes stay the same.

    Args:
        file_writer: TensorBoard's `EventFileWriter`, or an object that holds one as
            `event_writer`, as torch's `FileWriter` does. Any other stays as it is.
    Returns:
        Whether its records are now written with checksums from C.
    Source: tensorboard/summary/writer/event_file_writer.py
    """
    record_writer: Any = getattr(async_writer_of(file_writer), "_writer", None)
    if type(record_writer) is not RecordWriter:
        return False
    file = getattr(record_writer, "_writer", None)
    if file is None:
        return False
    if "write" not in vars(record_writer):
        record_writer.write = _make_write(file)
    return True


def has_lost_its_thread(file_writer: object) -> bool:
    """Tell whether events added to an event file writer never reach its file.

    That is so in a forked process: TensorBoard writes in a thread, and a thread does
    not live on in a fork. Events added there are lost, and a flush never returns. So it is
    with tensorboardX's, unless `multiprocessing` made the fork, which mends its queues.

    Args:
        file_writer: As in `speed_up`, or one of tensorboardX; the answer for any other is False.
    """
    queue = getattr(getattr(file_writer, "event_writer", file_writer), "_event_queue", None)
    if getattr(queue, "_opid", os.getpid()) != os.getpid():
        feeder = getattr(queue, "_thread", None)
        return feeder is not None and not feeder.is_alive()
    async_writer = async_writer_of(file_writer)
    worker = getattr(async_writer, "_worker", None)
    if worker is None or getattr(async_writer, "_closed", True):
        return False
    return worker.exception is None and not worker.is_alive()


def keep_failures(file_writer: object, failures: list[Exception]) -> None:
    """Let records that cannot be written be told in a list, in place of a dead thread.

    TensorBoard writes in a thread, which prints its error and is gone at the first failure.

    Args:
        file_writer: As in `speed_up`; any other stays as it is.
        failures: Where the errors are told, in the order in which they happened.
    """
    record_writer: Any = getattr(async_writer_of(file_writer), "_writer", None)
    if record_writer is None or hasattr(record_writer.write, "raises"):
        return
    inner = record_writer.write

    def write(data: bytes) -> None:
        write_whole(record_writer, inner, [data])

    # A file that is not appended to is sent as a whole by each flush.
    appended = _appended_path(record_writer)
    record_writer.write = _kept(write if appended else inner, inner, failures)
    # These write, too, where a file is sent as a whole, as to most stores on other machines.
    for name in ("flush", "close"):
        inner_one = getattr(record_writer, name)
        setattr(record_writer, name, _kept(inner_one, inner_one, failures))


def _kept(
    doing: Callable[..., None], raises: Callable[..., None], failures: list[Exception]
) -> Callable[..., None]:
    """Make a function that tells its errors in a list; `raises` names the one that raises them."""

    def keep(*given: bytes) -> None:
        try:
            doing(*given)
        except Exception as error:  # noqa: BLE001  Whoever reads the list raises it.
            failures.append(error)

    keep.raises = raises  # type: ignore[attr-defined]
    keep.failures = failures  # type: ignore[attr-defined]
    return keep


def raise_kept(file_writer: object) -> None:
    """Raise the first of the errors that `keep_failures` keeps, and forget the others."""
    record_writer: Any = getattr(async_writer_of(file_writer), "_writer", None)
    failures: list[Exception] = getattr(getattr(record_writer, "flush", None), "failures", [])
    first, failures[:] = failures[:1], []
    if first:
        raise first[0]


def write_whole(record_writer: Any, write: Callable[[bytes], None], datas: list[bytes]) -> None:
    """Write records and flush; where that fails, the file is as it was before the first.

    Args:
        record_writer: TensorBoard's `RecordWriter`.
        write: Its way to write a record, which may be kept in `raises` of another one.
        datas: The records.
    """
    path = _appended_path(record_writer)
    size = os.path.getsize(path) if path and os.path.exists(path) else 0
    raising = getattr(write, "raises", write)
    try:
        for data in datas:
            raising(data)
        getattr(record_writer.flush, "raises", record_writer.flush)()
    except BaseException:
        if path:
            # A directory that is gone needs no cutting; the error to tell is the first one.
            with contextlib.suppress(OSError):
                os.truncate(path, size)
        raise


def _appended_path(record_writer: Any) -> str:
    """Return the path of a file on this machine that is opened anew for each record.

    Any other file has a place of its own where it goes on to write, so it cannot be cut.
    """
    file = getattr(record_writer, "_writer", None)
    if not type(file).__module__.startswith("tensorboard.compat."):
        return ""
    path = os.fsdecode(getattr(file, "filename", ""))
    return "" if "://" in path else path


def await_free_name(writer: object, directory: str) -> None:
    """Wait until a closed writer of tensorboardX opens a file of another name than its last.

    It names files by the second, and empties one of that name that is there.

    Source: tensorboardX/event_file_writer.py, `EventsWriter`.
    """
    if type(writer).__module__.partition(".")[0] == "tensorboardX":
        name = f"events.out.tfevents.{str(time.time())[:10]}."
        if any(one.startswith(name) for one in os.listdir(directory)):
            time.sleep(1 - time.time() % 1)


def file_name(file_writer: object) -> str:
    """Return the name, without directories, of the file to which an event file writer writes.

    Args:
        file_writer: As in `speed_up`, or one of tensorboardX; for any other the name is empty.
    """
    return os.path.basename(file_path(file_writer))


def file_path(file_writer: object) -> str:
    """Return the path of the file to which an event file writer writes, as `file_name`."""
    held: Any = getattr(file_writer, "event_writer", file_writer)
    # tensorboardX keeps the name one step further in.
    for holder in (held, getattr(held, "_ev_writer", None)):
        name = getattr(holder, "_file_name", None)
        if isinstance(name, str):
            return name
    return ""


def async_writer_of(file_writer: object) -> Any:
    """Return the queue and thread inside an event file writer; None where there is none."""
    held = getattr(file_writer, "event_writer", file_writer)
    return getattr(held, "_async_writer", None) if isinstance(held, EventFileWriter) else None


def _make_write(file: Any) -> Callable[[bytes], None]:
    """Make the `write` of a record writer: length, checksum, data, checksum."""

    def write(data: bytes) -> None:
        length = struct.pack("<Q", len(data))
        checks = _CRC.pack(masked_crc(length)), _CRC.pack(masked_crc(data))
        file.write(b"".join((length, checks[0], data, checks[1])))

    return write
