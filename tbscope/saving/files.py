"""Writes files whole or not at all."""

import contextlib
import os
from typing import Any

from tbscope.errors import ArgumentError
from tbscope.words import error_text, shown

__all__ = ["path_text", "write_whole"]


def write_whole(path: str, data: bytes) -> None:
    """Put bytes in a file.

    Raises:
        ArgumentError: The system refuses; nothing is left behind.
    """
    # Where a link leads, the file is; whoever reads it sees the old one or the whole new one.
    part = ""
    try:
        final = os.path.realpath(path)
        part = f"{final}.{os.getpid()}"
        with open(part, "wb") as file:
            file.write(data)
        os.replace(part, final)
    except (OSError, ValueError) as error:
        with contextlib.suppress(OSError, ValueError):
            os.unlink(part)
        raise ArgumentError(
            f"cannot save a graph as {shown(path)}",
            why=error_text(error),
            fix="give a path in a folder that may be written to",
        ) from error


def path_text(path: Any) -> str:
    """Return a path as a plain text.

    Raises:
        ArgumentError: It is none.
    """
    try:
        text = os.fspath(path)
    except Exception as error:
        raise _no_path(path) from error
    if not isinstance(text, str) or "\0" in text or not text:
        raise _no_path(path)
    return str.__str__(text)


def _no_path(path: Any) -> ArgumentError:
    return ArgumentError(
        f"cannot save a graph as {shown(path)}",
        why="a path is a text",
        fix="graph.save('graph.json')",
    )
