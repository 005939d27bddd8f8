"""HTML: one page that holds a graph and all that draws it, and asks for nothing from anywhere.

What is drawn and told is written into it as data; the scripts of the folder `viewer/` draw it. No
text of a user's becomes a part of the page itself: data is JSON without any `<`, and the scripts
put it on the page as text. A policy in the page lets no other script run than these two.
"""

import base64
import hashlib
import html
import json
import re
from functools import cache
from typing import Any

from tbscope.ir.graph import Graph
from tbscope.page.glyphs import Box
from tbscope.saving.figures import ASKED
from tbscope.saving.levels import Levels, Words
from tbscope.saving.picture import FIGURES, Picture
from tbscope.saving.tables import module_table, record_lists
from tbscope.saving.viewer_files import SCRIPTS, viewer_style, viewer_text
from tbscope.words import visible

__all__ = ["page_data", "page_of", "page_of_levels"]

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./\w+\.js";\n', re.MULTILINE)
_COMMENT = re.compile(r"^ *(?://.*|/\*\*(?:.|\n)*?\*/)\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function|class|const|let)", re.MULTILINE)
# What JSON may hold and a page must not: the ends of scripts, and what JavaScript takes for lines.
_ESCAPES = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def page_of(picture: Picture) -> str:
    """Return the page that shows a picture."""
    return page_of_levels(Levels(picture), picture.graph)


def page_of_levels(levels: Levels, graph: Graph | None) -> str:
    """Return the page that shows a picture of which somebody has the answers.

    Args:
        levels: The answers.
        graph: The graph, or None if there is its drawing alone.
    """
    library, drawing = viewer_text("dagre/dagre.min.js"), _script()
    parts = {
        "TITLE": html.escape(visible(levels.picture.title or "graph")),
        "POLICY": _policy(library, drawing),
        "STYLE": viewer_style(),
        "LICENCE": viewer_text("dagre/LICENSE").strip(),
        "DATA": _json(page_data(levels, graph)),
        "LIBRARY": library,
        "SCRIPT": drawing,
    }
    page = viewer_text("page.html")
    pieces = page.split("@@")
    # Every other piece is a name: what a part holds is not looked into again.
    pieces[1::2] = [parts[name] for name in pieces[1::2]]
    return "".join(pieces)


@cache
def _script() -> str:
    """Return the modules as one script: a page that is a file cannot load modules.

    Without comments, which would be a tenth of it.
    """
    modules = (_COMMENT.sub("", viewer_text(f"{name}.js")) for name in SCRIPTS)
    parts = "\n".join(_EXPORT.sub("", _IMPORT.sub("", module)) for module in modules)
    return f'(() => {{\n"use strict";\n{parts}\n}})();'


def _policy(*scripts: str) -> str:
    """Return the policy that lets just these scripts run, and has nothing loaded.

    Only a picture that a script made may be drawn again, as a PNG.
    """
    # What stands between the tags, with the line ends of the template.
    sums = [hashlib.sha256(f"\n{script}\n".encode()).digest() for script in scripts]
    allowed = " ".join(f"'sha256-{base64.b64encode(each).decode()}'" for each in sums)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src blob:; script-src {allowed}"


def _json(data: object) -> str:
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.translate(_ESCAPES)


def page_data(levels: Levels, graph: Graph | None) -> dict[str, Any]:
    """Return every answer about a picture, with one list of words for all of them."""
    words = Words()
    cards = [levels.card(number, words) for number in range(len(levels.glyphs))]
    for card in cards:
        # The index has them, too.
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
    # The cards and the index have these, too.
    del table["name"], table["class"]
    table["numbers"] = {
        key: column for key, column in table["numbers"].items() if key not in FIGURES
    }
    return {"words": list(words.number), **data}
