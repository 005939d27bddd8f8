"""Has torch load the files of torch.jit.save (`.pt`), which it trusts."""

import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

from tbscope.errors import ArgumentError
from tbscope.sources.local_files import local_file, unreadable
from tbscope.sources.torch.module_internals import load_script_file
from tbscope.sources.torchscript.kinds import holds_script
from tbscope.sources.torchscript.traced_inputs import traced_inputs
from tbscope.words import error_text, shown

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
                noted = traced_inputs(content, "forward")
            except Exception as error:  # The reader of a damaged pickle may raise anything.
                why = f"its entry {shown(name)} cannot be read: {error_text(error)}"
                raise unreadable(path, _DOING, why, _DAMAGED) from error
    return noted
