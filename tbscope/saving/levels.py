"""Levels: a picture as answers to its viewer, box by box.

A viewer requests the level of the root first, and the level of another box when the box is opened;
the info card of a node when the node is selected; the index for a search. An answer is JSON in
which boxes and nodes are numbers: the root is 0, boxes come next, each after its parent, then the
nodes. Texts are indices into the list "words" of the answer.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import Any, NamedTuple

from tbscope.errors import ArgumentError
from tbscope.messages import shown
from tbscope.page.glyphs import Box, Item
from tbscope.saving.box_tree import (
    ENDS,
    FIGURES,
    LARGEST,
    Glyph,
    Lines,
    LinesOf,
    NodeInput,
    Picture,
    Tensor,
    columns_of,
)
from tbscope.saving.color_words import Stages, Texts, in_order
from tbscope.saving.repeats import fold_repeats

_ROOT, _BOX, _NODE, _CIRCLE = range(4)


# -- figures on request ------------------------------------------------------------------------


ASKED = {"activation_bytes": "activations"}
"""The titles of figures on request, which are computed from each node of a picture."""

_BITS = re.compile(r"\d+")
_FLAG_BITS = 8


class LevelFigure(NamedTuple):
    """A number for each of some nodes and boxes.

    Attributes:
        key: Its name on info cards (`saved_bytes`), which decides its unit.
        title: Its title in the viewer.
        numbers: The numbers.
    """

    key: str
    title: str
    numbers: Mapping[Glyph, float]


def activation_bytes(picture: Picture) -> LevelFigure:
    """Return the bytes of the outputs of each node; outputs of unknown sizes are left out."""
    numbers: dict[Glyph, float] = {}
    for item in picture.items:
        if not item.embedded and picture.class_of(item) not in ENDS:
            sized = [output for output in picture.outputs(item) if output.sizes is not None]
            if sized:
                numbers[item] = sum(
                    output.elements * _element_bits(output.dtype) / 8 for output in sized
                )
    return LevelFigure("activation_bytes", ASKED["activation_bytes"], numbers)


def _element_bits(dtype: str) -> int:
    """Return the bits of an element, from the name of its dtype: `float8_e4m3fn`, `bool`."""
    bits = _BITS.search(dtype)
    return int(bits[0]) if bits else _FLAG_BITS if dtype == "bool" else 0


def figure_by_names(
    picture: Picture, key: str, title: str, numbers: Mapping[str, float]
) -> LevelFigure | None:
    """Return the figure of a picture with numbers by the names of nodes and boxes.

    Args:
        picture: The picture.
        key: The name of the figure on info cards.
        title: Its title in the viewer.
        numbers: The numbers by the names of another drawing, which may have an outermost box that
            this one lacks, or lack the one of this picture.
    Returns:
        The figure, or None if nothing in the picture has one of the names.
    """
    known = {glyph.name: glyph for glyph in picture.glyphs}
    tops = [child.name for child in picture.children(picture.root) if isinstance(child, Box)]
    drawings = [numbers]
    if len(tops) == 1:
        drawings.append({f"{tops[0]}/{name}": number for name, number in numbers.items()})
    if len({name.partition("/")[0] for name in numbers}) == 1:
        drawings.append({name.partition("/")[2]: number for name, number in numbers.items()})
    of_drawings = [
        {known[name]: number for name, number in drawing.items() if name in known}
        for drawing in drawings
    ]
    matches = max(of_drawings, key=len)
    return LevelFigure(key, title, matches) if matches else None


def largest_at_the_top(picture: Picture, number: Callable[[Glyph], float | None]) -> float:
    """Return the largest number on the first level with several children, or 1 if there is none."""
    tops = picture.children(picture.root)
    while len(tops) == 1 and isinstance(tops[0], Box):
        tops = picture.children(tops[0])
    return max((number(top) or 0 for top in tops), default=0) or 1


# -- answers -----------------------------------------------------------------------------------


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


class Levels:
    """The answers for one picture.

    Attributes:
        picture: The picture.
        glyphs: The root, all boxes and all nodes, by number.
        number: The number of each of these.
        inside: The number of nodes in each box, at any depth, without circles.
    """

    def __init__(self, picture: Picture) -> None:
        self._structures = fold_repeats(picture)
        self.picture = picture
        self.glyphs = [picture.root, *picture.glyphs]
        self.number = {glyph: number for number, glyph in enumerate(self.glyphs)}
        self.inside: Counter[Box] = Counter()
        # The structures of the boxes in each box, at any depth.
        self._same: dict[Box, set[int]] = defaultdict(set)
        self._lines = Lines(picture)
        self._stages = Stages(picture)
        self._text = Texts(picture, self._stages)
        for item in picture.items:
            if not item.embedded:
                self.inside[item.box] += 1
        for box in reversed(picture.boxes):
            assert box.parent is not None, "the root alone has no parent"
            self.inside[box.parent] += self.inside[box]
            self._same[box.parent] |= {self._structures[box], *self._same[box]}

    def head(self, words: Words) -> dict[str, object]:
        """Return the first answer: the graph, its colour modes, figures, and first levels."""
        picture = self.picture
        return {
            "title": picture.title,
            "notes": list(picture.notes),
            "differences": [
                [words(line), -1 if glyph is None else self.number[glyph]]
                for line, glyph in picture.differences or ()
            ],
            "nodes": self.inside[picture.root],
            "boxes": len(picture.boxes),
            "modes": {mode: _counts(legend, words) for mode, legend in self._legends.items()},
            "equal": [
                number
                for structure, boxes in self._equal.items()
                for number in (
                    structure,
                    words(picture.class_of(boxes[0]) or boxes[0].label),
                    len(boxes),
                )
            ],
            "figures": self._figures,
            "asked": ASKED,
            "root": self.card(0, words),
            "levels": [self.level(self.number[box], words) for box in self._opened],
        }

    @cached_property
    def _opened(self) -> list[Box]:
        """The boxes that are open initially."""
        opened = [self.picture.root]
        # A level with a single box shows little, so that box is opened, too.
        while len(alone := self.picture.children(opened[-1])) == 1 and isinstance(alone[0], Box):
            opened.append(alone[0])
        return opened

    def level(self, number: int, words: Words) -> dict[str, Any]:
        """Return the level of an open box.

        Args:
            number: The number of the box.
            words: The texts of the answer.
        Returns:
            A column for each property of the children of the box and of the circles that they
            read, and the lines with their tensors: among the children, from outside to a child,
            and from a child to the outside.
        """
        box = self.glyphs[number]
        assert isinstance(box, Box), "only a box has a level"
        children, lines = self.picture.children(box), self._lines.of(box)
        circles = {child: self._circles(child) for child in children if isinstance(child, Item)}
        shown: list[Glyph] = [*children]
        shown += dict.fromkeys(circle for consts in circles.values() for circle in consts)
        picture, structures, inside = self.picture, self._structures, self._text.inside

        def of_boxes(give: Callable[[Box], object]) -> list[object]:
            return [give(glyph) if isinstance(glyph, Box) else 0 for glyph in shown]

        return {
            "box": number,
            "children": len(children),
            "at": [self.number[glyph] for glyph in shown],
            "kind": [_kind(glyph) for glyph in shown],
            "label": words.of(glyph.label for glyph in shown),
            "name": words.of(glyph.name for glyph in shown),
            "second": words.of(self._second_line(glyph) for glyph in shown),
            "texts": {
                mode: words.of(self._text.of(mode).get(glyph, "") for glyph in shown)
                for mode in self._legends
            },
            "class": words.of(self._stages.words_of(glyph) for glyph in shown),
            "structure": of_boxes(lambda inner: structures[inner]),
            "inside": of_boxes(lambda inner: self.inside[inner]),
            "size": of_boxes(
                lambda inner: len(picture.children(inner)) // max(picture.repeats(inner), 1)
            ),
            "times": of_boxes(picture.repeats),
            "shares": of_boxes(
                lambda inner: {
                    mode: _counts(inside(mode)[inner].shares, words) for mode in self._legends
                }
            ),
            "below": of_boxes(
                lambda inner: {mode: words.of(inside(mode)[inner].below) for mode in self._legends}
            ),
            "same": of_boxes(lambda inner: sorted(self._same[inner])),
            "outputs": [
                [_type(output, words) for output in picture.outputs(glyph)] for glyph in shown
            ],
            "figures": {
                key: [picture.figure(glyph, key) for glyph in shown] for key in self._figures
            },
            "circles": [
                [self.number[circle] for circle in circles.get(glyph, ())]
                if isinstance(glyph, Item)
                else []
                for glyph in shown
            ],
            "back": self._stages.flows_back(box),
            "columns": columns_of(picture, box, lines.within),
            "lanes": [[*lane] for lane in self._stages.lanes(box)],
            "counterparts": [
                [*map(self._way_out, self._stages.counterparts(glyph))] for glyph in shown
            ],
            "lines": self._drawn(lines.within, words),
            "entries": self._drawn(lines.entering, words, outside=0, of=box),
            "exits": self._drawn(lines.leaving, words, outside=1, of=box),
        }

    def require(self, number: int, kind: str) -> int:
        """Return the number of a box, or of a node for its card.

        Raises:
            ArgumentError: No box or node has the number, or a node is requested as a level.
        """
        known = 0 <= number < len(self.glyphs)
        if not known or (kind == "level" and not isinstance(self.glyphs[number], Box)):
            raise ArgumentError(
                f"the picture has no {kind} of the number {number}",
                why=f"its boxes have numbers up to {len(self.picture.boxes)}, its nodes more",
                fix="open the graph again",
            )
        return number

    def figures(self, figures: Iterable[LevelFigure]) -> list[dict[str, object]]:
        """Return figures by the numbers of nodes and boxes; boxes without a number get the sum."""
        picture, answers = self.picture, []
        for figure in figures:
            join = max if figure.key in LARGEST else sum
            numbers = dict(figure.numbers)
            for box in (*reversed(picture.boxes), picture.root):
                inside = [numbers[child] for child in picture.children(box) if child in numbers]
                if inside and box not in numbers:
                    numbers[box] = join(inside)
            answers.append(
                {
                    "key": figure.key,
                    "title": figure.title,
                    "most": largest_at_the_top(picture, numbers.get),
                    "at": [self.number[glyph] for glyph in numbers],
                    "numbers": list(numbers.values()),
                }
            )
        return answers

    def asked(self, key: str) -> list[dict[str, Any]]:
        """Return a figure of `ASKED`.

        Raises:
            ArgumentError: `key` is not in `ASKED`.
        """
        if key not in ASKED:
            raise ArgumentError(
                f"a picture has no figure {shown(key)}",
                why=f"those that it counts are {', '.join(ASKED)}",
                fix="open the graph again",
            )
        return self.figures([activation_bytes(self.picture)])

    def index(self, words: Words) -> dict[str, Any]:
        """Return a column for each property by which a search finds nodes and boxes."""
        picture, glyphs = self.picture, self.glyphs
        return {
            "around": [self._around(glyph) for glyph in glyphs],
            "name": words.of(glyph.name for glyph in glyphs),
            "label": words.of(glyph.label for glyph in glyphs),
            "class": words.of(self._stages.words_of(glyph) for glyph in glyphs),
            "kind": words.of(picture.mark(glyph, "kind") for glyph in glyphs),
            "outputs": [
                words.of(f"{output.size_text} {output.dtype}" for output in picture.outputs(glyph))
                for glyph in glyphs
            ],
            "facts": [_facts(picture.facts(glyph), words) for glyph in glyphs],
        }

    @cached_property
    def _readers(self) -> dict[Item, list[tuple[Item, NodeInput]]]:
        """The readers of each node, circles included, with the inputs that read it."""
        readers: dict[Item, list[tuple[Item, NodeInput]]] = {}
        for item in self.picture.items:
            for read in self.picture.reads(item):
                readers.setdefault(read.source, []).append((item, read))
        return readers

    # -- lines -------------------------------------------------------------------------------

    def _drawn(
        self, lines: LinesOf, words: Words, *, outside: int = 0, of: Box | None = None
    ) -> list[list[object]]:
        """Return lines as numbers: start, end, flags, and the types of the tensors.

        The flags are 1 for a control dependency, plus 2 for a line from one stage to another. A
        line that enters or leaves a box has the label of its outer end, too.
        """
        drawn = []
        for (start, end), line in lines.items():
            types = [
                _type(self.picture.type_of(source, output), words)
                for source, output in line.tensors
            ]
            how = int(line.waits)
            if of is not None:
                outer = (start, end)[outside]
                assert isinstance(outer, Item), "a line leads from a node, and to one"
                how += 2 * (self._stages.of[outer.box] is not self._stages.of[of])
            row = [self.number[start], self.number[end], how, types]
            drawn.append(row if of is None else [*row, words(outer.label)])
        return drawn

    # -- cards -------------------------------------------------------------------------------

    def card(self, number: int, words: Words) -> dict[str, object]:
        """Return the info card of a node or a box: its facts, outputs, links and figures."""
        picture, glyph = self.picture, self.glyphs[number]
        links: dict[str, list[tuple[Glyph, str]]] = defaultdict(list)
        if isinstance(glyph, Item):
            for read in picture.reads(glyph):
                kept = "Parameters and constants" if read.source.embedded else "Inputs"
                title = "Waits for" if read.waits else kept
                links[title].append((read.source, self._sizes(read)))
            for reader, read in self._readers.get(glyph, ()):
                links["Read by"].append((reader, self._sizes(read)))
        elif glyph.parent is not None:
            _, entering, leaving = self._lines.of(glyph)
            for title, lines, end in (("Inputs", entering, 0), ("Read by", leaving, 1)):
                crossing = {
                    (pair[end], at): picture.type_of(*at)
                    for pair, line in lines.items()
                    for at in line.tensors
                }
                for (neighbour, _), tensor in crossing.items():
                    links[title].append((neighbour, tensor.size_text if tensor else ""))
            for equal_box in self._equal.get(self._structures[glyph], ()):
                if equal_box is not glyph:
                    links["Boxes with the same inside"].append((equal_box, ""))
        for title, others in self._stages.links.get(glyph, {}).items():
            links[title] += [(linked, "") for linked in others]
        return {
            "facts": _facts(picture.facts(glyph), words),
            "outputs": [_type(output, words) for output in picture.outputs(glyph)],
            "device": words(picture.device(glyph)),
            "links": [
                [
                    words(title),
                    [
                        number
                        for linked, text in entries
                        for number in (self.number[linked], words(linked.name), words(text))
                    ],
                ]
                for title, entries in links.items()
            ],
            "figures": {key: picture.figure(glyph, key) for key in self._figures},
        }

    def _sizes(self, read: NodeInput) -> str:
        tensor = self.picture.tensor(read)
        return tensor.size_text if tensor else ""

    def _second_line(self, glyph: Glyph) -> str:
        own = self.picture.class_of(glyph)
        line = self.picture.second_line(glyph) or ("" if own else self._stages.words_of(glyph))
        fates = self._fates(glyph) if self.picture.differences is not None else ""
        return " · ".join(text for text in (fates, line) if text)

    def _fates(self, glyph: Glyph) -> str:
        """Return a node's difference ("added"), or those of a box with counts; empty if equal."""
        if isinstance(glyph, Item):
            fate = self.picture.mark(glyph, "label")
            return "" if fate == "same" else fate
        counts = self._text.inside("label")[glyph].shares
        differ = {fate: count for fate, count in counts.items() if fate != "same"}
        if len(counts) == 1:
            return "".join(differ)
        return ", ".join(f"{count} {fate}" for fate, count in sorted(differ.items()))

    def _way_out(self, glyph: Glyph) -> list[int]:
        """Return the numbers of a node or a box and of its enclosing boxes, innermost first."""
        numbers: list[int] = []
        at = self.number[glyph]
        while at > 0:
            numbers.append(at)
            at = self._around(self.glyphs[at])
        return numbers

    def _around(self, glyph: Glyph) -> int:
        """Return the number of the box that draws a glyph; a circle is drawn beside its reader."""
        if isinstance(glyph, Box):
            return -1 if glyph.parent is None else self.number[glyph.parent]
        seen = {glyph}
        while glyph.embedded and self._readers.get(glyph):
            glyph = self._readers[glyph][0][0]
            if glyph in seen:
                break
            seen.add(glyph)
        return self.number[glyph.box]

    def _circles(self, item: Item) -> list[Item]:
        """Return the circles at a node: those that it reads, and those that these read."""
        circles: dict[Item, None] = {}
        pending = [item]
        while pending:
            for read in self.picture.reads(pending.pop()):
                if read.source.embedded and read.source not in circles:
                    circles[read.source] = None
                    pending.append(read.source)
        return list(circles)

    # -- colours -----------------------------------------------------------------------------

    @cached_property
    def _equal(self) -> dict[int, list[Box]]:
        """The boxes of each structure that several boxes have, the most frequent first."""
        equal: dict[int, list[Box]] = {}
        for box in self.picture.boxes:
            equal.setdefault(self._structures[box], []).append(box)
        several = [(number, boxes) for number, boxes in equal.items() if len(boxes) > 1]
        return dict(sorted(several, key=lambda pair: (-len(pair[1]), pair[0])))

    @cached_property
    def _figures(self) -> dict[str, dict[str, object]]:
        """The title of each figure that the picture has, and its largest number at the top."""
        figures = {}
        for key, title in FIGURES.items():
            if self.picture.figure(self.picture.root, key) is None:
                continue
            most = largest_at_the_top(self.picture, partial(self.picture.figure, key=key))
            figures[key] = {"title": title, "most": most}
        return figures

    @cached_property
    def _legends(self) -> dict[str, dict[str, int]]:
        """The number of nodes and boxes with each text, by mode.

        There are fewer colours than classes, and the first ones get them: so classes on the levels
        that are open initially come first, and classes of the forward pass before those that occur
        in backward passes and optimizer steps alone.
        """
        drawn = [glyph for glyph in self.glyphs[1:] if isinstance(glyph, Box) or not glyph.embedded]
        legends = {}
        for mode in self._text.modes:
            texts = self._text.of(mode)
            counts = Counter(texts[glyph] for glyph in drawn if glyph in texts)
            if counts:
                legends[mode] = in_order(mode, counts)
        if "class" in legends:
            texts = self._text.of("class")
            look = {
                texts.get(glyph) for box in self._opened for glyph in self.picture.children(box)
            }
            forward = {
                texts.get(glyph) for glyph in drawn if self._stages.of[_box_of(glyph)] is None
            }
            legends["class"] = dict(
                sorted(
                    legends["class"].items(),
                    key=lambda entry: (entry[0] not in look, entry[0] not in forward),
                )
            )
        return legends


def _box_of(glyph: Glyph) -> Box:
    return glyph if isinstance(glyph, Box) else glyph.box


def _kind(glyph: Glyph) -> int:
    if isinstance(glyph, Box):
        return _BOX if glyph.parent else _ROOT
    return _CIRCLE if glyph.embedded else _NODE


def _type(tensor: Tensor | None, words: Words) -> list[int]:
    """Return the elements, the sizes and the dtype of a tensor; empty if it is unknown."""
    return [tensor.elements, words(tensor.size_text), words(tensor.dtype)] if tensor else []


def _facts(facts: dict[str, str], words: Words) -> list[int]:
    return [number for fact in facts.items() for number in words.of(fact)]


def _counts(counts: Mapping[str, int], words: Words) -> list[int]:
    return [number for text, count in counts.items() for number in (words(text), count)]
