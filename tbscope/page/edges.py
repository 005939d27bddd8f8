"""Edges: on which level the page draws each, and the sides of boxes that its data crosses.

Source: tensorboard/plugins/graph/tf_graph_common/hierarchy.ts:790, `addEdges`
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tbscope.page.glyphs import Box, Glyph, Item
from tbscope.page.op_types import is_circle

__all__ = ["Doors", "Edges", "Link", "Links", "read_through"]


class Link(NamedTuple):
    """A line between two glyphs of one level.

    Attributes:
        data: How many data edges it stands for.
        control: How many control edges.
    """

    data: int
    control: int


Links: TypeAlias = Mapping[tuple[Glyph, Glyph], Link]
"""Lines by the glyphs at their ends: from, to."""

_DATA, _CONTROL = Link(1, 0), Link(0, 1)


@dataclass(frozen=True, slots=True)
class Doors:
    """Where data enters and leaves boxes.

    Attributes:
        entered: The glyphs that read something from outside of the box they stand in.
        left: The glyphs that something outside of it reads.
    """

    entered: set[Glyph] = field(default_factory=set)
    left: set[Glyph] = field(default_factory=set)


class Edges:
    """All edges of a graph, found in one walk.

    Attributes:
        links: The lines among the children of each box.
        doors: Where data crosses the sides of boxes.
    """

    __slots__ = ("doors", "links")

    def __init__(self, items: Iterable[Item]) -> None:
        self.links: dict[Box, dict[tuple[Glyph, Glyph], Link]] = {}
        self.doors = Doors()
        for item in items:
            if not item.embedded:
                for source in item.sources:
                    if not source.embedded:
                        self._add(source, item, False)
                    elif source.sources or source.controls:
                        self._add_through(source, item, False)
                for source in item.controls:
                    if not source.embedded:
                        self._add(source, item, True)
                    else:
                        self._add_through(source, item, True)

    def _add_through(self, embedded: Item, reader: Item, control: bool) -> None:
        """Count the edges of an embedded node as those of its reader."""
        for source, waits in read_through(embedded, control):
            if not source.embedded and source is not reader:
                self._add(source, reader, waits)

    def _add(self, source: Item, reader: Item, control: bool) -> None:
        """Count an edge in the innermost box around both ends, and the sides up to there."""
        start: Glyph = source
        end: Glyph = reader
        above, below = source.box, reader.box
        while above is not below:
            if above.depth >= below.depth:
                if not control:
                    self.doors.left.add(start)
                start = above
                assert above.parent is not None, "the root is around all"
                above = above.parent
            else:
                if not control:
                    self.doors.entered.add(end)
                end = below
                assert below.parent is not None, "the root is around all"
                below = below.parent
        links = self.links.get(above)
        if links is None:
            links = self.links[above] = {}
        known = links.get((start, end))
        if known is None:
            # Most lines stand for one edge, and these share one link.
            links[start, end] = _CONTROL if control else _DATA
        else:
            links[start, end] = Link(known.data + (not control), known.control + control)


def read_through(embedded: Item, control: bool) -> Iterator[tuple[Item, bool]]:
    """The nodes that are read through an embedded one, and whether the reader only waits.

    Of a circle the kind of its own edges counts, even where the reader only waits for the
    circle; of a summary icon, the kind of the edge that leaves it.

    Args:
        embedded: The node between.
        control: Whether its reader only waits for it.
    """
    circle = is_circle(embedded.op)
    for sources, waits in ((embedded.sources, False), (embedded.controls, True)):
        for source in sources:
            yield source, waits if circle else control
