"""Records of event files: checksums computed in C, and writes in the caller's own thread.

An event file is a list of records, each with two CRC-32C checksums, which TensorBoard
computes in Python at some 12 MB/s: most of the time of writing a large graph.

The writers of TensorBoard, torch and tensorboardX queue events for a thread of their own. If
that thread fails, it prints a traceback, and the caller sees the error later, or never;
tensorboardX's `flush` does not even wait for it.

This file alone uses private attributes of TensorBoard and tensorboardX. If a release names them
otherwise, its writer stays unpatched, and events go through its public `add_event`.
"""

import contextlib
import errno
import inspect
import io
import itertools
import os
import socket
import struct
import time
from typing import Any

from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.summary.writer.record_writer import RecordWriter

from tbscope.errors import WriterError
from tbscope.utils.files import masked_crc

# The modules whose `add_event` does nothing but queue the event.
_QUEUEING = (
    "tensorboard.summary.writer.event_file_writer",
    "tensorboardX.event_file_writer",
    "tensorboardX.writer",
    "torch.utils.tensorboard.writer",
)


def speed_up(file_writer: object) -> bool:
    """Let an event file writer compute its checksums in C; the bytes stay the same.

    Args:
        file_writer: TensorBoard's `EventFileWriter`, or an object with one as its
            `event_writer`, e.g. torch's `FileWriter`. Any other object stays as it is.
    Returns:
        Whether its checksums are now computed in C.
    Source: tensorboard/summary/writer/event_file_writer.py
    """
    record_writer: Any = getattr(_async_writer_of(file_writer), "_writer", None)
    file = getattr(record_writer, "_writer", None)
    if type(record_writer) is not RecordWriter or file is None:
        return False

    def write(data: bytes) -> None:
        length = struct.pack("<Q", len(data))
        checks = (struct.pack("<I", masked_crc(part)) for part in (length, data))
        file.write(b"".join((length, next(checks), data, next(checks))))

    if "write" not in vars(record_writer):
        record_writer.write = write
    return True


def has_lost_its_thread(file_writer: object) -> bool:
    """Whether events added to an event file writer never reach its file.

    This is so in a forked process: TensorBoard and tensorboardX write in a thread, and threads
    do not survive a fork. Events added there are lost, and a flush never returns.

    Args:
        file_writer: As in `speed_up`, or a writer of tensorboardX; False for any other.
    """
    queue = getattr(getattr(file_writer, "event_writer", file_writer), "_event_queue", None)
    if getattr(queue, "_opid", os.getpid()) != os.getpid():
        return True
    async_writer = _async_writer_of(file_writer)
    worker = getattr(async_writer, "_worker", None)
    if worker is None or getattr(async_writer, "_closed", True):
        return False
    return worker.exception is None and not worker.is_alive()


def _write_whole(record_writer: Any, datas: list[bytes]) -> None:
    """Write records and flush; if either fails, restore the file's previous length.

    Args:
        record_writer: TensorBoard's `RecordWriter`.
        datas: The records.
    """
    path = _appended_path(record_writer)
    size = os.path.getsize(path) if path and os.path.exists(path) else 0
    try:
        for data in datas:
            record_writer.write(data)
        record_writer.flush()
    except BaseException:
        if path:
            # If the directory is gone, there is nothing to cut; the first error is raised.
            with contextlib.suppress(OSError):
                os.truncate(path, size)
        raise


def _appended_path(record_writer: object) -> str:
    """Return the path of a local file that is reopened for each write, or an empty text.

    Any other file object has a position at which it goes on to write, so it cannot be truncated.
    """
    file = getattr(record_writer, "_writer", None)
    if not type(file).__module__.startswith("tensorboard.compat."):
        return ""
    path = os.fsdecode(getattr(file, "filename", ""))
    return "" if "://" in path else path


def await_free_name(writer: object, directory: str) -> None:
    """Wait until a closed writer of tensorboardX would open a file with a new name.

    It names files by the second, and truncates an existing file of that name.

    Source: tensorboardX/event_file_writer.py, `EventsWriter`.
    """
    if type(writer).__module__.partition(".")[0] == "tensorboardX":
        name = f"events.out.tfevents.{str(time.time())[:10]}."
        if any(file.startswith(name) for file in os.listdir(directory)):
            time.sleep(1 - time.time() % 1)


def file_name(file_writer: object) -> str:
    """Return the name, without directories, of the file to which an event file writer writes.

    Args:
        file_writer: As in `speed_up`, or a writer of tensorboardX; empty for any other.
    """
    return os.path.basename(file_path(file_writer))


def file_path(file_writer: object) -> str:
    """Return the path of the file to which an event file writer writes, as `file_name`."""
    event_writer: object = getattr(file_writer, "event_writer", file_writer)
    # tensorboardX's `event_writer` has the name in its `_ev_writer`.
    for holder in (event_writer, getattr(event_writer, "_ev_writer", None)):
        name = getattr(holder, "_file_name", None)
        if isinstance(name, str):
            return name
    return ""


def _async_writer_of(file_writer: object) -> object:
    """Return the queue with its thread of an event file writer, or None if it has none."""
    writer = getattr(file_writer, "event_writer", file_writer)
    return getattr(writer, "_async_writer", None) if isinstance(writer, EventFileWriter) else None


# -- synchronous writes ---------------------------------------------------------------------------


def write_at_once(sink: object, datas: list[bytes]) -> bool:
    """Write serialised events to disk before this returns, all of them or none.

    Events that were queued earlier are written first, in the files of TensorBoard and torch.

    Args:
        sink: An object with `add_event`.
        datas: The events.
    Returns:
        Whether they were written. False for a sink with an `add_event` of its own, or of an
        unknown kind: nothing was written then.
    Raises:
        OSError: The file cannot be written, or the writer is closed.
    """
    taker = inspect.getattr_static(sink, "add_event", None)
    if getattr(taker, "__module__", "") not in _QUEUEING:
        return False
    async_writer = _async_writer_of(sink)
    if async_writer is not None:
        return _write_tensorboard(async_writer, datas)
    return _write_tensorboardx(getattr(sink, "event_writer", sink), datas)


def _write_tensorboard(async_writer: Any, datas: list[bytes]) -> bool:
    """Write under the lock of TensorBoard's queue, after all queued events are written.

    Source: tensorboard/summary/writer/event_file_writer.py, `_AsyncWriter`.
    """
    names = ("_lock", "_check_worker_status", "_byte_queue", "_closed", "_writer")
    if not all(hasattr(async_writer, name) for name in names):
        return False
    file = getattr(async_writer._writer, "_writer", None)
    if not getattr(file, "fs_supports_append", True):
        # Its flush reads the written bytes from a buffer that both threads would share.
        return False
    with async_writer._lock:
        async_writer._check_worker_status()
        _check_open(closed=async_writer._closed)
        async_writer._byte_queue.join()
        async_writer._check_worker_status()
        _write_whole(async_writer._writer, datas)
    return True


def _write_tensorboardx(event_writer: object, datas: list[bytes]) -> bool:
    """Write under the lock that tensorboardX's thread takes for each record.

    Raises:
        OSError: A record cannot be written, or the file was removed or replaced.
    Source: tensorboardX/event_file_writer.py, `EventsWriter`; tensorboardX/record_writer.py.
    """
    events_writer: object = getattr(event_writer, "_ev_writer", None)
    record_writer: Any = getattr(events_writer, "_py_recordio_writer", None)
    if record_writer is None or not hasattr(events_writer, "_lock"):
        return False
    # A closed writer would drop events silently.
    _check_open(closed=getattr(event_writer, "_closed", False))
    with events_writer._lock:
        record_writer.flush()
        file = record_writer._writer
        kept = isinstance(file, io.BufferedWriter)
        size = file.tell() if kept else 0
        try:
            for data in datas:
                record_writer.write(data)
            record_writer.flush()
        except BaseException:
            if kept:
                record_writer._writer = _cut(file, size)
            raise
        path = record_writer.path
        # Writes to a file that was removed or replaced succeed, and are lost.
        if kept and not (
            os.path.exists(path) and os.path.samestat(os.stat(path), os.fstat(file.fileno()))
        ):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return True


def _check_open(*, closed: bool) -> None:
    if closed:
        raise OSError(errno.EBADF, "the writer is closed")


def _cut(file: io.BufferedWriter, size: int) -> io.BufferedWriter:
    """Truncate a file to a size, and return a new file object that goes on to write there.

    The old object still buffers bytes, and would try to write them again when it is closed: so
    its file descriptor is redirected to the null device first.
    """
    again = os.fdopen(os.dup(file.fileno()), "wb")
    again.truncate(size)
    again.seek(size)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), file.fileno())
    file.close()
    return again


# -- failures ----------------------------------------------------------------------------------


_PROBES = itertools.count()
_ELSEWHERE = "log to another directory: writer = tbscope.SummaryWriter(log_dir)"


def is_remote(path: str) -> bool:
    """Whether a path is a URL, and so on no file system of this machine."""
    return "://" in path


def foresee_failure(directory: str, suffix: str = "") -> None:
    """Raise the error now that an event file in a directory would raise when it is opened.

    The directory is made if it does not exist, as any writer does. A file whose name has the
    length of an event file's name is written there, and removed.

    Args:
        directory: The log directory; a remote one is not checked.
        suffix: The end of the names of event files.
    Raises:
        WriterError: The directory cannot be made, or no file can be written in it.
    """
    if not directory or is_remote(directory):
        return
    name = f"tbscope.probe.{next(_PROBES):010d}.{socket.gethostname()}.{os.getpid()}"
    path = os.path.join(directory, name.ljust(len("events.out.tfevents.")) + suffix)
    try:
        os.makedirs(directory, exist_ok=True)
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        try:
            os.write(file, bytes(1000))
        finally:
            os.close(file)
            os.unlink(path)
    except (OSError, ValueError) as error:  # A ValueError is a NUL byte in the path.
        raise writing_failed(directory, error) from error


def writing_failed(path: str, error: Exception) -> WriterError:
    """Return the error for a failure to write.

    Args:
        path: The file or directory to write to; empty if it is unknown.
        error: The exception that was raised.
    """
    where = (isinstance(error, OSError) and isinstance(error.filename, str) and error.filename) or (
        path or "the writer's log"
    )
    why = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.strerror:
        why = f"{type(error).__name__}: {error.strerror}"
    shown = where if where.isprintable() else repr(where)
    return WriterError(f"cannot write to {shown}", why=why, fix=_fix(path, error))


def _fix(path: str, error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.EBADF:
        return "make a new writer: writer = tbscope.SummaryWriter(log_dir)"
    if is_remote(path) and isinstance(error, ImportError | ValueError):
        scheme = path.partition("://")[0]
        packages = {"s3": "fsspec s3fs", "gs": "fsspec gcsfs"}.get(scheme, "fsspec")
        return (
            f"install what TensorBoard writes {scheme}:// with (pip install {packages}), "
            "or give a directory of this machine"
        )
    return _ELSEWHERE
