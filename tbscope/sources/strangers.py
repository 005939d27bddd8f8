"""Strangers: tells what a file holds that holds no graph, and what to give in its place.

Nothing is loaded to learn that: the first bytes tell it, or the names of the entries of an archive.
"""

import re
from typing import NamedTuple

from tbscope.files import path_of
from tbscope.sources.torch.archives import archive_entries

__all__ = ["RUN_IT", "Stranger", "elsewhere", "stranger"]


class Stranger(NamedTuple):
    """A file without a graph.

    Attributes:
        why: What it holds.
        fix: What to do.
    """

    why: str
    fix: str


RUN_IT = "a model is run to learn its graph: tbscope.trace(model, input)"
"""What to do with a model."""

_FILL_IT = f"build the model, load them into it, and run it: {RUN_IT}"
_EXPORT = (
    "give the program that it was made of: tbscope.from_export(torch.export.export(model, (x,)))"
)
_ANY = "give the model that it was made of"
_SAVED = Stranger("torch.save wrote it: weights or pickled objects, and no graph", _FILL_IT)
_WEIGHTS = Stranger("it holds weights by name, and no graph", _FILL_IT)
_ARRAYS = Stranger("it holds arrays of NumPy, and no graph", _FILL_IT)
_COMPILED = Stranger("it holds code that torch has compiled (AOTInductor), and no program", _EXPORT)
_KERAS = Stranger(
    "it is a model of Keras", "tbscope.trace(keras.saving.load_model(path), input) runs it"
)
_ELSEWHERE = Stranger(
    "it is on another machine, of which logs, GraphDefs and graphs in JSON are read",
    "copy it to this machine, and give the path of the copy",
)
# Of archives, by the name of an entry.
_ENTRIES = (
    (r"(^|/)data/aotinductor/", _COMPILED),
    (r"^[^/]*/data\.pkl$", _SAVED),
    (r"^model\.weights\.h5$", _KERAS),
    (r"\.npy$", _ARRAYS),
)
# Of other files, by their first bytes. Of flatbuffers, the name of the form stands behind the
# place of the first table.
_HEADS = (
    (rb"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19\.", _SAVED),
    (rb".{8}\{\s*\"", Stranger("it holds safetensors: weights, and no graph", _FILL_IT)),
    (rb"GGUF", Stranger("it is a GGUF file: weights, and no graph", _FILL_IT)),
    (rb"\x93NUMPY", _ARRAYS),
    (rb"\x89HDF\r\n", Stranger("it is an HDF5 file, as Keras wrote weights", _FILL_IT)),
    (rb"\x80[\x02-\x05]", Stranger("it is a pickle: to open one runs what it names", _FILL_IT)),
    (rb"..\0\0ORTM", Stranger("it is a model in the form of ONNX Runtime", f"{_ANY}, in ONNX")),
    (rb"..\0\0ET[0-9]{2}", Stranger("it is a program of ExecuTorch", _EXPORT)),
    (rb"..\0\0TFL3", Stranger("it is a model of LiteRT (TensorFlow Lite)", _ANY)),
    (
        rb"..\0\0PTMF",
        Stranger(
            "it is TorchScript as a flatbuffer, for mobile devices",
            "give the file that torch.jit.save writes of it",
        ),
    ),
)
_HEAD_BYTES = 16


def stranger(given: object) -> Stranger | None:
    """Return what the file of a path holds, or a state dict, where that is known, and no graph."""
    path = path_of(given)
    # By their classes alone: what a dict of the user's own and its entries do, nobody knows.
    if isinstance(given, dict) and any(hasattr(type(held), "dtype") for held in dict.values(given)):
        return _WEIGHTS
    if path is None or "\0" in path:
        return None
    if elsewhere(path):
        return _ELSEWHERE
    entries = archive_entries(path)
    for pattern, found in _ENTRIES:
        if any(re.search(pattern, name) for name in entries):
            return found
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
    except (OSError, ValueError):
        return None
    return next((found for pattern, found in _HEADS if re.match(pattern, head, re.DOTALL)), None)


def elsewhere(path: str) -> Stranger | None:
    """Return what to tell of a file on another machine; None for one on this."""
    return _ELSEWHERE if "://" in path else None
