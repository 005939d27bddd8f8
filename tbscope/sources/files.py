"""Files: tells by what one holds which source reads it, and reads those of other machines, too.

Nothing is loaded to learn that: a look at the first bytes tells it.
"""

import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol, TypeAlias

from tbscope.files import masked_crc, path_of
from tbscope.formats.json import is_json
from tbscope.sources.local_files import unreadable
from tbscope.words import error_text

__all__ = [
    "FileKind",
    "Readable",
    "file_kind",
    "open_file",
    "read_whole",
    "reason_unopened",
]

FileKind: TypeAlias = Literal["directory", "events", "graph_def", "graph_def_text", "json", "onnx"]
"""What a path leads to."""

_HEAD_BYTES = 512
_TEXT_HEAD = re.compile(rb"(?:\s|#[^\n]*\n)*(?:node|library|versions?)\s*[:{<]")
_RECORD_HEAD = struct.Struct("<QI")
# What the first field of each message can be, as the byte before it: GraphDef, and in it NodeDef.
_NODE, _GRAPH_DEF = 0x0A, frozenset((0x0A, 0x12, 0x18, 0x22))
_IN_NODE = frozenset((0x0A, 0x12, 0x1A, 0x22, 0x2A, 0x32, 0x3A))
# After the version of its format: the fields of a ModelProto of ONNX.
_VERSION, _IN_MODEL = 0x08, frozenset((0x12, 0x1A, 0x22, 0x28, 0x32, 0x3A, 0x42, 0x72))
# Flatbuffers of ONNX Runtime, LiteRT, ExecuTorch, and of TorchScript for mobile devices: behind
# the place of the first table stands the name of the form.
_FLATBUFFER = re.compile(rb"..\0\0(ORTM|TFL3|ET[0-9]{2}|PTMF)", re.DOTALL)
_SAVED_MODEL = b"\x08\x01\x12"


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


def kind_of_content(head: bytes, size: int) -> FileKind | None:
    """Tell by its first bytes what a file holds.

    Args:
        head: The first bytes, some hundred.
        size: The bytes of the whole file.
    """
    if len(head) >= _RECORD_HEAD.size:
        length, checksum = _RECORD_HEAD.unpack_from(head)
        if length < size and masked_crc(head[:8]) == checksum:
            return "events"
    if is_json(head):
        return "json"
    if _TEXT_HEAD.match(head):
        return "graph_def_text"
    return _kind_of_message(head)


def _kind_of_message(head: bytes) -> FileKind | None:
    if len(head) < 4 or _FLATBUFFER.match(head):
        return None
    if head[0] == _VERSION and head[1] < 0x80 and head[2] in _IN_MODEL:
        return "graph_def" if head.startswith(_SAVED_MODEL) else "onnx"
    if head[0] == _NODE:
        place = 1
        while place < len(head) - 1 and head[place] >= 0x80:
            place += 1
        told = place < min(6, len(head) - 1) and head[place + 1] in _IN_NODE
        return "graph_def" if told else None
    return "graph_def" if head[0] in _GRAPH_DEF else None


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
        from tbscope.sources.remote import open_remote

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
        from tbscope.sources.remote import is_remote_directory

        return is_remote_directory(path)
    return os.path.isdir(path)
