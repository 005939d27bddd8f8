"""Edges: the level on which the page draws each, and the borders of boxes that its data crosses.

Source: tensorboard/plugins/graph/tf_graph_common/hierarchy.ts:790, `addEdges`
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from tbscope.page.glyphs import Box, Glyph, Item
from tbscope.page.op_types import is_circle

__all__ = ["Crossings", "Edges", "Link", "Links", "read_through"]


class Link(NamedTuple):
    """A line between two glyphs of one level.

    Attributes:
        data: The number of data edges that it represents.
        control: The number of control edges that it represents.
    """

    data: int
    control: int


Links: TypeAlias = Mapping[tuple[Glyph, Glyph], Link]
"""Lines by the glyphs at their ends: from, to."""

_DATA, _CONTROL = Link(1, 0), Link(0, 1)


class Crossings(NamedTuple):
    """The glyphs at which data enters or leaves their boxes.

    Attributes:
        entered: The glyphs that read data from outside of the box that contains them.
        left: The glyphs whose data is read outside of that box.
    """

    entered: set[Glyph]
    left: set[Glyph]


class Edges:
    """All edges of a graph, found in one walk.

    Attributes:
        links: The lines among the children of each box.
        doors: The glyphs at which data enters or leaves their boxes.
    """

    __slots__ = ("doors", "links")

    def __init__(self, items: Iterable[Item]) -> None:
        self.links: dict[Box, dict[tuple[Glyph, Glyph], Link]] = {}
        self.doors = Crossings(set(), set())
        for item in items:
            if not item.embedded:
                for sources, waits in ((item.sources, False), (item.controls, True)):
                    for source in sources:
                        if not source.embedded:
                            self._add(source, item, waits)
                        elif source.sources or source.controls:
                            self._add_through(source, item, waits)

    def _add_through(self, embedded: Item, reader: Item, control: bool) -> None:
        """Count the edges of an embedded node as edges of its reader."""
        for source, waits in read_through(embedded, control):
            if not source.embedded and source is not reader:
                self._add(source, reader, waits)

    def _add(self, source: Item, reader: Item, control: bool) -> None:
        """Count an edge in the innermost box that contains both ends.

        The glyphs at whose borders its data leaves or enters boxes below are recorded, too.
        """
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
        link = links.get((start, end))
        if link is None:
            # Most lines represent a single edge, and share one of two links.
            links[start, end] = _CONTROL if control else _DATA
        else:
            links[start, end] = Link(link.data + (not control), link.control + control)


def read_through(embedded: Item, control: bool) -> Iterator[tuple[Item, bool]]:
    """Yield the sources of an embedded node, and whether its reader's edge is a control edge.

    For a circle, the kind of its own input edges counts, even if its reader has only a
    control dependency on it. For a summary icon, the kind of the edge to its reader counts.

    Args:
        embedded: The node between.
        control: Whether its reader has only a control dependency on it.
    """
    circle = is_circle(embedded.op)
    for sources, waits in ((embedded.sources, False), (embedded.controls, True)):
        for source in sources:
            yield source, waits if circle else control
