"""HTML: one page with a graph and the scripts that draw it, which loads nothing from elsewhere.

The graph is in the page as JSON data; the scripts of the folder `viewer/` draw it. Texts of a user
never become markup: the JSON contains no `<`, and the scripts insert texts as text nodes. A content
security policy allows these scripts alone. A notebook shows the page in a sandboxed frame without
access to the notebook.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Container, Iterator
from functools import cache
from typing import Any

from tbscope.analysis.units import worth_of_number
from tbscope.functions.definition import Definition
from tbscope.functions.functions import Functions
from tbscope.ir.graph import Graph, body_to_lines
from tbscope.messages import visible
from tbscope.page.glyphs import Box, Item, box_around
from tbscope.saving.box_tree import FIGURES, Glyph, Picture, picture_of
from tbscope.saving.levels import ASKED, Levels, Words
from tbscope.saving.viewer_files import SCRIPTS, joined, viewer_style, viewer_text
from tbscope.utils.gc_pause import not_collecting

# Characters that JSON allows and a script does not: `</script>`, and JavaScript's line separators.
_ESCAPES = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def page_of(picture: Picture, version: str = "") -> str:
    """Return the page that shows a picture; for the version, see `page_of_levels`."""
    return page_of_levels(Levels(picture), picture.graph, version)


def page_of_levels(levels: Levels, graph: Graph | None, version: str = "") -> str:
    """Return the page that shows the picture of some answers.

    Args:
        levels: The answers.
        graph: The graph, or None if only its drawing is available.
        version: The text at the address `version` of the server of the page, which reloads itself
            when another text is there; empty for a page that asks for nothing.
    """
    library, drawing = viewer_text("dagre/dagre.min.js"), _script()
    parts = {
        "TITLE": html.escape(visible(levels.picture.title or "graph")),
        "POLICY": _policy(library, drawing) + ("; connect-src 'self'" if version else ""),
        "STYLE": viewer_style(),
        "LICENCE": viewer_text("dagre/LICENSE").strip(),
        "DATA": _json(page_data(levels, graph) | ({"version": version} if version else {})),
        "LIBRARY": library,
        "SCRIPT": drawing,
    }
    pieces = viewer_text("page.html").split("@@")
    # Odd pieces are names of parts. The contents of parts are not searched for names again.
    pieces[1::2] = [parts[name] for name in pieces[1::2]]
    return "".join(pieces)


@cache
def _script() -> str:
    """Return the modules as one script: a page opened as a file cannot import modules."""
    return f'(() => {{\n"use strict";\n{joined(SCRIPTS)}\n}})();'


def _policy(*scripts: str) -> str:
    """Return the content security policy that allows these scripts alone, and no other loads.

    Images from blobs are allowed: a script draws its SVG again to export a PNG.
    """
    # The hash covers all text between the tags, with the line ends of the template.
    sums = [hashlib.sha256(f"\n{script}\n".encode()).digest() for script in scripts]
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in sums)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src blob:; script-src {allowed}"


def _json(data: object) -> str:
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.translate(_ESCAPES)


def page_data(levels: Levels, graph: Graph | None) -> dict[str, object]:
    """Return every answer about a picture, with one common list of words."""
    words = Words()
    cards = [levels.card(number, words) for number in range(len(levels.glyphs))]
    for card in cards:
        # The index contains them, too.
        del card["facts"]
    data: dict[str, Any] = {
        "head": levels.head(words),
        "levels": [
            levels.level(number, words) if isinstance(glyph, Box) else 0
            for number, glyph in enumerate(levels.glyphs)
        ],
        "cards": cards,
        "index": levels.index(words),
        "figures": {key: levels.asked(key) for key in ASKED},
        "modules": module_table(levels, words),
        "record": None if graph is None else record_lists(levels, graph, words),
    }
    table = data["modules"]
    # The cards and the index contain these, too.
    del table["name"], table["class"]
    table["numbers"] = {
        key: column for key, column in table["numbers"].items() if key not in FIGURES
    }
    return {"words": list(words.number), **data}


# -- notebooks ---------------------------------------------------------------------------------


MOST_BYTES = 2_000_000
"""The largest frame: notebook files contain their outputs, and load them all when opened."""

_HEIGHT = 620


def graph_to_frame(graph: Graph) -> str:
    """Return a graph as the HTML of a notebook's output.

    A graph whose page is too large is drawn with equal blocks as one node; if that is too large,
    too, the output is one line about the graph.
    """
    with not_collecting():
        return _frame(graph)


def _frame(graph: Graph) -> str:
    page = page_of(picture_of(graph))
    hint = ""
    if len(page) > MOST_BYTES:
        hint = "Equal blocks stand for each other here"
        page = page_of(picture_of(graph, level="overview"))
    if len(page) > MOST_BYTES:
        return f"<p>{html.escape(repr(graph))} {_LARGE}</p>"
    # The sandbox lets scripts run, without access to the notebook.
    frame = (
        f'<iframe sandbox="allow-scripts allow-downloads" style="width:100%;height:{_HEIGHT}px;'
        f'border:1px solid #8888;border-radius:8px" srcdoc="{html.escape(page)}"></iframe>'
    )
    return f"{frame}<p>{hint}. {_LARGE}</p>" if hint else frame


_LARGE = "All of it is in the page that <code>graph.save('graph.html')</code> writes."


# -- tables ------------------------------------------------------------------------------------


_COUNT, _TRAINABLE, _INSIDE = "parameter_count", "trainable_parameter_count", "inside"
# A tensor in the results on the card of a box: `Float(2, 8)`, `Half(*, device=cuda:0)`.
_TENSOR = re.compile(r"\b\w+\(((?:\d+|[?*])(?:, (?:\d+|\?))*)?(?:(?:, )?(?:device|here)=[^()]*)?\)")


def module_table(levels: Levels, words: Words) -> dict[str, object]:
    """Return the modules of a picture: the boxes and nodes whose cards have a class.

    Each call of a module has a row, as it has a box or a node. In a picture without classes, e.g.
    from a log of another library, each box has a row.

    Returns:
        Whether the rows are "modules" or "boxes", and a column for each property, in the order of
        the tree of boxes: the number of the box or the node, the number of rows that enclose it,
        its name, class and output; and figures by their keys, None if missing.
    """
    picture = levels.picture
    of = "modules"
    shown = {glyph for glyph in levels.glyphs if picture.fact(glyph, "class") is not None}
    if not shown:
        # Boxes come from the names of nodes; runs of equal blocks have no row.
        of, shown = "boxes", {box for box in picture.boxes if not picture.repeats(box)}
    rows = [*_tree(picture, shown)]
    glyphs = [glyph for glyph, _ in rows]
    numbers: dict[str, list[float | None]] = {
        key: [picture.figure(glyph, key) for glyph in glyphs]
        for key in FIGURES
        if picture.figure(picture.root, key) is not None
    }
    if of == "boxes":
        numbers[_INSIDE] = [levels.inside[glyph] for glyph in glyphs if isinstance(glyph, Box)]
    elif _COUNT in numbers:
        # The card of a module has this number only if some of its parameters are frozen.
        trainable = [(glyph, picture.fact(glyph, _TRAINABLE)) for glyph in glyphs]
        numbers[_TRAINABLE] = [
            picture.figure(glyph, _COUNT) if number is None else worth_of_number(number)
            for glyph, number in trainable
        ]
    return {
        "of": of,
        "at": [levels.number[glyph] for glyph in glyphs],
        "depth": [depth for _, depth in rows],
        "name": words.of(glyph.name for glyph in glyphs),
        "class": words.of(picture.class_of(glyph) for glyph in glyphs),
        "output": words.of(_output(picture, glyph) for glyph in glyphs),
        "numbers": numbers,
    }


def record_lists(levels: Levels, graph: Graph, words: Words) -> dict[str, object]:
    """Return the contents of a graph that its picture lacks: notes and functions.

    Returns:
        The notes; and for each function, after those that it uses: its head, its body, and its
        uses, each as the number of a box or a node (-1 if the picture does not show it) and a
        name.
    """
    picture = levels.picture
    index_of: dict[str, int] = {}
    for at, glyph in enumerate(levels.glyphs):
        if picture.fact(glyph, "class") is not None:
            index_of.setdefault(str(picture.fact(glyph, "scope") or ""), at)

    def uses(definition: Definition) -> Iterator[int]:
        for use in definition.uses:
            path = use.scope.path if use.scope else ""
            at = index_of.get(path, -1)
            yield at
            yield words(levels.glyphs[at].name or picture.title if at >= 0 else path)

    functions = [*Functions(graph)]
    return {
        "notes": words.of(dict.fromkeys(str(note) for note in graph.notes)),
        "heads": words.of(function.head for function in functions),
        "bodies": words.of("\n".join(body_to_lines(function.graph)) for function in functions),
        "uses": [[*uses(function)] for function in functions],
    }


def _tree(picture: Picture, rows: Container[Glyph]) -> Iterator[tuple[Glyph, int]]:
    """Yield the rows of a table in the order of the boxes, with the number of enclosing rows."""
    depths: dict[Glyph, int] = {}
    for glyph in (picture.root, *picture.walk()):
        around = box_around(glyph)
        depths[glyph] = 0 if around is None else depths[around] + (around in rows)
        if glyph in rows:
            yield glyph, depths[glyph]


def _output(picture: Picture, glyph: Glyph) -> str:
    """Return the sizes of a module's outputs, in the form of its info card."""
    if isinstance(glyph, Item):
        return ", ".join(tensor.size_text for tensor in picture.outputs(glyph))
    return _TENSOR.sub(_sizes, str(picture.fact(glyph, "results") or ""))


def _sizes(tensor: re.Match[str]) -> str:
    sizes = tensor[1]
    return "?" if sizes == "*" else "×".join(sizes.split(", ")) if sizes else "scalar"
