"""Records written by the thread that asks, and not by one that nobody hears when it fails.

The writers of TensorBoard, torch and tensorboardX queue events for a thread of their own. If
that fails, it prints a traceback, and the caller learns of it later, or never; tensorboardX's
`flush` does not even wait for it. This file knows private parts of both; where they are named
otherwise, events take the public way.
"""

import errno
import inspect
import io
import os
import sys
from typing import Any

from tbscope.writing.records import async_writer_of, write_whole

__all__ = ["write_at_once"]

# Who defines an `add_event` that does nothing but queue the event.
_QUEUEING = (
    "tensorboard.summary.writer.event_file_writer",
    "tensorboardX.event_file_writer",
    "tensorboardX.writer",
    "torch.utils.tensorboard.writer",
)


def write_at_once(sink: Any, datas: list[bytes]) -> bool:
    """Write serialised events to disk before this returns, all of them or none.

    What was queued before comes before them, in the files of TensorBoard and torch.

    Args:
        sink: An object with `add_event`.
        datas: The events.
    Returns:
        Whether they were written (by a fork of tensorboardX's: handed to the process that
        does); not by a sink with an `add_event` of its own, or of a kind that is not known.
    Raises:
        OSError: The file cannot be written, or the writer is closed.
    """
    taker = inspect.getattr_static(sink, "add_event", None)
    if getattr(taker, "__module__", "") not in _QUEUEING:
        return False
    async_writer = async_writer_of(sink)
    if async_writer is not None:
        return _write_tensorboard(async_writer, datas)
    return _write_tensorboardx(getattr(sink, "event_writer", sink), datas)


def _write_tensorboard(async_writer: Any, datas: list[bytes]) -> bool:
    """Write with the lock that keeps others from queueing, when the queue has been worked off.

    Source: tensorboard/summary/writer/event_file_writer.py, `_AsyncWriter`.
    """
    names = ("_lock", "_check_worker_status", "_byte_queue", "_closed", "_writer")
    if not all(hasattr(async_writer, name) for name in names):
        return False
    file = getattr(async_writer._writer, "_writer", None)
    if not getattr(file, "fs_supports_append", True):
        # Its flush reads what was written from a place that both threads would share.
        return False
    with async_writer._lock:
        async_writer._check_worker_status()
        _check_open(closed=async_writer._closed)
        async_writer._byte_queue.join()
        async_writer._check_worker_status()
        write_whole(async_writer._writer, async_writer._writer.write, datas)
    return True


def _write_tensorboardx(event_writer: Any, datas: list[bytes]) -> bool:
    """Write with the lock that the thread takes for each of its records.

    Source: tensorboardX/event_file_writer.py, `EventsWriter`; tensorboardX/record_writer.py.
    """
    events_writer: Any = getattr(event_writer, "_ev_writer", None)
    record_writer: Any = getattr(events_writer, "_py_recordio_writer", None)
    if record_writer is None or not hasattr(events_writer, "_lock"):
        return False
    # Closed, it would drop events without a word.
    _check_open(closed=getattr(event_writer, "_closed", False))
    if getattr(event_writer._event_queue, "_opid", os.getpid()) != os.getpid():
        # Its queue leads from this process to the one that it was forked from, which writes. To
        # flush here would write what that one has not flushed yet, a second time.
        event_class = sys.modules[type(event_writer).__module__].event_pb2.Event
        for data in datas:
            event_writer.add_event(event_class.FromString(data))
        return True
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
        if kept:
            _check_there(file, record_writer.path)
    return True


def _check_open(*, closed: bool) -> None:
    if closed:
        raise OSError(errno.EBADF, "the writer is closed")


def _check_there(file: Any, path: str) -> None:
    """Raise unless an open file still has its path: one that was removed takes all and keeps none.

    Raises:
        FileNotFoundError: The file was removed, or another one has taken its place.
    """
    if not os.path.exists(path) or not os.path.samestat(os.stat(path), os.fstat(file.fileno())):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _cut(file: io.BufferedWriter, size: int) -> io.BufferedWriter:
    """Cut a file to a size, and return another object that goes on to write there.

    The old one holds bytes that it would try to write again when it is closed.
    """
    again = os.fdopen(os.dup(file.fileno()), "wb")
    again.truncate(size)
    again.seek(size)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), file.fileno())
    file.close()
    return again
