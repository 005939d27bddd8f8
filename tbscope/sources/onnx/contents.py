"""Tells ONNX files by what they hold: the name of a file counts for nothing, onnx is not imported.

Source: onnx/onnx.proto (`ModelProto`), onnx/serialization.py
"""

import os
import re
from typing import Literal, TypeAlias

from tbscope.sources.contents import kind_of_content

__all__ = ["FileForm", "form_of"]

FileForm: TypeAlias = Literal["protobuf", "textproto", "json", "onnxtxt"]
"""The forms in which a model is written, as `onnx.load` calls them."""

_HEAD_BYTES = 4096
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
            head = file.read(_HEAD_BYTES)
            size = os.fstat(file.fileno()).st_size
    except OSError:
        return None
    if kind_of_content(head, size) == "onnx":
        return "protobuf"
    return next((form for form, pattern in _TEXTS.items() if pattern.match(head)), None)
