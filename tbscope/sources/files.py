"""Files of sources: their kinds by their first bytes, and errors for unreadable ones.

No file is loaded to find its kind.
"""

import os
import re
import struct
from typing import Any, Literal, TypeAlias

from tbscope.errors import ArgumentError
from tbscope.formats.json import is_json
from tbscope.messages import error_text, shown
from tbscope.utils.files import masked_crc, path_of

__all__ = [
    "ELSEWHERE",
    "FileKind",
    "archive_entries",
    "kind_of_content",
    "local_file",
    "unreadable",
]

FileKind: TypeAlias = Literal["directory", "events", "graph_def", "graph_def_text", "json", "onnx"]
"""Kind of the content at a path: a directory, or the format of a file."""

_TEXT_HEAD = re.compile(rb"(?:\s|#[^\n]*\n)*(?:node|library|versions?)\s*[:{<]")
_RECORD_HEAD = struct.Struct("<QI")
# Tag bytes with which a GraphDef can begin, and with which a NodeDef in it can begin.
_NODE, _GRAPH_DEF = 0x0A, frozenset((0x0A, 0x12, 0x18, 0x22))
_IN_NODE = frozenset((0x0A, 0x12, 0x1A, 0x22, 0x2A, 0x32, 0x3A))
# Tag byte of `ir_version`, the first field of an ONNX ModelProto, and those of the field after it.
_VERSION, _IN_MODEL = 0x08, frozenset((0x12, 0x1A, 0x22, 0x28, 0x32, 0x3A, 0x42, 0x72))
# Flatbuffers of ONNX Runtime, LiteRT, ExecuTorch and mobile TorchScript: an identifier of four
# bytes comes after the offset of the first table.
_FLATBUFFER = re.compile(rb"..\0\0(ORTM|TFL3|ET[0-9]{2}|PTMF)", re.DOTALL)


def kind_of_content(head: bytes, size: int) -> FileKind | None:
    """Return the kind of a file from its first bytes, or None if they match no kind.

    Args:
        head: The first bytes; a few hundred suffice.
        size: The size of the whole file in bytes.
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
        return "onnx"
    if head[0] == _NODE:
        # The length of the first NodeDef is a varint of at most five bytes; the byte after it is
        # the tag of a field.
        index = 1
        while index < len(head) - 1 and head[index] >= 0x80:
            index += 1
        is_node = index < min(6, len(head) - 1) and head[index + 1] in _IN_NODE
        return "graph_def" if is_node else None
    return "graph_def" if head[0] in _GRAPH_DEF else None


def archive_entries(obj: object) -> list[str]:
    """Return the names of the entries of a zip archive; empty for other files and objects.

    Args:
        obj: The path of a file; any other object has no entries.
    """
    path = path_of(obj)
    if path is None:
        return []
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        return []


# -- files on this machine ---------------------------------------------------------------------

ELSEWHERE = (
    "it is on another machine, of which logs, GraphDefs and graphs in JSON are read",
    "copy it to this machine, and give the path of the copy",
)
"""Reason why other kinds of remote files are not read, and the fix."""


def local_file(path_like: Any, doing: str) -> str:
    """Return the path of a file on this machine.

    Args:
        path_like: The path.
        doing: The first words of the error.
    Raises:
        ArgumentError: The argument is no path, or the path is remote, or no file is there.
    """
    try:
        path = os.fsdecode(path_like)
    except Exception as error:  # A user's `__fspath__` may raise any error.
        raise unreadable(path_like, doing, error_text(error), "give the path of a file") from error
    if "://" in path:
        raise unreadable(path_like, doing, *ELSEWHERE)
    if not os.path.isfile(path):
        why = "it is a directory" if os.path.isdir(path) else "there is no such file"
        raise unreadable(path_like, doing, why, "give the path of a file")
    return path


def unreadable(path: object, doing: str, why: str, fix: str = "") -> ArgumentError:
    """Return the error for a file that cannot be read."""
    return ArgumentError(
        f"{doing} from {shown(path)}", why=why, fix=fix or "give the path of such a file"
    )
