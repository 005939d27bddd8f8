"""Tells ONNX files by what they hold: the name of a file counts for nothing, onnx is not imported.

Source: onnx/onnx.proto (`ModelProto`), onnx/serialization.py
"""

import os
import re
from itertools import islice
from mmap import ACCESS_READ, mmap
from typing import Literal, TypeAlias

from tbscope.sources.graphdef.wire import WireError, fields

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
            head = file.read(_HEAD)
            if not head:
                return None
            with mmap(file.fileno(), 0, access=ACCESS_READ) as content:
                if _is_model(content):
                    return "protobuf"
    except OSError:
        return None
    return next((form for form, pattern in _TEXTS.items() if pattern.match(head)), None)


def _is_model(content: bytes | mmap) -> bool:
    """Whether bytes begin like a model in the binary form, up to its graph."""
    seen: set[int] = set()
    try:
        for field in islice(fields(content), _MOST_FIELDS):
            if _FIELDS.get(field.number) != field.kind:
                return False
            seen.add(field.number)
            if _GRAPH in seen and seen & _VERSIONS:
                return True
    except WireError:
        pass
    return False
