"""Warnings that point at the line of the user's script, however deep in tbscope they arise."""

import sys
import warnings

_warned: set[str] = set()


def warn(text: str) -> None:
    """Issue a warning that points at the line of the user's script that led here."""
    warnings.warn(text, stacklevel=_script_level())


def warn_once(text: str) -> None:
    """Issue a warning as `warn` does, unless this process has issued its text before."""
    if text not in _warned:
        _warned.add(text)
        warn(text)


def _script_level() -> int:
    """Return the number of call frames between the warning function and the user's script.

    Frames of tbscope and of torch are skipped.
    """
    packages = __name__.partition(".")[0], "torch"
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None:
        name: str = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] not in packages:
            break
        frame, level = frame.f_back, level + 1
    return level
