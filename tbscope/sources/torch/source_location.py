"""Call sites of operations: the line of the user's code that called each one.

The search skips frames inside torch, Python's standard library and tbscope, and so finds the line
in the model, or in the script that draws it. If the command draws the model, there is no script.
"""

import dis
import functools
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from importlib.util import find_spec
from types import CodeType, FrameType, TracebackType
from typing import TypeAlias

from tbscope.ir.graph import Source

# Files of models are read without torch, and refer to its folder.
_INIT = getattr(find_spec("torch"), "origin", "")
_TORCH = os.path.dirname(os.path.abspath(_INIT)) + os.sep
OWN_FILES = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""The common prefix of the paths of tbscope's sources."""
_PACKAGE = os.path.dirname(os.path.dirname(OWN_FILES)) + os.sep
_COMMAND = os.path.join(_PACKAGE, "cli", "")
_STDLIB = tuple({sysconfig.get_path(key) + os.sep for key in ("stdlib", "platstdlib")})
_SITE = tuple({sysconfig.get_path(key) + os.sep for key in ("purelib", "platlib")})


# Files with helpers that work on all parameters at once, before or after an optimizer step.
_HELPERS = frozenset(
    _TORCH + os.path.join(*parts)
    for parts in (
        ("nn", "utils", "clip_grad.py"),
        ("amp", "grad_scaler.py"),
        ("optim", "swa_utils.py"),
    )
)


# The file name of code that torch.fx generates.
_GENERATED = "<eval_with_key>"
METHODS = {
    "load_state_dict": _TORCH + os.path.join("nn", "modules", "module.py"),
    "clip_grad_norm_": _TORCH
    + os.path.join("distributed", "fsdp", "fully_sharded_data_parallel.py"),
}
"""The methods of modules that count as training helpers, with their files.

`load_state_dict` updates a target network."""


def helper_name(frame: FrameType | None) -> str | None:
    """Return the outermost of torch's training helpers that called a frame: `clip_grad_norm_`.

    None if no helper did.
    """
    name = None
    while frame is not None:
        code = frame.f_code
        if code.co_filename in _HELPERS:
            name = _public_name(code) or name
        elif METHODS.get(code.co_name) == code.co_filename:
            name = code.co_qualname
        frame = frame.f_back
    return name


def _public_name(code: CodeType) -> str | None:
    """Return the name by which users call the code of a helper, or None if they cannot."""
    name = code.co_name
    if name.startswith("<"):
        # A comprehension or lambda: its function is further out.
        return None
    if name.startswith("_"):
        # Some private functions are public under another name: `get_total_norm`.
        public = name.lstrip("_")
        return public if hasattr(sys.modules["torch.nn.utils"], public) else None
    return code.co_qualname


def is_foreign_file(file: str) -> bool:
    """Whether a file belongs to torch, to Python's standard library or to tbscope.

    The files of tbscope's command do not count as foreign.
    """
    if file.startswith((_TORCH, _PACKAGE)):
        # No user's frame is outside the command, so the search ends at it.
        return not file.startswith(_COMMAND)
    # Installed packages are in a folder below the standard library.
    return file.startswith((*_STDLIB, "<frozen ")) and not file.startswith(_SITE)


def is_own_file(file: str) -> bool:
    """Whether a file belongs to tbscope."""
    return file.startswith(_PACKAGE)


def raised_in_tbscope(error: BaseException) -> bool:
    """Whether the innermost frame of an error's traceback is in tbscope, not in other code."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return bool(frames) and is_own_file(frames[-1][0].f_code.co_filename)


def is_only_dispatched(frame: FrameType | None, caller: int) -> bool:
    """Whether C++ called an operation, and dispatch modes merely passed it on.

    Args:
        frame: The frame that called the operation.
        caller: The `id` of the frame that called into C++.
    """
    dispatched = called = False
    while frame is not None and id(frame) != caller:
        code = frame.f_code
        if code.co_name == "__torch_dispatch__":
            # The frames further in were called by the mode itself, so they do not count.
            dispatched, called = True, False
        else:
            # torch calls modes from functions of its own, which do not count either.
            called = called or not is_foreign_file(code.co_filename)
        frame = frame.f_back
    return dispatched and not called


def short_path(file: str) -> str:
    """Return a file's path relative to its entry of the import path, with `/`.

    Hence a model has equal sources on every machine: `models/net.py`,
    `transformers/models/bert/modeling_bert.py`. The longest entry that fits is used; a file in
    none keeps only its name.
    """
    if file.startswith(_GENERATED):
        # torch.fx numbers these files, and appends the path of the file that requested the code.
        return _GENERATED
    if not os.path.isabs(file):
        return file.replace(os.sep, "/")
    try:
        cwd = os.getcwd()
    except FileNotFoundError:  # The working directory was deleted.
        cwd = ""
    folders = _holders((*sys.path, cwd))
    longest = max(filter(file.startswith, folders), key=len, default="")
    short = file[len(longest) :] if longest else os.path.basename(file)
    return short.replace(os.sep, "/")


@functools.lru_cache(maxsize=8)
def _holders(entries: tuple[str, ...]) -> tuple[str, ...]:
    """Return the absolute folders of the import path, each with a separator at its end.

    Args:
        entries: The entries of the import path, then the working directory (empty if deleted).
    """
    *path, cwd = entries
    absolute = [os.path.join(cwd, entry) for entry in path] if cwd else path
    return tuple(
        os.path.join(os.path.normpath(entry), "")
        for entry in (*absolute, cwd)
        if os.path.isabs(entry)
    )


def raised_at(trace: TracebackType | None) -> Source | None:
    """Return the innermost line of the user's code in a traceback, or None if it has none."""
    source = None
    for frame, line in traceback.walk_tb(trace):
        code = frame.f_code
        # Python generates code for tbscope and torch, too, which is in no file, so the name of the
        # module counts as well.
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in ("tbscope", "torch") and not is_foreign_file(code.co_filename):
            source = Source(short_path(code.co_filename), line, code.co_name)
    return source


Spot: TypeAlias = tuple[Source | None, int]
"""The position of a frame: its source line (None in tbscope's command) and its bytecode offset."""

# Python 3.11 has this instruction before each call; the call itself is 2 code units (4 bytes)
# further.
_BEFORE_CALL = dis.opmap.get("PRECALL")


class CallSiteFinder:
    """Finds the call sites of frames, with a cache of files and lines.

    Args:
        boundary: The code of the function that wraps each module call. Outside of it is the
            caller of the module, whose call site the recorder has already.

    Attributes:
        is_foreign: A cached `is_foreign_file`.
    """

    def __init__(self, boundary: CodeType) -> None:
        self._boundary = boundary
        self._short_path = functools.cache(short_path)
        # By `id`, since the hash of a code object reads all of it. The entry keeps the code alive,
        # so that the `id` stays unique.
        self._spots: dict[int, tuple[CodeType, dict[int, Spot]]] = {}
        self.is_foreign = functools.cache(is_foreign_file)

    def source(self, frame: FrameType | None, default: Source | None) -> Source | None:
        """Return the line of the user's code that led to a frame.

        Args:
            frame: The frame at which the search begins; it goes outwards.
            default: The result if the search reaches the call of the running module first: then
                a module of torch called the operation, and the user's line is the call of that
                module. Also the result if the search reaches tbscope's command.
        """
        frame = self.user_frame(frame)
        return default if frame is None else self.spot(frame)[0] or default

    def user_frame(self, frame: FrameType | None) -> FrameType | None:
        """Return the innermost frame of the user's code, or None if a module call is nearer."""
        is_foreign = self.is_foreign
        while frame is not None:
            code = frame.f_code
            if code is self._boundary:
                return None
            if not is_foreign(code.co_filename):
                return frame
            frame = frame.f_back
        return None

    def spot(self, frame: FrameType) -> Spot:
        """Return the line of a frame, None in tbscope's command, and its bytecode offset."""
        code, offset = frame.f_code, frame.f_lasti
        entry = self._spots.get(id(code))
        spots = self.spots_of(code) if entry is None else entry[1]
        if offset not in spots:
            file, source = code.co_filename, None
            if not file.startswith(_COMMAND):
                source = Source(self._short_path(file), frame.f_lineno or 0, code.co_name)
            # Python runs a call that it has specialized at the instruction before it. The offset
            # of the call itself makes both runs equal.
            specialized = (
                _BEFORE_CALL is not None and offset >= 0 and code.co_code[offset] == _BEFORE_CALL
            )
            spots[offset] = source, offset + 4 if specialized else offset
        return spots[offset]

    def spots_of(self, code: CodeType) -> dict[int, Spot]:
        """Return the cached positions in a code object, by the `f_lasti` of frames."""
        return self._spots.setdefault(id(code), (code, {}))[1]


_FRAME = re.compile(r'^ *File "(.*)", line ([0-9]{1,9}), in (.*)$', re.MULTILINE)
# A traced node lists its enclosing calls, innermost first; a scripted node has only its own line.
_TRACED = re.compile(r"^(.+?)\(([0-9]{1,9})\): (.+)$", re.MULTILINE)
_SCRIPTED = re.compile(r'^ *File "(.+?)", line ([0-9]{1,9})')
# Heading of the lines in a file's own copy of the code.
_COPY = "Serialized   File"


@functools.lru_cache(maxsize=4096)
def source_of(trace: str) -> Source | None:
    """Return the innermost line of the user's code in a stack trace.

    Args:
        trace: The text of Python, with the innermost call last.
    Returns:
        The line, or None if all lines are of torch or of Python's library.
    """
    return own_line(reversed(_FRAME.findall(trace)))


def own_line(lines: Iterable[tuple[str, str | int, str]]) -> Source | None:
    """Return the first line that is not of torch or of Python's library, or None.

    Args:
        lines: The file, the number and the function of each line.
    """
    for file, line, function in lines:
        # A program of another machine has the paths of its torch.
        is_torch = "site-packages/torch/" in file or is_foreign_file(file)
        if not file.startswith("<") and not is_torch:
            return Source(short_path(file), int(line), function)
    return None


@functools.lru_cache(maxsize=4096)
def source_of_script(text: str, function: str) -> Source | None:
    """Return the innermost line of the user's code for a node of TorchScript.

    Args:
        text: The source range that TorchScript prints for the node.
        function: The function of the line, for a text that does not name it.
    Returns:
        The line, or None if all lines are of torch or of Python's library.
    """
    text = text.partition(_COPY)[0]
    scripted = _SCRIPTED.match(text)
    return own_line([(scripted[1], scripted[2], function)] if scripted else _TRACED.findall(text))
