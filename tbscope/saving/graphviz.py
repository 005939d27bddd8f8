"""Graphviz: has its program `dot` draw what is written in DOT."""

import html
import os
import re
import shutil
import subprocess

from tbscope.errors import ArgumentError
from tbscope.words import cut

__all__ = ["PROGRAM", "rendered", "size_of"]

PROGRAM = "dot"
"""What draws, looked for where the system looks for programs."""

# What takes longer is too large to be looked at, too.
_MOST_SECONDS = 300
# Twice as many pixels as points: text is sharp on a page and on a screen.
_PNG_DPI = 144
_PNG_BEGIN = b"\x89PNG\r\n\x1a\n"
_SVG_SIZE = re.compile(rb'<svg width="([\d.]+)pt" height="([\d.]+)pt"')
# The numbers that DOT has for nodes and lines, which a browser would show, and what names the
# place of a schema.
_NUMBERS = re.compile(rb"<title>(?:n\d+(?:&#45;&gt;n\d+)?|cluster_\d+)</title>\n")
_DOCTYPE = re.compile(rb"<!DOCTYPE[^>]*>\n")
_SVG_HEAD = re.compile(rb"(<svg [^>]*)>")
_SVG_TITLE = re.compile(rb"<title>([^<]*)</title>\n")


def rendered(dot: str, form: str, about: str = "") -> bytes:
    """Return a picture of what is written in DOT.

    Args:
        dot: The graph.
        form: A form of Graphviz's (`svg`, `png`).
        about: What a screen reader says of an SVG beside its title.
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
            [program, f"-T{form}", *([f"-Gdpi={_PNG_DPI}"] if form == "png" else [])],
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
    return _named(done.stdout, about) if form == "svg" else done.stdout


def size_of(picture: bytes) -> tuple[float, float]:
    """Return the width and the height of an SVG or a PNG in points."""
    if picture.startswith(_PNG_BEGIN):
        width, height = (int.from_bytes(picture[at : at + 4], "big") for at in (16, 20))
        return 72 * width / _PNG_DPI, 72 * height / _PNG_DPI
    found = _SVG_SIZE.search(picture)
    return (float(found[1]), float(found[2])) if found else (0, 0)


def _named(svg: bytes, about: str) -> bytes:
    """Return an SVG that a screen reader names by its title, and that asks for nothing."""
    svg = _NUMBERS.sub(b"", _DOCTYPE.sub(b"", svg))
    title = _SVG_TITLE.search(svg)
    if title is None:
        return svg
    svg = svg[: title.start()] + svg[title.end() :]
    return _SVG_HEAD.sub(
        lambda head: (
            b'%s role="img" aria-labelledby="title about">\n<title id="title">%s</title>\n'
            b'<desc id="about">%s</desc>' % (head[1], title[1], html.escape(about).encode())
        ),
        svg,
        count=1,
    )


def _failed(form: str, why: str) -> ArgumentError:
    return ArgumentError(
        f"Graphviz drew no .{form}",
        why=why,
        fix="draw less: depth=1, or level='overview'; or write an .html page",
    )
