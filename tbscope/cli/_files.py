"""Writes a file whole or not at all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tbscope.errors import TbscopeError

__all__ = ["check_folder", "explained", "write_whole"]


def check_folder(path: Path) -> None:
    """Refuse a path whose folder is missing, before any work is done for it.

    Raises:
        TbscopeError: The folder does not exist.
    """
    if not path.parent.is_dir():
        raise TbscopeError(
            f"cannot write {str(path)!r}",
            why=f"there is no folder {str(path.parent)!r}",
            fix=f"make it first: mkdir -p {path.parent}",
        )


def write_whole(path: Path, data: bytes) -> None:
    """Put bytes in a file; whoever reads it sees the old file or the whole new one.

    Raises:
        TbscopeError: The system refuses; nothing is left behind.
    """
    final = Path(os.path.realpath(path))
    part = final.with_name(f".{final.name}.{os.getpid()}")
    with explained(path):
        try:
            part.write_bytes(data)
            os.replace(part, final)
        finally:
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the system's refusal to write into an error that says so."""
    try:
        yield
    except OSError as error:
        raise TbscopeError(
            f"cannot write {str(path)!r}",
            why=f"{type(error).__name__}: {error.strerror or error}",
            fix="check that the path may be written to and that the disk is not full",
        ) from error
