"""Two graphs of a log as one picture: all that either has, and what became of it."""

from tbscope.comparing.difference import Difference
from tbscope.comparing.reading import reading_of
from tbscope.ir.graph import Graph
from tbscope.page.glyphs import Box, Item
from tbscope.saving.picture import Picture, picture_of

__all__ = ["picture_of_difference"]


def picture_of_difference(before: Graph, after: Graph) -> Picture:
    """Return the picture of what was added, removed and changed between two graphs.

    Raises:
        GraphError: One of them breaks an invariant of graphs.
    """
    difference = Difference(reading_of(before), reading_of(after))
    picture = picture_of(difference.graph, color_by="difference")
    glyphs: list[Box | Item] = [*picture.boxes, *picture.items]
    named = {one.name: one for one in glyphs}
    tops = [one.name for one in picture.children(picture.root) if isinstance(one, Box)]

    def find(name: str) -> Box | Item | None:
        """Return what is drawn of a part; its box, where a drawing has called it otherwise."""
        parts = name.split(".") if name else []
        while parts:
            path = "/".join(parts)
            for way in (path, *(f"{top}/{path}" for top in tops)):
                if way in named:
                    return named[way]
            parts.pop()
        return None

    picture.differences = [(line, find(name)) for line, name in difference.lines]
    return picture
