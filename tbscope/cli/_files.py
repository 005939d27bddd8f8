"""Files that a command writes: refused early, whole or not at all, and told of in its words."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tbscope.errors import TbscopeError
from tbscope.files import write_whole

__all__ = ["check_folder", "explained", "put_in_file"]


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


def put_in_file(path: Path, data: bytes) -> None:
    """Put bytes in a file; whoever reads it sees the old file or the whole new one.

    Raises:
        TbscopeError: The system refuses; nothing is left behind.
    """
    with explained(path):
        write_whole(str(path), data)


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
