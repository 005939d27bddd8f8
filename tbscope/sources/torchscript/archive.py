"""Loading of `torch.jit.save` files (`.pt`) by torch, which trusts them.

The traced inputs in the archive are read here, by an unpickler that calls nothing.
"""

import io
import pickle
import zipfile
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from tbscope.errors import ArgumentError
from tbscope.messages import error_text, shown
from tbscope.sources.files import DAMAGED, holds_script, local_file, open_archive, unreadable
from tbscope.sources.fx.aliasing import UNKNOWN, TensorType, Types
from tbscope.sources.torch.compat.modules import load_script_file
from tbscope.sources.torch.subclasses import dtype_name
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
                inputs = _Types(io.BytesIO(content)).load().get("forward")
                traced_inputs = inputs if isinstance(inputs, list) else None
            except Exception as error:  # The reader of a damaged pickle may raise anything.
                why = f"its entry {shown(name)} cannot be read: {error_text(error)}"
                raise unreadable(path, _DOING, why, DAMAGED) from error
    return traced_inputs


class _Types(pickle.Unpickler):
    """Unpickler that returns a `TensorType` for each tensor, and calls no named function."""

    def find_class(self, module: str, name: str, /) -> object:
        """Return a substitute for a class or a function: `_called` with its full name."""
        return partial(_called, f"{module}.{name}")

    def persistent_load(self, pid: Any, /) -> str:
        """Return the dtype name of a storage (`float32`), or `unknown` if torch lacks it."""
        # The storage class in the pickle is the substitute that `find_class` has returned.
        (storage_name,) = pid[1].args
        storage_class = getattr(torch, storage_name.rpartition(".")[2], None)
        return UNKNOWN.dtype if storage_class is None else dtype_name(storage_class.dtype)


_TENSORS = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_qtensor")


def _called(named: str, *args: Any) -> object:
    """Return the result of a call in a pickle: a type for a tensor, an object without its tag."""
    if named in _TENSORS:
        dtype, _, sizes, strides = args[:4]
        # A type without strides is never run on meta tensors, which an unknown dtype cannot be.
        return TensorType(sizes, dtype, "cpu", stride=strides if dtype != "unknown" else None)
    return args[0] if named == "torch.jit._pickle.restore_type_tag" else None
