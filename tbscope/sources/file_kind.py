"""Files: tells by what one holds which source reads it, and reads those of other machines, too.

Nothing is loaded to learn that: a look at the first bytes tells it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from tbscope.messages import error_text
from tbscope.sources.file_signatures import FileKind, kind_of_content
from tbscope.sources.local_files import unreadable
from tbscope.utils.files import path_of

__all__ = [
    "Readable",
    "file_kind",
    "open_file",
    "read_whole",
    "reason_unopened",
]

_HEAD_BYTES = 512


class Readable(Protocol):
    """A file that is open for reading bytes."""

    def read(self, size: int) -> bytes:
        """Return the next bytes, fewer only at its end."""


def file_kind(given: object) -> FileKind | None:
    """Tell what a path leads to, by its content; None for what is no path, or of no kind."""
    path = path_of(given)
    if not path or "\0" in path:
        return None
    try:
        if _is_directory(path):
            return "directory"
        with open_file(path) as (file, size):
            return kind_of_content(file.read(_HEAD_BYTES), size)
    except Exception:  # noqa: BLE001  Whoever opens it next tells why it cannot.
        return None


def reason_unopened(path: str) -> str:
    """Tell why what a path leads to cannot be opened; an empty text where it can be."""
    try:
        if not _is_directory(path):
            with open_file(path):
                pass
    except Exception as error:  # noqa: BLE001  Each store raises errors of its own.
        return error_text(error)
    return ""


@contextmanager
def open_file(path: str) -> Iterator[tuple[Readable, int]]:
    """Open a file, on another machine by TensorBoard's own layer; yield it and its bytes."""
    if "://" in path:
        from tbscope.sources.remote_files import open_remote

        yield open_remote(path)
        return
    with open(path, "rb") as file:
        yield file, os.fstat(file.fileno()).st_size


def read_whole(given: Any, doing: str) -> bytes:
    """Return what a file holds.

    Raises:
        ArgumentError: It cannot be read; the message says what was to be done with it.
    """
    path = path_of(given)
    try:
        if path is None:
            raise TypeError("it is no path")
        with open_file(path) as (file, size):
            return file.read(size)
    except Exception as error:  # Each store raises errors of its own.
        raise unreadable(given, doing, error_text(error)) from error


def _is_directory(path: str) -> bool:
    if "://" in path:
        from tbscope.sources.remote_files import is_remote_directory

        return is_remote_directory(path)
    return os.path.isdir(path)
