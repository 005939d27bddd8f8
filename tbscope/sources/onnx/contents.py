"""Tells ONNX files by what they hold: the name of a file counts for nothing, onnx is not imported.

Source: onnx/onnx.proto (`ModelProto`), onnx/serialization.py
"""

import os
import re
from typing import BinaryIO, Literal, TypeAlias

__all__ = ["FileForm", "form_of"]

FileForm: TypeAlias = Literal["protobuf", "textproto", "json", "onnxtxt"]
"""The forms in which a model is written, as `onnx.load` calls them."""

_NUMBER, _BYTES = 0, 2
# The fields of a model in the binary form, with how each is written.
_FIELDS = {
    1: _NUMBER,
    5: _NUMBER,
    **dict.fromkeys((2, 3, 4, 6, 7, 8, 14, 20, 25, 26), _BYTES),
}
_GRAPH = 7
# The version of the format, and those of the operators: a model has both.
_VERSIONS = {1, 8}
# Of functions a model may have any number.
_MOST_FIELDS = 100_000
_LONGEST_NUMBER = 10

_HEAD = 4096
_TEXTS: dict[FileForm, re.Pattern[bytes]] = {
    "textproto": re.compile(rb"(\s|#[^\n]*\n)*ir_version\s*:"),
    "json": re.compile(rb'\s*\{\s*"(irVersion|ir_version)"\s*:'),
    "onnxtxt": re.compile(rb"(\s|//[^\n]*\n)*<\s*ir_version\s*:"),
}


def form_of(path: str) -> FileForm | None:
    """Return the form of the model that a file holds; None where it seems to hold none.

    A few bytes are read, however large the file is.
    """
    if not os.path.isfile(path):
        return None
    try:
        with open(path, "rb") as file:
            if _is_model(file):
                return "protobuf"
            file.seek(0)
            head = file.read(_HEAD)
    except OSError:
        return None
    return next((form for form, pattern in _TEXTS.items() if pattern.match(head)), None)


def _is_model(file: BinaryIO) -> bool:
    """Tell whether a file begins like a model in the binary form, up to its graph."""
    seen: set[int] = set()
    size = os.fstat(file.fileno()).st_size
    for _ in range(_MOST_FIELDS):
        key = _number(file)
        if key is None or _FIELDS.get(key >> 3) != key & 7:
            return False
        seen.add(key >> 3)
        if _GRAPH in seen and seen & _VERSIONS:
            return True
        length = _number(file)
        if length is None:
            return False
        if key & 7 == _BYTES:
            if file.tell() + length > size:
                return False
            file.seek(length, os.SEEK_CUR)
    return False


def _number(file: BinaryIO) -> int | None:
    """Read a number of as many bytes as it needs; None where there is none."""
    found = 0
    for place in range(_LONGEST_NUMBER):
        byte = file.read(1)
        if not byte:
            return None
        found |= (byte[0] & 0x7F) << (7 * place)
        if byte[0] < 0x80:
            return found
    return None
