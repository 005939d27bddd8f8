"""DOT: the language of Graphviz, with a cluster for each box that is open.

Its style is that of the viewer.

Source: https://graphviz.org/doc/info/lang.html, https://graphviz.org/doc/info/shapes.html#html
"""

import html
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator

from tbscope.page.glyphs import Box, Item
from tbscope.saving.cut import Cut, Line
from tbscope.saving.palette import THEMES, Colour
from tbscope.words import visible

__all__ = ["dot_of"]

INK = "#1d2430"
SOFT = "#566070"
_LINE = "#747d8b"
_THEME = THEMES["light"]
_FONT = 'fontname="Helvetica,Arial,sans-serif"'
# The part of its colour that an open box has on white.
_OPEN = 0.16
_LONGEST = 34
_ESCAPED = re.compile(r'["\\]')
_ENDS = ("Input", "Output")


def dot_of(cut: Cut) -> str:
    """Return the graph as DOT, of which every byte is ASCII.

    Nodes and boxes are coloured by their labels if the graph is drawn with `color_by`, else by
    their classes.

    Args:
        cut: What is drawn.
    """
    return "\n".join([*_Writer(cut).lines(), ""])


class _Writer:
    """Writes one cut, line by line."""

    def __init__(self, cut: Cut) -> None:
        self._cut = cut
        picture = self._picture = cut.picture
        self._number = {glyph: at for at, glyph in enumerate(cut.walk())}
        glyphs: list[Box | Item] = [*picture.boxes, *picture.items]
        labelled = any(picture.mark(glyph, "label") for glyph in glyphs)
        self._mark: Callable[[Box | Item], str] = (
            (lambda glyph: picture.mark(glyph, "label")) if labelled else picture.class_of
        )
        counts = Counter(
            self._mark(glyph)
            for glyph in glyphs
            if not (isinstance(glyph, Item) and glyph.embedded)
        )
        del counts[""]
        look = {self._mark(glyph) for glyph in picture.children(picture.root)}
        order = sorted(counts, key=lambda mark: (mark not in look, -counts[mark], mark))
        # The rest has no colour of its own, as in the viewer.
        self._colours = dict(zip(order, _THEME.colours, strict=False))

    def lines(self) -> Iterator[str]:
        yield f"digraph {_quoted(self._picture.title or 'graph')} {{"
        yield (
            f"  graph [rankdir=TB, ranksep=0.22, nodesep=0.2, {_FONT}, fontsize=11, pad=0.1, "
            f'fontcolor="{INK}", style="rounded,filled", labeljust=l]'
        )
        yield (
            f'  node [shape=box, style="rounded,filled", {_FONT}, fontsize=11, fontcolor="{INK}", '
            'height=0.32, margin="0.14,0.04"]'
        )
        yield (f'  edge [{_FONT}, fontsize=9, fontcolor="{SOFT}", color="{_LINE}", arrowsize=0.6]')
        yield from self._inside(self._picture.root, "  ")
        for line in self._cut.lines:
            yield f"  {self._edge(line)}"
        yield "}"

    def _inside(self, box: Box, indent: str) -> Iterator[str]:
        for glyph in self._picture.children(box):
            if isinstance(glyph, Box) and self._cut.is_open(glyph):
                fill, rim = self._colour(glyph)
                yield f"{indent}subgraph cluster_{self._number[glyph]} {{"
                yield f"{indent}  label={self._label(glyph, ' ', bold=True)}"
                yield f"{indent}  tooltip={_quoted(glyph.name)}"
                yield f'{indent}  fillcolor="{_on_white(fill, _OPEN)}"; color="{rim}"'
                yield from self._inside(glyph, f"{indent}  ")
                yield f"{indent}}}"
            else:
                yield f"{indent}n{self._number[glyph]} [{self._attributes(glyph)}]"

    def _label(self, glyph: Box | Item, between: str, *, bold: bool = False) -> str:
        """Return a label as DOT has it, with a small second line if there is one."""
        first, second = map(_markup, self._cut.title(glyph))
        if bold:
            first = f"<b>{first}</b>"
        if second:
            first += f'{between}<font point-size="9">{second}</font>'
        return f"<{first}>"

    def _attributes(self, glyph: Box | Item) -> str:
        fill, rim = self._colour(glyph)
        found = {
            "tooltip": glyph.name,
            "fillcolor": fill,
            "color": rim,
        }
        if isinstance(glyph, Box):
            # A second sheet says that there is more inside.
            found["peripheries"] = "2"
        elif self._picture.class_of(glyph) in _ENDS:
            found["penwidth"] = "2"
        told = ", ".join(f"{key}={_quoted(value)}" for key, value in found.items())
        return f"label={self._label(glyph, '<br/>')}, {told}"

    def _colour(self, glyph: Box | Item) -> Colour:
        return self._colours.get(self._mark(glyph), _THEME.plain)

    def _edge(self, line: Line) -> str:
        found: dict[str, str] = {}
        if line.text:
            # A blank keeps the text off its line.
            found["label"] = f" {line.text}"
        if not line.tensors:
            found["style"] = "dashed"
        elif line.elements > 1:
            found["penwidth"] = f"{_width(line.elements):.2f}"
        ends = f"n{self._number[line.start]} -> n{self._number[line.end]}"
        if not found:
            return ends
        return f"{ends} [{', '.join(f'{key}={_quoted(value)}' for key, value in found.items())}]"


def _width(elements: int) -> float:
    """Return the width of a line: the more elements, the thicker, up to 3 points."""
    return min(3.0, 0.8 + 0.25 * math.log10(elements))


def _on_white(colour: str, part: float) -> str:
    """Return a colour of which white shines through."""
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 + (each - 255) * part):02x}" for each in parts)


def _markup(text: str) -> str:
    """Return a text as a part of an HTML-like label; a long one without its middle."""
    text = visible(text)
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - 12]}…{text[-11:]}"
    return _ascii(html.escape(text.replace("\n", " "), quote=False))


def _quoted(text: str) -> str:
    """Return a text as DOT has it; what is no ASCII as the entities that Graphviz reads."""
    text = _ESCAPED.sub(lambda found: "\\" + found[0], visible(text).replace("&", "&amp;"))
    plain = _ascii(text.replace("\n", "\\n"))
    return f'"{plain}"'


def _ascii(text: str) -> str:
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")
