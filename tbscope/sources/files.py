"""Files of sources: their kinds by their first bytes, and errors for unreadable ones.

No file is loaded to find its kind.
"""

import os
import re
import struct
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tbscope.errors import ArgumentError
from tbscope.formats.json import is_json
from tbscope.messages import error_text, shown
from tbscope.utils.files import masked_crc

if TYPE_CHECKING:
    import zipfile


FileKind: TypeAlias = Literal[
    "directory",
    "events",
    "graph_def",
    "graph_def_text",
    "json",
    "onnx",
    "program",
    "torchscript",
    "saved_model",
    "weights",
]
"""Kind of the content at a path: a directory, or the format of a file."""

_TEXT_HEAD = re.compile(rb"(?:\s|#[^\n]*\n)*(?:node|library|versions?)\s*[:{<]")
_RECORD_HEAD = struct.Struct("<QI")
# The first field of a GraphDef: a NodeDef, with a length of at most five bytes and the tag byte of
# its first field, or another field.
_GRAPH_DEF = re.compile(
    rb"\x0a[\x80-\xff]{0,4}[\0-\x7f][\x0a\x12\x1a\x22\x2a\x32\x3a]|[\x12\x18\x22]"
)
# An ONNX ModelProto: the field `ir_version`, and the tag byte of the field after it.
_MODEL_PROTO = re.compile(rb"\x08[\0-\x7f][\x12\x1a\x22\x28\x32\x3a\x42\x72]")
# Flatbuffers of ONNX Runtime, LiteRT, ExecuTorch and mobile TorchScript: an identifier of four
# bytes comes after the offset of the first table.
_FLATBUFFER = re.compile(rb"..\0\0(ORTM|TFL3|ET[0-9]{2}|PTMF)", re.DOTALL)
# A SavedModel: its version 1, and a MetaGraphDef that begins with a message.
_SAVED_MODEL = re.compile(rb"\x08\x01\x12[\x80-\xff]*[\0-\x7f]\x0a", re.DOTALL)
# Entries of archives: the description of a program; the first entry of TorchScript at the start of
# a file, and its constants.
_MODEL = re.compile(r"(^|/)(models/[^/]+\.json|serialized_exported_program\.json)$")
_SCRIPT = re.compile(rb"PK\x03\x04.{26}[^/]+/data(\.pkl|/[0-9])", re.DOTALL)
_CONSTANTS = re.compile(r"[^/]*/constants\.pkl")
_SAVED = re.compile(r"[^/]+/data\.pkl")

LEGACY_PICKLE = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""The first bytes of a file that torch.save wrote before version 1.6: a pickled number."""
# The library of safetensors refuses longer headers.
_MOST_HEADER = 100_000_000


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
    header = int.from_bytes(head[:8], "little")
    if (head[8:9] == b"{" and header <= _MOST_HEADER) or head.startswith(LEGACY_PICKLE):
        return "weights"
    if head.lstrip()[:1] == b"{" and b'"weight_map"' in head:
        return "weights"
    if _TEXT_HEAD.match(head):
        return "graph_def_text"
    return _kind_of_message(head)


def _kind_of_message(head: bytes) -> FileKind | None:
    if len(head) < 4 or _FLATBUFFER.match(head):
        return None
    if _SAVED_MODEL.match(head):
        return "saved_model"
    if _MODEL_PROTO.match(head):
        return "onnx"
    return "graph_def" if _GRAPH_DEF.match(head) else None


def kind_of_archive(path: str, head: bytes) -> FileKind | None:
    """Return the kind of a zip file from the names of its entries, or None for any other file.

    Args:
        path: The path of the file.
        head: Its first bytes.
    """
    import zipfile

    try:
        with open_archive(path) as archive:
            names = archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        # A file that is cut off lacks the list of its entries, but not the first of them.
        if head.startswith(b"PK"):
            return "torchscript" if _SCRIPT.match(head) else "program"
        return None
    if any(map(holds_model, names)):
        return "program"
    if holds_script(names):
        return "torchscript"
    return "weights" if any(map(_SAVED.fullmatch, names)) else None


def open_archive(file: Any) -> "zipfile.ZipFile":
    """Open a zip file from its path, or from the open file.

    Raises:
        BadZipFile: The file is not whole. If it is cut off behind an archive among its entries, it
            ends with the list of the entries of that archive.
    """
    import zipfile

    archive = zipfile.ZipFile(file)
    if min((entry.header_offset for entry in archive.infolist()), default=0):
        archive.close()
        raise zipfile.BadZipFile("File is not a zip file")
    return archive


def holds_model(name: str) -> bool:
    """Whether an entry with this name in an archive describes a program."""
    return _MODEL.search(name) is not None


def holds_script(names: list[str]) -> bool:
    """Whether an archive has the entries of TorchScript: `constants.pkl`, and `code/` beside it."""
    roots = [name.removesuffix("constants.pkl") for name in names if _CONSTANTS.fullmatch(name)]
    return any(name.startswith(f"{root}code/") for root in roots for name in names)


# -- files on this machine ---------------------------------------------------------------------

ELSEWHERE = (
    "it is on another machine, of which logs, GraphDefs and graphs in JSON are read",
    "copy it to this machine, and give the path of the copy",
)
"""Reason why other kinds of remote files are not read, and the fix."""

SAVED_MODEL = (
    "it is a SavedModel of TensorFlow, whose graphs are in its functions",
    "tbscope.from_graph_def(tf.saved_model.load(path).signatures[name].graph.as_graph_def())",
)
"""Reason why a SavedModel is not read, and the fix."""

DAMAGED = "it is cut off or damaged: copy or write it again"
"""Fix for a file that is not whole."""


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
