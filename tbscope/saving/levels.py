"""Levels: a picture as its viewer asks for it, box by box.

A viewer gets the level of the root first, and the level of another box when the box is opened; the
card of a node when the node is selected; the index when somebody searches. An answer is JSON in
which boxes and nodes have numbers: the root is 0, boxes come next, each after the box around it,
and nodes follow. Texts are numbers in the list "words" of the answer.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, TypeAlias

from tbscope.errors import ArgumentError
from tbscope.page.glyphs import Box, Item
from tbscope.page.structures import Structures
from tbscope.saving.picture import FIGURES, Picture, Read, Tensor
from tbscope.saving.repeats import fold_repeats

__all__ = ["Levels", "Words"]

_Glyph: TypeAlias = Box | Item
_ROOT, _BOX, _NODE, _CIRCLE = range(4)
_MODES = ("label", "class", "kind", "dtype", "device")
"""The texts that nodes and boxes may be coloured by."""


class Words:
    """Numbers for texts, so that an answer contains each text once."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        """Return the number of a text."""
        return self.number.setdefault(text, len(self.number))

    def of(self, texts: Iterable[str]) -> list[int]:
        """Return the numbers of texts."""
        return [self(text) for text in texts]


class _Line:
    """The tensors from one glyph of a level to another, each once, and whether one only waits."""

    __slots__ = ("tensors", "waits")

    def __init__(self) -> None:
        self.tensors: dict[tuple[Item, int], None] = {}
        self.waits = False


_Lines: TypeAlias = dict[tuple[_Glyph, _Glyph], _Line]


class Levels:
    """The answers for one picture.

    Attributes:
        picture: The picture.
        glyphs: The root, all boxes and all nodes, by number.
    """

    def __init__(self, picture: Picture) -> None:
        fold_repeats(picture)
        self.picture = picture
        self.glyphs: list[_Glyph] = [picture.root, *picture.boxes, *picture.items]
        self._number = {glyph: number for number, glyph in enumerate(self.glyphs)}
        self._inside: Counter[Box] = Counter()
        self._texts: dict[str, dict[_Glyph, str]] = {mode: {} for mode in _MODES}
        self._readers: dict[Item, list[tuple[Item, Read]]] = {}
        # The lines among the children of a box, those that enter it, and those that leave it.
        self._within: dict[Box, _Lines] = {}
        self._entering: dict[Box, _Lines] = {}
        self._leaving: dict[Box, _Lines] = {}
        for item in picture.items:
            for read in picture.reads(item):
                self._readers.setdefault(read.source, []).append((item, read))
            if not item.embedded:
                self._inside[item.box] += 1
                for read in picture.flow(item):
                    self._add(read, item)
        for box in reversed(picture.boxes):
            assert box.parent is not None, "the root alone has no parent"
            self._inside[box.parent] += self._inside[box]

    def head(self, words: Words) -> dict[str, Any]:
        """Return the first answer: the graph, its ways to be coloured, and the first levels."""
        picture = self.picture
        opened = [picture.root]
        # A box that is alone says little: its level is drawn at once.
        while len(alone := picture.children(opened[-1])) == 1 and isinstance(alone[0], Box):
            opened.append(alone[0])
        return {
            "title": picture.title,
            "notes": list(picture.notes),
            "nodes": self._inside[picture.root],
            "boxes": len(picture.boxes),
            "modes": {
                mode: [number for text, count in found for number in (words(text), count)]
                for mode, found in self._legends.items()
            },
            "equal": [
                number
                for structure, boxes in self._equal.items()
                for number in (structure, words(self._title(boxes[0])), len(boxes))
            ],
            "figures": self._figures,
            "root": self._card(picture.root, words),
            "levels": [self.level(self._number[box], words) for box in opened],
        }

    def level(self, number: int, words: Words) -> dict[str, Any]:
        """Return what is drawn in an open box.

        Args:
            number: The number of the box.
            words: The texts of the answer.
        Returns:
            A column for each property of the children of the box and of the circles that they
            read, and the lines with their tensors: among the children, from outside to a child,
            and from a child to outside.
        """
        box = self.glyphs[number]
        assert isinstance(box, Box), "only a box has a level"
        children = self.picture.children(box)
        circles = {child: self._circles(child) for child in children if isinstance(child, Item)}
        shown: list[_Glyph] = [*children]
        shown += dict.fromkeys(circle for found in circles.values() for circle in found)
        picture, structures = self.picture, self._structures.of

        def each(give: Callable[[_Glyph], Any]) -> list[Any]:
            return [give(glyph) for glyph in shown]

        def of_boxes(give: Callable[[Box], Any]) -> list[Any]:
            return [give(glyph) if isinstance(glyph, Box) else 0 for glyph in shown]

        return {
            "box": number,
            "children": len(children),
            "at": [self._number[glyph] for glyph in shown],
            "kind": each(_kind),
            "label": each(lambda glyph: words(glyph.label)),
            "name": each(lambda glyph: words(glyph.name)),
            "second": each(lambda glyph: words(picture.second_line(glyph))),
            "texts": {
                mode: words.of(self._text(mode, glyph) for glyph in shown) for mode in self._legends
            },
            "class": each(lambda glyph: words(picture.class_of(glyph))),
            "structure": of_boxes(lambda one: structures[one].number),
            "inside": of_boxes(lambda one: self._inside[one]),
            "size": of_boxes(
                lambda one: len(picture.children(one)) // max(picture.repeats(one), 1)
            ),
            "times": of_boxes(picture.repeats),
            "shares": of_boxes(
                lambda one: {
                    mode: _counts(self._shares(mode, one), words) for mode in self._legends
                }
            ),
            "below": of_boxes(
                lambda one: {mode: words.of(self._below(mode, one)) for mode in self._legends}
            ),
            "same": of_boxes(lambda one: sorted(self._structures_below(one))),
            "outputs": each(lambda glyph: [_type(one, words) for one in picture[glyph].outputs]),
            "figures": {key: each(lambda one: picture.figure(one, key)) for key in self._figures},  # noqa: B023
            "circles": [
                [self._number[one] for one in circles.get(glyph, ())]
                if isinstance(glyph, Item)
                else []
                for glyph in shown
            ],
            "lines": self._drawn(self._within.get(box, {}), words),
            "entries": self._drawn(self._entering.get(box, {}), words, outside=0),
            "exits": self._drawn(self._leaving.get(box, {}), words, outside=1),
        }

    def require(self, number: int, kind: str) -> int:
        """Return the number of a box, or of a node for its card.

        Raises:
            ArgumentError: It names nothing, or something that has no level.
        """
        known = 0 <= number < len(self.glyphs)
        if not known or (kind == "level" and not isinstance(self.glyphs[number], Box)):
            raise ArgumentError(
                f"the picture has no {kind} of the number {number}",
                why=f"its boxes have numbers up to {len(self.picture.boxes)}, its nodes more",
                fix="open the graph anew",
            )
        return number

    def card(self, number: int, words: Words) -> dict[str, Any]:
        """Return all that is known of a node or a box: its facts, and what it is linked with."""
        return self._card(self.glyphs[number], words)

    def index(self, words: Words) -> dict[str, Any]:
        """Return a column for each property by which nodes and boxes are found."""
        picture = self.picture
        return {
            "around": [self._around(glyph) for glyph in self.glyphs],
            "name": words.of(glyph.name for glyph in self.glyphs),
            "label": words.of(glyph.label for glyph in self.glyphs),
            "class": words.of(picture.class_of(glyph) for glyph in self.glyphs),
            "kind": words.of(picture[glyph].kind for glyph in self.glyphs),
            "outputs": [
                words.of(f"{one.size_text} {one.dtype}" for one in picture[glyph].outputs)
                for glyph in self.glyphs
            ],
            "facts": [_facts(picture[glyph].facts, words) for glyph in self.glyphs],
        }

    # -- lines -------------------------------------------------------------------------------

    def _add(self, read: Read, reader: Item) -> None:
        """Count an edge in the innermost box around both ends, and at each side on its way."""
        source = read.source
        start: _Glyph = source
        end: _Glyph = reader
        above, below = source.box, reader.box
        while above is not below:
            if above.depth >= below.depth:
                _join(self._leaving, above, (start, reader), read)
                assert above.parent is not None, "the root is around all"
                start, above = above, above.parent
            else:
                _join(self._entering, below, (source, end), read)
                assert below.parent is not None, "the root is around all"
                end, below = below, below.parent
        _join(self._within, above, (start, end), read)

    def _drawn(self, lines: _Lines, words: Words, *, outside: int | None = None) -> list[list[Any]]:
        """Return lines as numbers: start, end, whether it waits, and the types of its tensors.

        And the label of the end that is outside of the box, if one is.
        """
        drawn = []
        for (start, end), line in lines.items():
            types = [
                _type(self.picture.type_of(source, output), words)
                for source, output in line.tensors
            ]
            row = [self._number[start], self._number[end], int(line.waits), types]
            if outside is not None:
                row.append(words((start, end)[outside].label))
            drawn.append(row)
        return drawn

    # -- cards -------------------------------------------------------------------------------

    def _card(self, glyph: _Glyph, words: Words) -> dict[str, Any]:
        told = self.picture[glyph]
        links: dict[str, list[tuple[_Glyph, str]]] = {}

        def add(title: str, other: _Glyph, text: str = "") -> None:
            links.setdefault(title, []).append((other, text))

        for read in told.reads:
            if read.waits:
                add("Waits for", read.source)
            else:
                kept = read.source.embedded
                add(
                    "Parameters and constants" if kept else "Inputs", read.source, self._sizes(read)
                )
        if isinstance(glyph, Item):
            for reader, read in self._readers.get(glyph, ()):
                add("Read by", reader, "" if read.waits else self._sizes(read))
        elif glyph.parent is not None:
            for title, lines, end in (
                ("Inputs", self._entering.get(glyph, {}), 0),
                ("Read by", self._leaving.get(glyph, {}), 1),
            ):
                crossing = {
                    (pair[end], at): self.picture.type_of(*at)
                    for pair, line in lines.items()
                    for at in line.tensors
                }
                for (other, _), tensor in crossing.items():
                    add(title, other, tensor.size_text if tensor else "")
            for other in self._equal.get(self._structures.of[glyph].number, ()):
                if other is not glyph:
                    add("Boxes with the same inside", other)
        return {
            "facts": _facts(told.facts, words),
            "outputs": [_type(one, words) for one in told.outputs],
            "device": words("" if isinstance(glyph, Box) else told.device),
            "links": [
                [
                    words(title),
                    [
                        number
                        for other, text in found
                        for number in (self._number[other], words(other.name), words(text))
                    ],
                ]
                for title, found in links.items()
            ],
            "figures": {key: self.picture.figure(glyph, key) for key in self._figures},
        }

    def _sizes(self, read: Read) -> str:
        tensor = self.picture.tensor(read)
        return tensor.size_text if tensor else ""

    def _around(self, glyph: _Glyph) -> int:
        """Return the box in whose level something is drawn; a circle is drawn at its reader."""
        if isinstance(glyph, Box):
            return -1 if glyph.parent is None else self._number[glyph.parent]
        seen = {glyph}
        while glyph.embedded and self._readers.get(glyph):
            glyph = self._readers[glyph][0][0]
            if glyph in seen:
                break
            seen.add(glyph)
        return self._number[glyph.box]

    def _circles(self, item: Item) -> list[Item]:
        """Return the circles at a node: what it reads of them, and what they read."""
        found: dict[Item, None] = {}
        pending = [item]
        while pending:
            for read in self.picture.reads(pending.pop()):
                if read.source.embedded and read.source not in found:
                    found[read.source] = None
                    pending.append(read.source)
        return list(found)

    # -- colours -----------------------------------------------------------------------------

    @cached_property
    def _structures(self) -> Structures:
        return Structures(self.picture.hierarchy)

    @cached_property
    def _equal(self) -> dict[int, list[Box]]:
        """The boxes of each structure that several have, the most frequent first."""
        found: dict[int, list[Box]] = {}
        for box in self.picture.boxes:
            found.setdefault(self._structures.of[box].number, []).append(box)
        several = [(number, boxes) for number, boxes in found.items() if len(boxes) > 1]
        return dict(sorted(several, key=lambda pair: (-len(pair[1]), pair[0])))

    @cached_property
    def _figures(self) -> dict[str, dict[str, Any]]:
        """The numbers that something has, with the largest at the top."""
        found = {}
        for key, title in FIGURES.items():
            root = self.picture.figure(self.picture.root, key)
            if root is None:
                continue
            tops = self.picture.children(self.picture.root)
            most = max((self.picture.figure(top, key) or 0 for top in tops), default=0)
            found[key] = {"title": title, "most": most or 1}
        return found

    @cached_property
    def _legends(self) -> dict[str, list[tuple[str, int]]]:
        """How many nodes and boxes have each text, the most frequent first, by mode."""
        legends = {}
        for mode in _MODES:
            counts = Counter(
                self._text(mode, glyph)
                for glyph in self.glyphs[1:]
                if not (isinstance(glyph, Item) and glyph.embedded)
            )
            del counts[""]
            if counts:
                legends[mode] = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
        return legends

    def _shares(self, mode: str, box: Box) -> Counter[str]:
        """Return how often each text is in a box, down to what has one."""
        known = self._counted.get((mode, box))
        if known is None:
            known = self._counted[mode, box] = Counter()
            for child in self.picture.children(box):
                text = self._text(mode, child)
                if text:
                    known[text] += 1
                elif isinstance(child, Box):
                    known.update(self._shares(mode, child))
        return known

    @cached_property
    def _counted(self) -> dict[tuple[str, Box], Counter[str]]:
        return {}

    def _below(self, mode: str, box: Box) -> dict[str, None]:
        """Return the texts of all that is in a box, at any depth."""
        known = self._deep.get((mode, box))
        if known is None:
            known = self._deep[mode, box] = {}
            for child in self.picture.children(box):
                text = self._text(mode, child)
                if text:
                    known[text] = None
                if isinstance(child, Box):
                    known.update(self._below(mode, child))
        return known

    @cached_property
    def _deep(self) -> dict[tuple[str, Box], dict[str, None]]:
        return {}

    def _structures_below(self, box: Box) -> set[int]:
        known = self._same.get(box)
        if known is None:
            known = self._same[box] = set()
            for child in self.picture.children(box):
                if isinstance(child, Box):
                    known.add(self._structures.of[child].number)
                    known |= self._structures_below(child)
        return known

    @cached_property
    def _same(self) -> dict[Box, set[int]]:
        return {}

    def _text(self, mode: str, glyph: _Glyph) -> str:
        """Return the text of a node or a box by which it is coloured; empty for none."""
        texts = self._texts[mode]
        text = texts.get(glyph)
        if text is None:
            text = texts[glyph] = _text(self.picture, mode, glyph)
        return text

    def _title(self, box: Box) -> str:
        return self.picture.class_of(box) or box.label


def _join(of: dict[Box, _Lines], box: Box, ends: tuple[_Glyph, _Glyph], read: Read) -> None:
    lines = of.setdefault(box, {})
    line = lines.get(ends)
    if line is None:
        line = lines[ends] = _Line()
    # A tensor that several nodes read goes along once.
    if read.waits:
        line.waits = True
    else:
        line.tensors[read.source, read.output] = None


def _kind(glyph: _Glyph) -> int:
    if isinstance(glyph, Box):
        return _BOX if glyph.parent else _ROOT
    return _CIRCLE if glyph.embedded else _NODE


def _text(picture: Picture, mode: str, glyph: _Glyph) -> str:
    if mode == "class":
        return picture.class_of(glyph)
    if mode == "label" or mode == "kind":
        return picture.mark(glyph, mode)
    if isinstance(glyph, Box):
        return ""
    return picture.dtype(glyph) if mode == "dtype" else picture.device(glyph)


def _type(tensor: Tensor | None, words: Words) -> list[int]:
    """Return the elements, the sizes and the type of a tensor; nothing for an unknown one."""
    return [tensor.elements, words(tensor.size_text), words(tensor.dtype)] if tensor else []


def _facts(facts: dict[str, str], words: Words) -> list[int]:
    return [number for fact in facts.items() for number in words.of(fact)]


def _counts(counts: Counter[str], words: Words) -> list[int]:
    return [number for text, count in counts.items() for number in (words(text), count)]
