"""Has torch load the files of torch.jit.save (`.pt`), which it trusts.

The inputs with which a module was traced are read here, and nothing of them is unpickled.
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
from tbscope.sources.fx.aliasing import UNKNOWN, TensorType, dtype_name
from tbscope.sources.local_files import local_file, unreadable
from tbscope.sources.torch.compat.modules import load_script_file
from tbscope.sources.torchscript.detect import holds_script

__all__ = ["Loaded", "load_script"]

_DOING = "no TorchScript can be read"
_DAMAGED = "it is cut off or damaged: copy it, or write it, anew"


class Loaded(NamedTuple):
    """The content of a file.

    Attributes:
        module: The module or function; of a file, what TorchScript holds of the module.
        functions: Gives the graph of a function by its name.
        traced_with: The inputs with which it was traced, as types; None where they are unknown.
    """

    module: Any
    functions: Callable[[str], Any]
    traced_with: list[Any] | None


def load_script(path: Any) -> Loaded:
    """Load the scripted module in a file: torch compiles its code, and runs parts of it.

    Args:
        path: The path of the file.
    Raises:
        ArgumentError: It is no such file, it is damaged, or torch cannot load it.
    """
    name = local_file(path, _DOING)
    try:
        with zipfile.ZipFile(name) as archive:
            noted = _noted(archive, path)
    except ArgumentError:
        raise
    except Exception as error:  # The reader of a damaged archive raises errors of many kinds.
        why = f"it is no whole zip file: {error_text(error)}"
        raise unreadable(path, _DOING, why, _DAMAGED) from error
    try:
        return Loaded(*load_script_file(name), noted)
    except Exception as error:
        raise unreadable(
            path,
            _DOING,
            f"torch.jit.load raised {error_text(error)}",
            "import what registers its operators first; else write it anew with "
            "torch.jit.save(module, path), by this torch or an older one",
        ) from error


def _noted(archive: zipfile.ZipFile, path: Any) -> list[Any] | None:
    """Return the inputs with which forward was traced; check that code and pickles are whole.

    torch asks for no checksum, and may end the process over a damaged table of lines.
    """
    names = archive.namelist()
    if not holds_script(names):
        why = "it is a zip file, and holds no TorchScript"
        raise unreadable(path, _DOING, why, "torch.jit.save(module, path) writes one")
    noted: list[Any] | None = None
    for name in names:
        if not name.endswith((".py", "pkl")):
            continue
        content = archive.read(name)
        if name.endswith("/traced_inputs.pkl"):
            try:
                own = _Types(io.BytesIO(content)).load().get("forward")
                noted = own if isinstance(own, list) else None
            except Exception as error:  # The reader of a damaged pickle may raise anything.
                why = f"its entry {shown(name)} cannot be read: {error_text(error)}"
                raise unreadable(path, _DOING, why, _DAMAGED) from error
    return noted


class _Types(pickle.Unpickler):
    """Reads a pickle of tensors, with a `TensorType` for each: what it names is not called."""

    def find_class(self, module: str, name: str, /) -> Any:
        """Return what stands for a class or a function."""
        return partial(_called, f"{module}.{name}")

    def persistent_load(self, pid: Any, /) -> str:
        """Return the type of the elements of a storage, as torch names it."""
        (named,) = pid[1].args
        kind = getattr(torch, named.rpartition(".")[2], None)
        return UNKNOWN.dtype if kind is None else dtype_name(kind.dtype)


_TENSORS = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_qtensor")


def _called(named: str, *given: Any) -> Any:
    """Return what a call in a pickle would give: a type for a tensor, and what bears a mark."""
    if named in _TENSORS:
        dtype, _, sizes, strides = given[:4]
        return TensorType(sizes, dtype, "cpu", stride=strides if dtype != "unknown" else None)
    return given[0] if named == "torch.jit._pickle.restore_type_tag" else None
