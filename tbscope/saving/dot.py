"""DOT, the language of Graphviz, with a cluster for each open box; and its program `dot`.

Colours and shapes follow the viewer.

Source: https://graphviz.org/doc/info/lang.html, https://graphviz.org/doc/info/shapes.html#html
"""

import html
import math
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator

from tbscope.errors import ArgumentError
from tbscope.messages import cut as cut_text
from tbscope.messages import visible
from tbscope.page.glyphs import Box
from tbscope.saving.box_tree import ENDS, Glyph
from tbscope.saving.depth_limit import Cut
from tbscope.saving.palette import THEMES

INK = "#1d2430"
SOFT = "#566070"
_LINE = "#747d8b"
_THEME = THEMES["light"]
_FONT = 'fontname="Helvetica,Arial,sans-serif"'
# The opacity of an open box on white.
_OPEN = 0.16
_LONGEST = 34
_ESCAPED = re.compile(r'["\\]')
# The program, on the PATH.
_PROGRAM = "dot"
# A graph that takes longer would be too large to look at.
_MOST_SECONDS = 300
# Twice as many pixels as points: text is sharp on a page and on a screen.
_PNG_DPI = 144
_PNG_BEGIN = b"\x89PNG\r\n\x1a\n"
_SVG_SIZE = re.compile(rb'<svg width="([\d.]+)pt" height="([\d.]+)pt"')
# Graphviz's titles of nodes and lines, which a browser would show as tooltips; and the DOCTYPE,
# with the URL of its DTD.
_NUMBERS = re.compile(rb"<title>(?:n\d+(?:&#45;&gt;n\d+)?|cluster_\d+)</title>\n")
_DOCTYPE = re.compile(rb"<!DOCTYPE[^>]*>\n")


def dot_of(cut: Cut) -> str:
    """Return the graph as DOT, of which every byte is ASCII.

    Nodes and boxes are coloured by their labels if any has one, otherwise by their classes.

    Args:
        cut: The shapes and lines to draw.
    """
    picture = cut.picture
    number = {glyph: at for at, glyph in enumerate(cut.walk())}
    drawn = [glyph for glyph in picture.glyphs if isinstance(glyph, Box) or not glyph.embedded]
    labelled = any(picture.mark(glyph, "label") for glyph in drawn)

    def mark(glyph: Glyph) -> str:
        return picture.mark(glyph, "label") if labelled else picture.class_of(glyph)

    counts = Counter(map(mark, drawn))
    del counts[""]
    look = {mark(glyph) for glyph in picture.children(picture.root)}
    order = sorted(counts, key=lambda text: (text not in look, -counts[text], text))
    # Further texts have the plain colour, as in the viewer.
    colours = dict(zip(order, _THEME.colours, strict=False))

    def inside(box: Box, indent: str) -> Iterator[str]:
        for glyph in picture.children(box):
            fill, rim = colours.get(mark(glyph), _THEME.plain)
            first, second = map(_markup, cut.title(glyph))
            small = f'<font point-size="9">{second}</font>' if second else ""
            if isinstance(glyph, Box) and cut.is_open(glyph):
                between = " " if second else ""
                yield f"{indent}subgraph cluster_{number[glyph]} {{"
                yield f"{indent}  label=<<b>{first}</b>{between}{small}>"
                yield f"{indent}  tooltip={_quoted(glyph.name)}"
                yield f'{indent}  fillcolor="{_on_white(fill)}"; color="{rim}"'
                yield from inside(glyph, f"{indent}  ")
                yield f"{indent}}}"
                continue
            between, more = "<br/>" if second else "", ""
            if isinstance(glyph, Box):
                # A double outline: the box has contents that are not drawn.
                more = ', peripheries="2"'
            elif picture.class_of(glyph) in ENDS:
                more = ', penwidth="2"'
            attributes = f'tooltip={_quoted(glyph.name)}, fillcolor="{fill}", color="{rim}"{more}'
            yield f"{indent}n{number[glyph]} [label=<{first}{between}{small}>, {attributes}]"

    lines = [
        f"digraph {_quoted(picture.title or 'graph')} {{",
        f"  graph [rankdir=TB, ranksep=0.22, nodesep=0.2, {_FONT}, fontsize=11, pad=0.1, "
        f'fontcolor="{INK}", style="rounded,filled", labeljust=l]',
        f'  node [shape=box, style="rounded,filled", {_FONT}, fontsize=11, fontcolor="{INK}", '
        'height=0.32, margin="0.14,0.04"]',
        f'  edge [{_FONT}, fontsize=9, fontcolor="{SOFT}", color="{_LINE}", arrowsize=0.6]',
        *inside(picture.root, "  "),
    ]
    for line in cut.lines:
        # The blank keeps the label off its line.
        label = [f"label={_quoted(f' {line.text}')}"] if line.text else []
        if not line.tensors:
            label.append('style="dashed"')
        elif line.elements > 1:
            # The more elements, the thicker, up to 3 points.
            width = min(3.0, 0.8 + 0.25 * math.log10(line.elements))
            label.append(f'penwidth="{width:.2f}"')
        how = f" [{', '.join(label)}]" if label else ""
        lines.append(f"  n{number[line.start]} -> n{number[line.end]}{how}")
    return "\n".join([*lines, "}", ""])


def _on_white(colour: str) -> str:
    """Return a colour blended with white, for an open box."""
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 + (part - 255) * _OPEN):02x}" for part in parts)


def _markup(text: str) -> str:
    """Return a text for an HTML-like label; a long text without its middle."""
    text = visible(text)
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - 12]}…{text[-11:]}"
    return _ascii(html.escape(text.replace("\n", " "), quote=False))


def _quoted(text: str) -> str:
    """Return a text as a DOT string, non-ASCII characters as entities that Graphviz reads."""
    text = _ESCAPED.sub(lambda match: "\\" + match[0], visible(text).replace("&", "&amp;"))
    plain = _ascii(text.replace("\n", "\\n"))
    return f'"{plain}"'


def _ascii(text: str) -> str:
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


# -- the program ----------------------------------------------------------------------------------


def rendered(dot: str, form: str) -> bytes:
    """Return a graph in DOT as a picture, drawn by Graphviz.

    Args:
        dot: The graph.
        form: An output format of Graphviz (`svg`, `png`).
    Raises:
        ArgumentError: The program is not installed, fails, or takes too long.
    """
    program = shutil.which(_PROGRAM)
    if program is None:
        raise ArgumentError(
            f"cannot draw a picture in the form .{form}",
            why=f"it is drawn by Graphviz, and its program {_PROGRAM!r} is not on the PATH",
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
            # Locale settings of the user must not change a picture.
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired as error:
        raise _failed(form, f"it took more than {_MOST_SECONDS} seconds") from error
    except OSError as error:
        raise _failed(form, f"{type(error).__name__}: {error.strerror or error}") from error
    if done.returncode or not done.stdout:
        message = done.stderr.decode("utf-8", "backslashreplace").split("\n")[0]
        raise _failed(form, cut_text(message, 300) or f"it ended with {done.returncode}")
    return _NUMBERS.sub(b"", _DOCTYPE.sub(b"", done.stdout)) if form == "svg" else done.stdout


def size_of(picture: bytes) -> tuple[float, float]:
    """Return the width and the height of an SVG or a PNG in points."""
    if picture.startswith(_PNG_BEGIN):
        width, height = (int.from_bytes(picture[at : at + 4], "big") for at in (16, 20))
        return 72 * width / _PNG_DPI, 72 * height / _PNG_DPI
    match = _SVG_SIZE.search(picture)
    return (float(match[1]), float(match[2])) if match else (0, 0)


def _failed(form: str, why: str) -> ArgumentError:
    return ArgumentError(
        f"Graphviz drew no .{form}",
        why=why,
        fix="draw less: depth=1, or level='overview'; or write an .html page",
    )
