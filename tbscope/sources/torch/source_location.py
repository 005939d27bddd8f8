"""Finds the line of the user's code from which an operation was called.

Frames inside torch, Python's own library and tbscope are passed over: what is wanted is
the line that the author of the model, or of the script that draws it, wrote. Where the
command asked for the graph, there is no such script.
"""

import dis
import functools
import os
import sys
import sysconfig
import traceback
from types import CodeType, FrameType, TracebackType
from typing import TypeAlias

import torch

from tbscope.ir.graph import Source

__all__ = [
    "LOADING",
    "OWN_FILES",
    "Locator",
    "Spot",
    "helper_name",
    "is_foreign_file",
    "is_handed_on",
    "is_own_file",
    "raised_at",
    "raised_in_tbscope",
    "short_path",
]

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
OWN_FILES = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""How the paths of tbscope's sources begin."""
_PACKAGE = os.path.dirname(os.path.dirname(OWN_FILES)) + os.sep
_COMMAND = os.path.join(_PACKAGE, "cli", "")
_STDLIB = tuple({sysconfig.get_path(key) + os.sep for key in ("stdlib", "platstdlib")})
_SITE = tuple({sysconfig.get_path(key) + os.sep for key in ("purelib", "platlib")})


# What works on all parameters at once, between a backward pass and an optimizer or after it.
_HELPERS = frozenset(
    _TORCH + os.path.join(*parts)
    for parts in (
        ("nn", "utils", "clip_grad.py"),
        ("amp", "grad_scaler.py"),
        ("optim", "swa_utils.py"),
    )
)


# How torch.fx calls the files of the code that it generates.
_GENERATED = "<eval_with_key>"
_MODULES = _TORCH + os.path.join("nn", "modules", "module.py")
LOADING = "Module.load_state_dict"
"""The method of modules that helps in a training, where a target network becomes as the other."""


def helper_name(frame: FrameType | None) -> str | None:
    """Return which helper of torch for training leads to a frame: `clip_grad_norm_`; None if none.

    It is the outermost one.
    """
    name = None
    while frame is not None:
        code = frame.f_code
        if code.co_filename in _HELPERS:
            name = _public_name(code) or name
        elif code.co_name == "load_state_dict" and code.co_filename == _MODULES:
            name = LOADING
        frame = frame.f_back
    return name


def _public_name(code: CodeType) -> str | None:
    """Return the name by which users call code of a helper; None where they do not."""
    name = code.co_name
    if name.startswith("<"):
        # A comprehension: the function around it is further out.
        return None
    if name.startswith("_"):
        # Some are handed on under another name: `get_total_norm`.
        public = name.lstrip("_")
        return public if hasattr(torch.nn.utils, public) else None
    return getattr(code, "co_qualname", name)


def is_foreign_file(file: str) -> bool:
    """Tell whether a file belongs to torch, to Python's library or to tbscope."""
    if file.startswith((_TORCH, _PACKAGE)):
        # Beyond the command there is nothing to walk to: the walk ends there.
        return not file.startswith(_COMMAND)
    return file.startswith((*_STDLIB, "<frozen ")) and not file.startswith(_SITE)


def is_own_file(file: str) -> bool:
    """Tell whether a file is one of tbscope."""
    return file.startswith(_PACKAGE)


def raised_in_tbscope(error: BaseException) -> bool:
    """Whether code of tbscope has raised an error, and not the user's."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return bool(frames) and is_own_file(frames[-1][0].f_code.co_filename)


def is_handed_on(frame: FrameType | None, caller: int) -> bool:
    """Tell whether modes alone have handed an operation on that C++ has called.

    Args:
        frame: The frame that called the operation.
        caller: The identity of the one that called what runs in C++.
    """
    handed = own = False
    while frame is not None and id(frame) != caller:
        code = frame.f_code
        if code.co_name == "__torch_dispatch__":
            # Whatever it has called itself led to the operation.
            handed, own = True, False
        else:
            # Torch has functions of its own around those of modes.
            own = own or not is_foreign_file(code.co_filename)
        frame = frame.f_back
    return handed and not own


def short_path(file: str) -> str:
    """Return a file's path relative to the import path that holds it, with `/`.

    So the same model has the same sources on every machine: `models/net.py`,
    `transformers/models/bert/modeling_bert.py`.
    """
    if file.startswith(_GENERATED):
        # torch.fx numbers what it generates, and adds the path of who asked for it.
        return _GENERATED
    if not os.path.isabs(file):
        return file.replace(os.sep, "/")
    try:
        here = os.getcwd()
    except FileNotFoundError:  # Somebody has removed it.
        here = ""
    holders = _holders((*sys.path, here))
    longest = max((holder for holder in holders if file.startswith(holder)), key=len, default="")
    short = file[len(longest) :] if longest else os.path.basename(file)
    return short.replace(os.sep, "/")


@functools.lru_cache(maxsize=8)
def _holders(entries: tuple[str, ...]) -> tuple[str, ...]:
    """Return the folders among the entries of the import path; the last is the working one."""
    *path, here = entries
    whole = [os.path.join(here, entry) for entry in path] if here else path
    return tuple(
        os.path.join(os.path.normpath(entry), "")
        for entry in (*whole, here)
        if os.path.isabs(entry)
    )


def raised_at(trace: TracebackType | None) -> Source | None:
    """Return the innermost line of the user's code in a traceback; None where there is none."""
    found = None
    for frame, line in traceback.walk_tb(trace):
        code = frame.f_code
        # Python writes code for tbscope and torch, too, which is in no file.
        home = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if home not in ("tbscope", "torch") and not is_foreign_file(code.co_filename):
            found = Source(short_path(code.co_filename), line, code.co_name)
    return found


Spot: TypeAlias = tuple[Source | None, int]
"""Where a frame stands: the line, None for one of the command, and the step of its code."""

# Python 3.11 has it before each call, and 2 units of code further the call.
_BEFORE_CALL = dis.opmap.get("PRECALL")


class Locator:
    """Finds the sources of frames; remembers the files and lines that it has looked at.

    Args:
        boundary: The code of the function that wraps each module call; beyond it begins
            the caller of the module, whose source the recorder knows already.

    Attributes:
        is_foreign: Returns whether a file is not the user's, and so passed over.
    """

    def __init__(self, boundary: CodeType) -> None:
        self._boundary = boundary
        self._short_path = functools.cache(short_path)
        # By identity, as hashing a code object reads all of it; the code is kept alive.
        self._spots: dict[int, tuple[CodeType, dict[int, Spot]]] = {}
        self.is_foreign = functools.cache(is_foreign_file)

    def source(self, frame: FrameType | None, default: Source | None) -> Source | None:
        """Return the place in the user's code that led to this frame.

        Args:
            frame: Where to begin, walking outwards.
            default: What to return where the walk meets the running module's call first:
                the operation was called by torch's own module, so by the line that
                called the module. The same where it meets the command.
        """
        frame = self.user_frame(frame)
        return default if frame is None else self.at(frame) or default

    def user_frame(self, frame: FrameType | None) -> FrameType | None:
        """Return the innermost frame of the user's code; None where the module's call is met."""
        is_foreign = self.is_foreign
        while frame is not None:
            code = frame.f_code
            if code is self._boundary:
                return None
            if not is_foreign(code.co_filename):
                return frame
            frame = frame.f_back
        return None

    def at(self, frame: FrameType) -> Source | None:
        """Return the place where a frame stands; None for one of the command."""
        return self.spot(frame)[0]

    def spot(self, frame: FrameType) -> Spot:
        """Return the place where a frame stands, and the step of its code."""
        code, step = frame.f_code, frame.f_lasti
        spots = self.spots_of(code)
        if step not in spots:
            file, source = code.co_filename, None
            if not file.startswith(_COMMAND):
                source = Source(self._short_path(file), frame.f_lineno or 0, code.co_name)
            # Python does a call that it knows from earlier runs one unit before it.
            early = _BEFORE_CALL is not None and step >= 0 and code.co_code[step] == _BEFORE_CALL
            spots[step] = source, step + 4 if early else step
        return spots[step]

    def spots_of(self, code: CodeType) -> dict[int, Spot]:
        """Return the places in a piece of code that are known so far, by what frames tell."""
        return self._spots.setdefault(id(code), (code, {}))[1]
