"""Loading of `torch.jit.save` files (`.pt`) by torch, which trusts them.

The traced inputs in the archive are read here, by an unpickler that calls nothing.
"""

import io
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

from tbscope.errors import ArgumentError
from tbscope.ir.pytree import map_tree
from tbscope.messages import error_text, shown
from tbscope.sources.files import DAMAGED, holds_script, local_file, open_archive, unreadable
from tbscope.sources.fx.aliasing import UNKNOWN, TensorType, Types
from tbscope.sources.pickles import PickledObject, PickledTensor, TensorUnpickler
from tbscope.sources.torch.compat.modules import load_script_file
from tbscope.sources.torchscript.types import ScriptBlock

__all__ = ["Loaded", "load_script"]

_DOING = "no TorchScript can be read"


class Loaded(NamedTuple):
    """A module or function of TorchScript, from memory or from a file.

    Attributes:
        module: The `ScriptFunction`, or the C++ object of the module (`script_handle`).
        functions: Returns the graph of a function of the file by its name, or None.
        traced_with: The inputs of the trace as types; None if they are unknown.
    """

    module: Any
    functions: Callable[[str], ScriptBlock]
    traced_with: list[Types] | None


def load_script(path: object) -> Loaded:
    """Load the module in a file: torch compiles its code, and runs parts of it.

    Args:
        path: The path of the file.
    Raises:
        ArgumentError: The path is no TorchScript file, the file is damaged, or torch cannot
            load it.
    """
    name = local_file(path, _DOING)
    try:
        with open_archive(name) as archive:
            traced_inputs = _noted(archive, path)
    except ArgumentError:
        raise
    except Exception as error:  # The reader of a damaged archive raises errors of many kinds.
        why = f"it is no whole zip file: {error_text(error)}"
        raise unreadable(path, _DOING, why, DAMAGED) from error
    try:
        return Loaded(*load_script_file(name), traced_inputs)
    except Exception as error:
        raise unreadable(
            path,
            _DOING,
            f"torch.jit.load raised {error_text(error)}",
            "import what registers its operators first; else write it again with "
            "torch.jit.save(module, path), by this torch or an older one",
        ) from error


def _noted(archive: zipfile.ZipFile, path: object) -> list[Types] | None:
    """Return the inputs with which `forward` was traced, as types, or None if the file has none.

    Entries with code and pickles are read in full, so that zipfile compares their checksums:
    torch does not, and a damaged line table may end the process.
    """
    names = archive.namelist()
    if not holds_script(names):
        why = "it is a zip file, and contains no TorchScript"
        raise unreadable(path, _DOING, why, "torch.jit.save(module, path) writes one")
    traced_inputs: list[Types] | None = None
    for name in names:
        if not name.endswith((".py", "pkl")):
            continue
        content = archive.read(name)
        if name.endswith("/traced_inputs.pkl"):
            try:
                inputs = TensorUnpickler(io.BytesIO(content)).load().get("forward")
                traced_inputs = map_tree(inputs, _typed) if isinstance(inputs, list) else None
            except Exception as error:  # The reader of a damaged pickle may raise anything.
                why = f"its entry {shown(name)} cannot be read: {error_text(error)}"
                raise unreadable(path, _DOING, why, DAMAGED) from error
    return traced_inputs


def _typed(content: object) -> object:
    """Return the type of a tensor in a pickle, and None for an object of any class."""
    if isinstance(content, PickledTensor):
        # A type without strides is never run on meta tensors, which an unknown dtype cannot be.
        stride = content.stride if content.dtype != UNKNOWN.dtype else None
        return TensorType(content.shape, content.dtype, "cpu", stride=stride)
    return None if isinstance(content, PickledObject) else content
