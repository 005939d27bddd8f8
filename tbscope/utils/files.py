"""Files: the paths that users give, and contents that appear whole or not at all."""

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

from tbscope.errors import ArgumentError

__all__ = ["masked_crc", "path_of", "path_text", "write_whole"]


def path_of(given: object) -> str | None:
    """Return the path that something is; None for what is none."""
    if isinstance(given, str):
        return str.__str__(given)
    if not isinstance(given, os.PathLike):
        return None
    try:
        path = os.fspath(given)
    except Exception:  # noqa: BLE001  What does not tell its path is refused as none.
        return None
    return str.__str__(path) if isinstance(path, str) else None


def masked_crc(data: bytes) -> int:
    """Return the checksum of bytes as the records of an event file store it.

    Source: tensorflow/core/lib/hash/crc32c.h, `Mask`
    """
    import google_crc32c

    checksum: int = google_crc32c.value(data)
    rotated = (checksum >> 15) | (checksum << 17)
    return (rotated + 0xA282EAD8) & 0xFFFFFFFF


def path_text(path: Any, *, refused: Callable[[object], ArgumentError]) -> str:
    """Return a path as a plain text.

    Args:
        path: What was given.
        refused: Gives the error for what is none.
    Raises:
        ArgumentError: It is none.
    """
    text = path_of(path)
    if not text or "\0" in text:
        raise refused(path)
    return text


def write_whole(path: str, data: bytes) -> None:
    """Put bytes in a file; whoever reads it sees the old file or the whole new one.

    What is there and no file (a pipe, a device) takes them as they come, and stays.

    Raises:
        OSError: The system refuses; nothing is left behind.
        ValueError: It cannot have such a path.
    """
    # Where a link leads, the file is.
    final = os.path.realpath(path)
    try:
        if os.path.exists(final) and not os.path.isfile(final):
            _put(final, data)
        else:
            _replace(final, data)
    except OSError as error:
        # Nobody has asked for the part of a file, or for where a link leads.
        raise OSError(error.errno, error.strerror, path) from error


def _replace(path: str, data: bytes) -> None:
    folder, name = os.path.split(path)
    # Of a thread's own: two may write one file.
    part = os.path.join(folder, f".{name}.{threading.get_native_id()}")
    try:
        _put(part, data)
        os.replace(part, path)
    finally:
        # It is there only where something went wrong, and that is what is told.
        with contextlib.suppress(OSError):
            os.unlink(part)


def _put(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
