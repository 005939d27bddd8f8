"""Lines among the children of each box of a picture, into the box, and out of it.

Lines are found box by box, when a box is opened: most boxes of a large graph are never opened.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias

from tbscope.page.glyphs import Box, Item
from tbscope.saving.box_tree import Glyph, NodeInput, Picture

__all__ = ["JOINT", "LevelEdge", "Lines", "LinesOf", "columns_of"]

JOINT = -1
"""The column of operations of several ranks together."""

# Ranks in the form of `tbscope.ir.metadata`, as they are in the names of a drawing.
_RANKS = re.compile(r"(stage_\d+_)?ranks?_\d[\d,_a-z-]*")


@dataclass(slots=True, eq=False)
class LevelEdge:
    """The tensors from one glyph of a level to another, each once.

    Attributes:
        tensors: The outputs of nodes that flow along it.
        waits: Whether it includes a control dependency.
    """

    tensors: dict[tuple[Item, int], None] = field(default_factory=dict)
    waits: bool = False


LinesOf: TypeAlias = dict[tuple[Glyph, Glyph], LevelEdge]
"""Lines by the glyphs at their ends."""


class Around(NamedTuple):
    """The lines of one box.

    Attributes:
        within: From child to child.
        entering: From a node outside to a child.
        leaving: From a child to a node outside.
    """

    within: LinesOf
    entering: LinesOf
    leaving: LinesOf


class Lines:
    """The lines of a picture; safe for several threads."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self._order = {item: at for at, item in enumerate(picture.items)}
        self._known: dict[Box, Around] = {}

    def __getitem__(self, box: Box) -> Around:
        """The lines of a box."""
        known = self._known.get(box)
        if known is None:
            known = self._known[box] = self._find(box)
        return known

    @cached_property
    def _readers(self) -> dict[Item, list[Item]]:
        """The readers of each node, also through constant nodes (circles)."""
        readers: dict[Item, list[Item]] = {}
        for item in self._picture.items:
            if not item.embedded:
                for source in _sources(item):
                    readers.setdefault(source, []).append(item)
        return readers

    def _find(self, box: Box) -> Around:
        below, child_of = _below(box)
        below.sort(key=self._order.__getitem__)
        around = Around({}, {}, {})
        outside: dict[Item, None] = {}
        for item in below:
            end = child_of.get(item.box, item)
            if any(child_of.get(source.box, source) is not end for source in _sources(item)):
                for read in self._picture.flow(item):
                    source = read.source
                    start: Glyph = child_of.get(source.box, source)
                    if start is source and source.box is not box:
                        _join(around.entering, (source, end), read)
                    elif start is not end:
                        _join(around.within, (start, end), read)
            if box.parent is not None:
                for reader in self._readers.get(item, ()):
                    if reader.box is not box and reader.box not in child_of:
                        outside[reader] = None
        for reader in sorted(outside, key=self._order.__getitem__):
            for read in self._picture.flow(reader):
                source = read.source
                if source.box is box or source.box in child_of:
                    _join(around.leaving, (child_of.get(source.box, source), reader), read)
        return around


def _below(box: Box) -> tuple[list[Item], dict[Box, Box]]:
    """Return the nodes in a box at any depth, and the child that contains each inner box."""
    items: list[Item] = []
    child_of: dict[Box, Box] = {}
    pending = [(child, child) for child in box.children.values()]
    while pending:
        glyph, child = pending.pop()
        if isinstance(glyph, Item):
            items.append(glyph)
        else:
            assert isinstance(child, Box), "only a box has something in it"
            child_of[glyph] = child
            pending += [(inner, child) for inner in glyph.children.values()]
    return items, child_of


def _sources(item: Item) -> list[Item]:
    """Return the nodes at the starts of lines to a node; a circle is replaced by its own sources.

    For most nodes they are all in the same child of a box: no line is needed, and so the inputs
    need not be parsed.
    """
    sources: list[Item] = []
    seen = {item}
    pending = [*item.sources, *item.controls]
    for source in pending:
        if not source.embedded:
            if source is not item:
                sources.append(source)
        elif source not in seen:
            seen.add(source)
            pending += [*source.sources, *source.controls]
    return sources


def _join(lines: LinesOf, ends: tuple[Glyph, Glyph], read: NodeInput) -> None:
    line = lines.setdefault(ends, LevelEdge())
    # A tensor with several readers counts once.
    if read.waits:
        line.waits = True
    else:
        line.tensors[read.source, read.output] = None


def columns_of(picture: Picture, box: Box, within: LinesOf) -> list[int]:
    """Return the column of each child of a box, or `JOINT`; empty if it has no two boxes of ranks.

    Args:
        picture: The picture.
        box: The box.
        within: The lines among its children.
    """
    children = picture.children(box)
    boxes = [
        child
        for child in children
        if isinstance(child, Box) and _RANKS.fullmatch(child.label) and not picture.class_of(child)
    ]
    if len(boxes) < 2:
        return []
    columns: dict[Glyph, int] = {child: at for at, child in enumerate(boxes)}
    beside: dict[Glyph, set[int]] = {}
    for start, end in within:
        for child_end, rank_box in ((start, end), (end, start)):
            if rank_box in columns:
                beside.setdefault(child_end, set()).add(columns[rank_box])
    for child in children:
        # A child with lines to one rank alone is in the column of that rank.
        near = beside.get(child, set())
        columns.setdefault(child, next(iter(near)) if len(near) == 1 else JOINT)
    return [columns[child] for child in children]
