"""Files: paths from users, and writes that appear whole or not at all."""

import contextlib
import os
import threading
from collections.abc import Callable

from tbscope.errors import ArgumentError


def path_of(obj: object) -> str | None:
    """Return a str or `os.PathLike` as a plain str, or None if it is no path of text."""
    if isinstance(obj, str):
        return str.__str__(obj)
    if not isinstance(obj, os.PathLike):
        return None
    try:
        path = os.fspath(obj)
    except Exception:  # noqa: BLE001  The user's `__fspath__` raised: no path.
        return None
    return str.__str__(path) if isinstance(path, str) else None


def masked_crc(data: bytes) -> int:
    """Return the CRC-32C of bytes, masked as the records of an event file store it.

    Source: tensorflow/core/lib/hash/crc32c.h, `Mask`
    """
    import google_crc32c

    checksum: int = google_crc32c.value(data)
    rotated = (checksum >> 15) | (checksum << 17)
    return (rotated + 0xA282EAD8) & 0xFFFFFFFF


def path_text(path: object, *, refused: Callable[[object], ArgumentError]) -> str:
    """Return a path as a plain text.

    Args:
        path: The user's argument.
        refused: Returns the error for an argument that is no path.
    Raises:
        ArgumentError: `path` is no path, is empty, or contains a NUL.
    """
    text = path_of(path)
    if not text or "\0" in text:
        raise refused(path)
    return text


def write_whole(path: str, data: bytes) -> None:
    """Write bytes to a file atomically: a reader sees the old file or the whole new one.

    A pipe or a device at this path is written to directly, and is not replaced.

    Raises:
        OSError: The system refuses; no partial file is left behind.
        ValueError: No file can have this path.
    """
    # The target of a symbolic link is replaced, not the link.
    final = os.path.realpath(path)
    try:
        if os.path.exists(final) and not os.path.isfile(final):
            _put(final, data)
        else:
            _replace(final, data)
    except OSError as error:
        # The error names the path of the caller, not the temporary file or the target of a link.
        raise OSError(error.errno, error.strerror, path) from error


def _replace(path: str, data: bytes) -> None:
    folder, name = os.path.split(path)
    # The thread's id is in the name: two threads may write the same file.
    part = os.path.join(folder, f".{name}.{threading.get_native_id()}")
    try:
        _put(part, data)
        os.replace(part, path)
    finally:
        # The temporary file still exists only after an error, which is the one to raise.
        with contextlib.suppress(OSError):
            os.unlink(part)


def _put(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
