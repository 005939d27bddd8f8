"""Kinds of files, by their content, and access to files on this and other machines.

The first bytes of a file determine its kind, and so the source that reads it; nothing is loaded.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tbscope.messages import error_text
from tbscope.sources.files import FileKind, kind_of_content, unreadable
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
    """File that is open for reading bytes."""

    def read(self, size: int) -> bytes:
        """Return the next bytes; fewer than `size` only at the end of the file."""


def file_kind(obj: object) -> FileKind | None:
    """Return the kind of the content at a path, or None for no path or no kind."""
    path = path_of(obj)
    if not path or "\0" in path:
        return None
    try:
        if _is_directory(path):
            return "directory"
        with open_file(path) as (file, size):
            return kind_of_content(file.read(_HEAD_BYTES), size)
    except Exception:  # noqa: BLE001  The next reader of the file reports the error.
        return None


def reason_unopened(path: str) -> str:
    """Return the reason why a path cannot be opened, or an empty text if it can be."""
    try:
        if not _is_directory(path):
            with open_file(path):
                pass
    except Exception as error:  # noqa: BLE001  Each store raises errors of its own.
        return error_text(error)
    return ""


@contextmanager
def open_file(path: str) -> Iterator[tuple[Readable, int]]:
    """Open a file, through TensorBoard's layer if it is remote; yield it and its size in bytes."""
    if "://" in path:
        from tbscope.sources.remote_files import open_remote

        yield open_remote(path)
        return
    with open(path, "rb") as file:
        yield file, os.fstat(file.fileno()).st_size


def read_whole(path_like: object, doing: str) -> bytes:
    """Return the bytes of a file.

    Args:
        path_like: The path.
        doing: The first words of the error.
    Raises:
        ArgumentError: The file cannot be read.
    """
    path = path_of(path_like)
    try:
        if path is None:
            raise TypeError("it is no path")
        with open_file(path) as (file, size):
            return file.read(size)
    except Exception as error:  # Each store raises errors of its own.
        raise unreadable(path_like, doing, error_text(error)) from error


def _is_directory(path: str) -> bool:
    if "://" in path:
        from tbscope.sources.remote_files import is_remote_directory

        return is_remote_directory(path)
    return os.path.isdir(path)
