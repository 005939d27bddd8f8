"""Tables: the answers for the panels beside a picture: its modules, its functions, its notes.

Like the answers of `Levels`, they are JSON in which boxes and nodes have numbers, and texts are
numbers in a list of words.
"""

import re
from collections.abc import Container, Iterator
from typing import Any

from tbscope.functions.definition import Definition
from tbscope.functions.functions import Functions
from tbscope.graphdef.attributes import worth_of_number
from tbscope.ir.graph import Graph, body_to_lines
from tbscope.page.glyphs import Box, Item
from tbscope.saving.levels import Levels, Words
from tbscope.saving.picture import FIGURES, Glyph, Picture

__all__ = ["module_table", "record_lists"]

_COUNT, _TRAINABLE, _INSIDE = "parameter_count", "trainable_parameter_count", "inside"
# A tensor in the results on the card of a box: `Float(2, 8)`, `Half(*, device=cuda:0)`.
_TENSOR = re.compile(r"\b\w+\(((?:\d+|[?*])(?:, (?:\d+|\?))*)?(?:(?:, )?(?:device|here)=[^()]*)?\)")


def module_table(levels: Levels, words: Words) -> dict[str, Any]:
    """Return the modules of a picture: the boxes and nodes whose cards have a class.

    Each call of a module has a row, as it has a box or a node. Of a picture without classes, as of
    a log that another library wrote, the boxes have the rows.

    Returns:
        Whether the rows are "modules" or "boxes", and a column for each property, in the order of
        the tree of boxes: the number of the box or the node, how many rows are around it, its
        name, class and output; and numbers by their keys, None if there is none.
    """
    picture = levels.picture
    of, shown = "modules", {one for one in levels.glyphs if picture.fact(one, "class") is not None}
    if not shown:
        # The boxes that the names of nodes make.
        of, shown = "boxes", {box for box in picture.boxes if not picture.repeats(box)}
    rows = [*_tree(picture, shown)]
    glyphs = [glyph for glyph, _ in rows]
    numbers: dict[str, list[float | None]] = {
        key: [picture.figure(glyph, key) for glyph in glyphs]
        for key in FIGURES
        if picture.figure(picture.root, key) is not None
    }
    if of == "boxes":
        numbers[_INSIDE] = [levels.inside[one] for one in glyphs if isinstance(one, Box)]
    elif _COUNT in numbers:
        # The card of a module tells it if not all of its parameters are learnt.
        told = [(glyph, picture.fact(glyph, _TRAINABLE)) for glyph in glyphs]
        numbers[_TRAINABLE] = [
            picture.figure(glyph, _COUNT) if number is None else worth_of_number(number)
            for glyph, number in told
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


def record_lists(levels: Levels, graph: Graph, words: Words) -> dict[str, Any]:
    """Return what the record of a graph has beside its picture.

    Returns:
        The notes, and of each function, each after those that it uses: its head, its body, and
        its uses: the number of a box or a node, -1 for one that the picture does not show, and
        its name.
    """
    picture = levels.picture
    place: dict[str, int] = {}
    for at, glyph in enumerate(levels.glyphs):
        if picture.fact(glyph, "class") is not None:
            place.setdefault(str(picture.fact(glyph, "scope") or ""), at)

    def uses(definition: Definition) -> Iterator[int]:
        for use in definition.uses:
            path = use.scope.path if use.scope else ""
            at = place.get(path, -1)
            yield at
            yield words(levels.glyphs[at].name or picture.title if at >= 0 else path)

    functions = [*Functions(graph)]
    return {
        "notes": words.of(dict.fromkeys(str(note) for note in graph.notes)),
        "heads": words.of(one.head for one in functions),
        "bodies": words.of("\n".join(body_to_lines(one.graph)) for one in functions),
        "uses": [[*uses(one)] for one in functions],
    }


def _tree(picture: Picture, rows: Container[Glyph]) -> Iterator[tuple[Glyph, int]]:
    """Yield the rows of a table with how many rows are around each, as the boxes are nested."""
    pending: list[tuple[Glyph, int]] = [(picture.root, 0)]
    while pending:
        glyph, depth = pending.pop()
        if glyph in rows:
            yield glyph, depth
            depth += 1
        if isinstance(glyph, Box):
            pending += [(child, depth) for child in reversed(picture.children(glyph))]


def _output(picture: Picture, glyph: Glyph) -> str:
    """Return the sizes of what a module gives, in the form of its card."""
    if isinstance(glyph, Item):
        return ", ".join(one.size_text for one in picture.outputs(glyph))
    return _TENSOR.sub(_sizes, str(picture.fact(glyph, "results") or ""))


def _sizes(tensor: re.Match[str]) -> str:
    sizes = tensor[1]
    return "?" if sizes == "*" else "×".join(sizes.split(", ")) if sizes else "scalar"
