"""Errors for unreadable files, and paths of files that are read on this machine only."""

import os
from typing import Any

from tbscope.errors import ArgumentError
from tbscope.messages import error_text, shown

__all__ = ["ELSEWHERE", "local_file", "unreadable"]

ELSEWHERE = (
    "it is on another machine, of which logs, GraphDefs and graphs in JSON are read",
    "copy it to this machine, and give the path of the copy",
)
"""Reason why other kinds of remote files are not read, and the fix."""


def local_file(given: Any, doing: str) -> str:
    """Return the path of a file on this machine.

    Args:
        given: The path.
        doing: The first words of the error.
    Raises:
        ArgumentError: The argument is no path, or the path is remote, or no file is there.
    """
    try:
        path = os.fsdecode(given)
    except Exception as error:  # A user's `__fspath__` may raise any error.
        raise unreadable(given, doing, error_text(error), "give the path of a file") from error
    if "://" in path:
        raise unreadable(given, doing, *ELSEWHERE)
    if not os.path.isfile(path):
        why = "it is a directory" if os.path.isdir(path) else "there is no such file"
        raise unreadable(given, doing, why, "give the path of a file")
    return path


def unreadable(given: object, doing: str, why: str, fix: str = "") -> ArgumentError:
    """Return the error for a file that cannot be read."""
    return ArgumentError(
        f"{doing} from {shown(given)}", why=why, fix=fix or "give the path of such a file"
    )
