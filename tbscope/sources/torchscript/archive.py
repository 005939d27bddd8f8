"""Reads the files of torch.jit.save (`.pt`), after a look at what torch would do with them.

torch reads them without Python: it compiles the code in them, and fills modules with tensors.
It runs what code has to run to fill an object, and it believes what a file claims. So a file
is looked through first, as zip, as text and as pickles, of which nothing runs.
"""

import io
import os
import re
import zipfile
import zlib
from collections.abc import Callable
from typing import IO, Any, NamedTuple

from tbscope.errors import ArgumentError
from tbscope.files import path_of
from tbscope.sources.strangers import elsewhere
from tbscope.sources.torch.archives import entry_content
from tbscope.sources.torch.module_internals import load_script_file
from tbscope.sources.torchscript.code import NoCodeError, check_chains, what_runs
from tbscope.sources.torchscript.kinds import holds_script
from tbscope.sources.torchscript.line_tables import check_lines
from tbscope.sources.torchscript.pickles import DamagedError, check_pickle, traced_inputs
from tbscope.words import error_text, shown

__all__ = ["Loaded", "load_script"]

# More code than this no model has.
_MOST_CODE = 64 * 2**20
# What users put beside a module (`_extra_files`): torch gives it back, and reads none of it.
_OTHERS = "extra/"
_CLASSES = "__torch__.torch.classes."
_BROKEN = (
    *(zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError),
    *(ValueError, OverflowError),
)
_DAMAGED = "it is cut off or damaged: copy it, or write it, anew"


class Loaded(NamedTuple):
    """What was in a file.

    Attributes:
        module: The module or function; of a file, what TorchScript holds of the module.
        functions: Gives the graph of a function by its name.
        traced_with: The inputs with which it was traced, as types; None where nobody noted them.
    """

    module: Any
    functions: Callable[[str], Any]
    traced_with: list[Any] | None


def load_script(path: Any, *, trusted: bool = False) -> Loaded:
    """Load the scripted module in a file.

    Args:
        path: The path of the file.
        trusted: Whether torch may run what the file has it run while it is loaded.
    Raises:
        ArgumentError: It is no such file, it is damaged, or it wants to have code run and is not
            trusted.
    """
    try:
        name = os.fspath(path)
    except Exception as error:
        # A class of the user's may raise anything.
        raise _refused(path, error_text(error), "give the path of a file") from error
    remote = elsewhere(path_of(name) or "")
    if remote is not None:
        raise _refused(path, *remote)
    try:
        with open(name, "rb") as file:
            noted = _check(file, path, trusted=trusted)
    except FileNotFoundError as error:
        raise _refused(path, "there is no such file", "give the path of a file") from error
    except ArgumentError:
        raise
    except (OSError, ValueError, TypeError) as error:
        raise _refused(path, error_text(error), "give the path of a file") from error
    try:
        return Loaded(*load_script_file(name), noted)
    except Exception as error:
        raise _refused(
            path,
            f"torch.jit.load raised {error_text(error)}",
            "import what registers its operators first; else write it anew with "
            "torch.jit.save(module, path), by this torch or an older one",
        ) from error


def _check(file: IO[bytes], path: Any, *, trusted: bool) -> list[Any] | None:
    """Check that a file is whole, claims no more than it holds, and has torch run nothing.

    Returns:
        The inputs with which it was traced.
    """
    noted: list[Any] | None = None
    size = file.seek(0, io.SEEK_END)
    try:
        with zipfile.ZipFile(file) as archive:
            entries = {entry.filename: entry for entry in archive.infolist()}
            if len(entries) < len(archive.infolist()):
                raise _refused(path, "two of its entries have the same name", _DAMAGED)
            if not holds_script(list(entries)):
                why = "it is a zip file, and holds no TorchScript"
                raise _refused(path, why, "torch.jit.save(module, path) writes one")
            packed = [one for one in entries.values() if one.compress_type != zipfile.ZIP_STORED]
            claimed = sum(one.file_size for one in entries.values()) - sum(
                one.file_size for one in packed
            )
            if claimed > size or sum(one.file_size for one in packed) > _MOST_CODE:
                claimed = sum(one.file_size for one in entries.values())
                why = f"its entries claim {claimed:,} bytes, and the file has {size:,}"
                raise _refused(path, why, _DAMAGED)
            sizes = {name: entry.file_size for name, entry in entries.items()}
            looked = _Looked(path, sizes, trusted)
            for name, entry in entries.items():
                if name.partition("/")[2].startswith(_OTHERS):
                    continue
                if name.endswith("/traced_inputs.pkl"):
                    noted = _noted(entry_content(file, entry, size), name, path)
                elif name.endswith((".py", ".pkl", ".debug_pkl")):
                    looked.check(name, entry_content(file, entry, size))
            looked.check_chains()
    except ArgumentError:
        # It is a ValueError, too.
        raise
    except _BROKEN as error:
        why = f"it is no whole zip file: {error_text(error)}"
        raise _refused(path, why, _DAMAGED) from error
    return noted


def _noted(content: bytes, name: str, path: Any) -> list[Any] | None:
    """Return with what forward was traced; torch itself reads it only where it is asked to."""
    try:
        return traced_inputs(content, "forward")
    except DamagedError as error:
        raise _unreadable(path, name, str(error)) from error


class _Looked:
    """Looks through the code and the pickles of a file; what is told twice, once.

    Modules of one class have classes of their own in a file, which differ in their numbers alone.
    """

    def __init__(self, path: Any, sizes: dict[str, int], trusted: bool) -> None:
        self._path = path
        self._sizes = sizes
        self._trusted = trusted
        self._codes: dict[str, str] = {}
        self._seen: set[str | bytes] = set()

    def check(self, name: str, content: bytes) -> None:
        """Check an entry, code or a pickle."""
        key: str | bytes = content
        try:
            if name.endswith(".py"):
                text = content.decode()
                home = name.partition("/code/")[2].removesuffix(".py").replace("/", ".")
                self._codes[home] = text
                key = _NUMBERED.sub("___torch_mangle_", text)
            if name.endswith(".pkl") or key not in self._seen:
                what = self._what_runs(name, content)
                self._seen.add(key)
            else:
                what = None
        except UnicodeDecodeError as error:
            raise _unreadable(self._path, name, error_text(error)) from error
        except (NoCodeError, DamagedError) as error:
            raise _unreadable(self._path, name, str(error)) from error
        if what is not None and not self._trusted:
            raise _refused(
                self._path,
                f"its entry {shown(name)} holds {what}, and that runs code of the file's author",
                "where you trust the author: tbscope.from_torchscript(path, trusted=True)",
            )

    def _what_runs(self, name: str, content: bytes) -> str | None:
        if name.endswith(".py"):
            return what_runs(content.decode())
        named = (
            check_lines(content)
            if name.endswith(".debug_pkl")
            else check_pickle(content, _storages(name, self._sizes))
        )
        what = next((each for each in sorted(named) if each.startswith(_CLASSES)), None)
        if what is None:
            return None
        return f"an object of the class {what.removeprefix('__torch__.')}, which makes itself"

    def check_chains(self) -> None:
        """Check all code together: what is in one entry needs what is in another."""
        try:
            check_chains(self._codes)
        except NoCodeError as error:
            raise _refused(self._path, f"its code cannot be read: {error}", _DAMAGED) from error


# The number of a class, short enough for all limits of what one text may be like.
_NUMBERED = re.compile("___torch_mangle_[0-9]{1,9}")


def _storages(name: str, sizes: dict[str, int]) -> dict[str, int]:
    """Return the bytes of each storage of a pickle, by its key."""
    folder = f"{name.removesuffix('.pkl')}/"
    return {other[len(folder) :]: size for other, size in sizes.items() if other.startswith(folder)}


def _unreadable(path: Any, name: str, text: str) -> ArgumentError:
    return _refused(path, f"its entry {shown(name)} cannot be read: {text}", _DAMAGED)


def _refused(path: Any, why: str, fix: str) -> ArgumentError:
    return ArgumentError(f"no TorchScript can be read from {shown(path)}", why=why, fix=fix)
