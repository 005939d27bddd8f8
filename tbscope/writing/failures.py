"""Writing that fails: the error that tells where, why and what to do, and how to foresee it.

A failure is foreseen before TensorBoard opens a file, because its writer opens it in a thread,
which would print a traceback beside the error.
"""

import errno
import itertools
import os
import socket

from tbscope.errors import WriterError

__all__ = ["foresee_failure", "is_remote", "writing_failed"]

_PROBES = itertools.count()
_ELSEWHERE = "log to another directory: writer = tbscope.SummaryWriter(log_dir)"
_FIXES = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some space there",
    errno.EFBIG: "allow larger files (ulimit -f unlimited)",
    errno.EACCES: "get the right to write there (chmod)",
    errno.EPERM: "get the right to write there (chmod)",
    errno.EEXIST: "remove the file that stands where a directory should be",
    errno.ENOTDIR: "remove the file that stands where a directory should be",
    errno.EISDIR: "remove the directory that stands where the file should be",
    errno.ENAMETOOLONG: "give a shorter log_dir, run_name or filename_suffix",
}


def is_remote(path: str) -> bool:
    """Tell whether a path leads to no file system of this machine."""
    return "://" in path


def foresee_failure(directory: str, suffix: str = "") -> None:
    """Raise the error that an event file in a directory would meet when it is opened.

    The directory is made where there is none, as any writer does. A file of the same length
    of name is written there, and removed.

    Args:
        directory: The log directory; of one on another machine nothing is foreseen.
        suffix: What the names of event files end with.
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
    """Return the error that tells of a failure to write.

    Args:
        path: The file or directory that was to be written; empty where it is not known.
        error: What was raised.
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
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EBADF:
        return "make a new writer: writer = tbscope.SummaryWriter(log_dir)"
    if number == errno.ENOENT:
        return f"make the directory, leave it there while it is written to, or {_ELSEWHERE}"
    if is_remote(path) and isinstance(error, ImportError | ValueError):
        scheme = path.partition("://")[0]
        packages = {"s3": "fsspec s3fs", "gs": "fsspec gcsfs"}.get(scheme, "fsspec")
        return (
            f"install what TensorBoard writes {scheme}:// with (pip install {packages}), "
            "or give a directory of this machine"
        )
    return f"{_FIXES[number]}, or {_ELSEWHERE}" if number in _FIXES else _ELSEWHERE
