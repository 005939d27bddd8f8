"""DOT: the language of Graphviz, with a cluster for each box that is open.

Source: https://graphviz.org/doc/info/lang.html
"""

import math
import re
from collections.abc import Callable, Iterator

from tbscope.page.glyphs import Box, Item
from tbscope.saving.cut import Cut, Line
from tbscope.words import visible

__all__ = ["dot_of"]

# Fills of Graphviz's own scheme `set312`, of which each shows black text.
_COLOURS = 12
_ESCAPED = re.compile(r'["\\]')


def dot_of(cut: Cut) -> str:
    """Return the graph as DOT, of which every byte is ASCII.

    Nodes are coloured by their labels where the graph is drawn with `color_by`, and else by
    their classes.
    """
    return "\n".join([*_Writer(cut).lines(), ""])


class _Writer:
    """Writes one cut, line by line."""

    def __init__(self, cut: Cut) -> None:
        self._cut = cut
        self._picture = cut.picture
        self._number = {glyph: at for at, glyph in enumerate(cut.walk())}
        labelled = any(cut.picture[item].label for item in cut.picture.items)
        self._mark: Callable[[Box | Item], str] = (
            (lambda glyph: cut.picture[glyph].label) if labelled else cut.picture.class_of
        )
        counts: dict[str, int] = {}
        for glyph in self._number:
            mark = self._mark(glyph)
            if mark:
                counts[mark] = counts.get(mark, 0) + 1
        frequent = sorted(counts, key=lambda mark: (-counts[mark], mark))
        self._colour = {mark: at % _COLOURS + 1 for at, mark in enumerate(frequent)}

    def lines(self) -> Iterator[str]:
        yield f"digraph {_quoted(self._picture.title or 'graph')} {{"
        yield (
            '  graph [rankdir=TB, fontname="Helvetica", fontsize=11, style="rounded,filled", '
            'fillcolor="#f4f6f8", color="#9aa4b2", labeljust=l]'
        )
        yield (
            '  node [fontname="Helvetica", fontsize=11, style=filled, colorscheme=set312, '
            'fillcolor="#e8ebef", color="#5d6775", height=0.3, margin="0.12,0.05"]'
        )
        yield '  edge [fontname="Helvetica", fontsize=9, color="#6f7a89", fontcolor="#4a5361"]'
        yield from self._inside(self._picture.root, "  ")
        for line in self._cut.lines:
            yield f"  {self._edge(line)}"
        yield "}"

    def _inside(self, box: Box, indent: str) -> Iterator[str]:
        for glyph in self._picture.children(box):
            if isinstance(glyph, Box) and self._cut.is_open(glyph):
                yield f"{indent}subgraph cluster_{self._number[glyph]} {{"
                yield f"{indent}  label={_quoted(self._title(glyph))}"
                yield f"{indent}  tooltip={_quoted(glyph.name)}"
                yield from self._inside(glyph, f"{indent}  ")
                yield f"{indent}}}"
            else:
                yield f"{indent}n{self._number[glyph]} [{self._attributes(glyph)}]"

    def _title(self, glyph: Box | Item) -> str:
        second = self._picture.second_line(glyph)
        return f"{glyph.label}\n{second}" if second else glyph.label

    def _attributes(self, glyph: Box | Item) -> str:
        closed = isinstance(glyph, Box)
        found = {
            "label": self._title(glyph),
            "tooltip": glyph.name,
            "shape": "box3d" if closed else "ellipse",
        }
        colour = self._colour.get(self._mark(glyph))
        if colour:
            found["fillcolor"] = str(colour)
        return ", ".join(f"{key}={_quoted(value)}" for key, value in found.items())

    def _edge(self, line: Line) -> str:
        found = {}
        if line.text:
            found["label"] = line.text
        if not line.tensors:
            found["style"] = "dashed"
        elif line.elements > 1:
            found["penwidth"] = f"{_width(line.elements):.2f}"
        ends = f"n{self._number[line.start]} -> n{self._number[line.end]}"
        if not found:
            return ends
        return f"{ends} [{', '.join(f'{key}={_quoted(value)}' for key, value in found.items())}]"


def _width(elements: int) -> float:
    """Return the width of a line: the more elements, the thicker, up to 5 points."""
    return min(5.0, 0.8 + 0.6 * math.log10(elements))


def _quoted(text: str) -> str:
    """Return a text as DOT has it; what is no ASCII as the entities that Graphviz reads."""
    text = _ESCAPED.sub(lambda found: "\\" + found[0], visible(text).replace("&", "&amp;"))
    plain = text.replace("\n", "\\n").encode("ascii", "xmlcharrefreplace").decode("ascii")
    return f'"{plain}"'
