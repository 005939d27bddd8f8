"""Kinds of files, by their content, and access to files on this and other machines.

The first bytes of a file determine its kind, and so the source that reads it; nothing is loaded.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tbscope.messages import error_text
from tbscope.sources.files import FileKind, kind_of_archive, kind_of_content, unreadable
from tbscope.utils.files import path_of

_HEAD_BYTES = 512
# A colon before digits and a slash is followed by the port of a host, not by a tag.
_REMOTE = re.compile(r"(\w[\w+.-]*://(?:[^:]|:[0-9]+(?=/))*)(?::(.+))?", re.DOTALL)


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
            head = file.read(_HEAD_BYTES)
        return kind_of_content(head, size) or kind_of_archive(path, head)
    except Exception:  # noqa: BLE001  The next reader of the file reports the error.
        return None


def split_tag(text: str) -> tuple[str, str | None]:
    """Return the path of a log and the tag behind it, or the whole path and None.

    >>> split_tag("s3://room:9000/runs/net:large@7")
    ('s3://room:9000/runs/net', 'large@7')
    """
    match = _REMOTE.fullmatch(text)
    if match:
        return match[1], match[2]
    for colon in () if os.path.exists(text) else re.finditer(":", text):
        path, tag = text[: colon.start()], text[colon.end() :]
        if tag and _holds_tags(path):
            return path, tag
    return text, None


def _holds_tags(path: str) -> bool:
    """Whether a path may be a log, and not a Python package."""
    if os.path.isdir(path):
        return not os.path.exists(os.path.join(path, "__init__.py"))
    return file_kind(path) == "events"


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
