"""Mermaid: a flowchart for a README, with a subgraph for each open box.

GitHub draws code blocks of the language `mermaid`, and refuses charts beyond Mermaid's default
limits, which a chart cannot raise.

Source: https://mermaid.js.org/syntax/flowchart.html, and the configuration's `maxTextSize` and
`maxEdges`
"""

import re
from collections.abc import Iterator

from tbscope.errors import ArgumentError
from tbscope.page.glyphs import Box, Item
from tbscope.saving.box_tree import Glyph, Picture
from tbscope.saving.depth_limit import Cut

MOST_CHARACTERS = 50_000
"""The largest length of a chart (`maxTextSize`)."""

MOST_LINES = 500
"""The largest number of lines of a chart (`maxEdges`)."""

# Characters with a meaning in Mermaid's texts, or in the HTML that it makes of them.
_ODD = re.compile(r"[^A-Za-z0-9 _.,:/()\[\]×·=-]|^-|\.(?= )")


def mermaid_of(picture: Picture, depth: int | None = None) -> str:
    """Return a picture as a flowchart.

    Args:
        picture: The picture.
        depth: The number of open boxes around the innermost nodes; None for the deepest that
            GitHub draws.
    Raises:
        ArgumentError: The chart of this depth is larger than GitHub draws; or, for None, even
            the chart of depth 0.
    """
    cut = Cut(picture, depth)
    text = _chart(cut)
    first = fault = _fault(cut, text)
    while fault and cut.depth:
        cut = Cut(picture, cut.depth - 1)
        text = _chart(cut, f"depth {cut.depth + 1} would have {fault}")
        fault = _fault(cut, text)
    if not fault and (depth is None or not first):
        return text
    fix = "write an .html page, or draw with level='overview'"
    if not fault:
        fix = f"depth={cut.depth}, or leave depth out for the deepest that is drawn"
    raise ArgumentError(
        "the flowchart is larger than GitHub draws",
        why=f"it has {fault if depth is None else first}",
        fix=fix,
    )


def _fault(cut: Cut, text: str) -> str:
    """Return the limit of GitHub that a chart exceeds, as a text; empty if it exceeds none."""
    if len(cut.lines) > MOST_LINES:
        return f"{len(cut.lines):,} lines, and GitHub draws at most {MOST_LINES}"
    if len(text) > MOST_CHARACTERS:
        return f"{len(text):,} characters, and GitHub reads at most {MOST_CHARACTERS:,}"
    return ""


def _chart(cut: Cut, left_out: str = "") -> str:
    head = [f"%% drawn to depth {cut.depth}: {left_out}"] if left_out else []
    return "\n".join([*head, *_lines(cut), ""])


def _lines(cut: Cut) -> Iterator[str]:
    picture = cut.picture
    number = {glyph: at for at, glyph in enumerate(cut.walk())}

    def title(glyph: Glyph) -> str:
        second = picture.second_line(glyph)
        return f"{glyph.label} · {second}" if second else glyph.label

    def inside(box: Box, indent: str) -> Iterator[str]:
        for glyph in picture.children(box):
            index, text = number[glyph], _quoted(title(glyph))
            if isinstance(glyph, Item):
                yield f"{indent}n{index}([{text}])"
            elif cut.is_open(glyph):
                yield f"{indent}subgraph s{index}[{text}]"
                yield from inside(glyph, f"{indent}  ")
                yield f"{indent}end"
            else:
                yield f"{indent}n{index}[[{text}]]"

    yield "flowchart TB"
    yield from inside(picture.root, "  ")
    for line in cut.lines:
        start, end = f"n{number[line.start]}", f"n{number[line.end]}"
        if not line.tensors:
            yield f"  {start} -.-> {end}"
        elif line.text:
            yield f"  {start} -->|{_quoted(line.text)}| {end}"
        else:
            yield f"  {start} --> {end}"


def _quoted(text: str) -> str:
    """Return a text in quotes, with entity codes for characters that Mermaid may interpret."""
    return '"' + _ODD.sub(lambda match: f"#{ord(match[0])};", text) + '"'
