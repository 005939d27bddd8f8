"""Files on other machines, through TensorBoard's own layer of file systems (fsspec, S3)."""

from typing import Any

from tensorboard.compat import tf


class _Remote:
    """Remote file that is read from its start."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        """Return the next bytes; empty at the end, at which some stores raise."""
        try:
            data: bytes = self._file.read(size)
        except tf.errors.OutOfRangeError:
            return b""
        return data


def open_remote(path: str) -> tuple[_Remote, int]:
    """Open a file; return it and its size in bytes."""
    size: int = tf.io.gfile.stat(path).length
    return _Remote(tf.io.gfile.GFile(path, "rb")), size


def is_remote_directory(path: str) -> bool:
    """Whether a path leads to a directory."""
    return bool(tf.io.gfile.isdir(path))


def list_directory(path: str) -> list[str]:
    """Return the names of the files and directories in a directory."""
    return [*tf.io.gfile.listdir(path)]


def list_remote(path: str) -> list[tuple[str, list[str]]]:
    """Return each directory at and below a path, with the names of the files in it."""
    return [(directory, list(files)) for directory, _, files in tf.io.gfile.walk(path)]
