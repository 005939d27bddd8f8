"""HTML: one page that holds a graph and all that draws it, and asks for nothing from anywhere.

What is drawn and told is written into it as data; the scripts of the folder `viewer/` draw it. No
text of a user's becomes a part of the page itself: data is JSON without any `<`, and the scripts
put it on the page as text. A policy in the page lets no other script run than these two.
"""

import base64
import hashlib
import html
import json
from collections.abc import Callable, Iterable
from functools import cache
from importlib import resources
from typing import Any, TypeAlias

from tbscope.page.glyphs import Box, Item
from tbscope.page.structures import Structures
from tbscope.saving.picture import FIGURES, Picture
from tbscope.words import visible

__all__ = ["SCRIPTS", "page_of", "picture_data", "viewer_text"]

SCRIPTS = ("graph", "layout", "colours", "svg", "card", "search", "main")
"""The scripts that draw, in the order in which they build on each other."""

_Thing: TypeAlias = Box | Item
_ROOT, _BOX, _NODE, _CIRCLE = range(4)
# What JSON may hold and a page must not: the ends of scripts, and what JavaScript takes for lines.
_ESCAPES = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def page_of(picture: Picture) -> str:
    """Return the page that shows a picture."""
    library, drawing = viewer_text("dagre/dagre.min.js"), _script()
    parts = {
        "TITLE": html.escape(visible(picture.title or "graph")),
        "POLICY": _policy(library, drawing),
        "STYLE": viewer_text("style.css"),
        "LICENCE": viewer_text("dagre/LICENSE").strip(),
        "DATA": _json(picture_data(picture)),
        "LIBRARY": library,
        "SCRIPT": drawing,
    }
    page = viewer_text("page.html")
    pieces = page.split("@@")
    # Every other piece is a name: what a part holds is not looked into again.
    pieces[1::2] = [parts[name] for name in pieces[1::2]]
    return "".join(pieces)


@cache
def viewer_text(name: str) -> str:
    """Return a file of the viewer."""
    return resources.files(__package__).joinpath("viewer", name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    parts = "\n".join(viewer_text(f"{name}.js") for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}\n}})();'


def _policy(*scripts: str) -> str:
    """Return the policy that lets just these scripts run, and has nothing loaded."""
    # What stands between the tags, with the line ends of the template.
    sums = [hashlib.sha256(f"\n{script}\n".encode()).digest() for script in scripts]
    allowed = " ".join(f"'sha256-{base64.b64encode(each).decode()}'" for each in sums)
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}"


def _json(data: object) -> str:
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.translate(_ESCAPES)


class _Words:
    """Gives each text a number, so that one that many nodes have is written once."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.number.setdefault(text, len(self.number))

    def of(self, texts: Iterable[str]) -> list[int]:
        return [self(text) for text in texts]


def picture_data(picture: Picture) -> dict[str, Any]:
    """Return what the page is told of a picture, as JSON has it.

    Boxes and nodes are numbered: the root is 0, boxes come next, each after the one around it, and
    nodes follow. Each key of "things" has one entry for each; texts are numbers in "words".
    """
    things: list[_Thing] = [picture.root, *picture.boxes, *picture.items]
    place = {thing: at for at, thing in enumerate(things)}
    words, types = _Words(), _Words()
    structures = Structures(picture.hierarchy)

    def each(give: Callable[[_Thing], Any]) -> list[Any]:
        return [give(thing) for thing in things]

    def kind(thing: _Thing) -> int:
        if isinstance(thing, Box):
            return _BOX if thing.parent else _ROOT
        return _CIRCLE if thing.embedded else _NODE

    def around(thing: _Thing) -> int:
        box = thing.parent if isinstance(thing, Box) else thing.box
        return -1 if box is None else place[box]

    def outputs(thing: _Thing) -> list[int]:
        given = picture[thing].outputs
        return types.of(f"{one.elements} {one.size_text} {one.dtype}" for one in given)

    def reads(thing: _Thing) -> list[int]:
        return [
            number
            for read in picture[thing].reads
            for number in (place[read.source], -1 if read.waits else read.output)
        ]

    def facts(thing: _Thing) -> list[int]:
        return [number for fact in picture[thing].facts.items() for number in words.of(fact)]

    def structure(thing: _Thing) -> int:
        found = structures.of.get(thing) if isinstance(thing, Box) else None
        return 0 if found is None else found.number

    columns = {
        "kind": each(kind),
        "around": each(around),
        "label": each(lambda thing: words(thing.label)),
        "name": each(lambda thing: words(thing.name)),
        "class": each(lambda thing: words(picture.class_of(thing))),
        "second": each(lambda thing: words(picture.second_line(thing))),
        "sort": each(lambda thing: words(picture[thing].kind)),
        "mark": each(lambda thing: words(picture[thing].label)),
        "device": each(lambda thing: words(picture[thing].device)),
        "structure": each(structure),
        "outputs": each(outputs),
        "reads": each(reads),
        "facts": each(facts),
    }
    figures = {}
    for key, title in FIGURES.items():
        numbers = [picture[thing].figures.get(key) for thing in things]
        if any(numbers):
            figures[key] = {"title": title, "of": numbers}
    return {
        "title": picture.title,
        "notes": list(picture.notes),
        "words": list(words.number),
        "types": [text.split(" ") for text in types.number],
        "things": columns,
        "figures": figures,
    }
