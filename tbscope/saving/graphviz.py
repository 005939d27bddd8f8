"""Graphviz: has its program `dot` draw what is written in DOT."""

import os
import shutil
import subprocess

from tbscope.errors import ArgumentError
from tbscope.words import cut

__all__ = ["PROGRAM", "rendered"]

PROGRAM = "dot"
"""What draws, looked for where the system looks for programs."""

# What takes longer is too large to be looked at, too.
_MOST_SECONDS = 300


def rendered(dot: str, form: str) -> bytes:
    """Return a picture of what is written in DOT.

    Args:
        dot: The graph.
        form: A form of Graphviz's (`svg`, `png`).
    Raises:
        ArgumentError: The program is not there, gives up, or takes too long.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        raise ArgumentError(
            f"cannot draw a picture in the form .{form}",
            why=f"it is drawn by Graphviz, and its program {PROGRAM!r} is not on the PATH",
            fix="install it: apt-get install graphviz, brew install graphviz or conda install "
            "graphviz; or write .dot, .html or .mmd, which need nothing",
        )
    try:
        done = subprocess.run(  # noqa: S603  The program of that name, and a graph as its input.
            [program, f"-T{form}"],
            input=dot.encode("ascii"),
            capture_output=True,
            timeout=_MOST_SECONDS,
            check=False,
            # What a user has set for other programs changes no picture.
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired as error:
        raise _failed(form, f"it took more than {_MOST_SECONDS} seconds") from error
    except OSError as error:
        raise _failed(form, f"{type(error).__name__}: {error.strerror or error}") from error
    if done.returncode or not done.stdout:
        told = done.stderr.decode("utf-8", "backslashreplace").split("\n")[0]
        raise _failed(form, cut(told, 300) or f"it ended with {done.returncode}")
    return done.stdout


def _failed(form: str, why: str) -> ArgumentError:
    return ArgumentError(
        f"Graphviz drew no .{form}",
        why=why,
        fix="draw less: depth=1, or level='overview'; or write an .html page",
    )
