"""High degree: the glyphs that the page puts aside for far more lines than others on the level.

Source: tensorboard/plugins/graph/tf_graph_common/render.ts:2038-2134,
`extractHighInOrOutDegree`
"""

from collections.abc import Collection, Hashable, Mapping
from typing import Literal, TypeAlias, TypeVar

from tbscope.page.constants import CROWD_SIZE, DEGREE_LIMIT

__all__ = ["Crowding", "find_crowded"]

Crowding: TypeAlias = Literal["many inputs", "many readers"]
"""The side on which the lines are too many."""

_Glyph = TypeVar("_Glyph", bound=Hashable)
_Lines: TypeAlias = Mapping[tuple[_Glyph, _Glyph], bool]


def find_crowded(glyphs: Collection[_Glyph], lines: _Lines[_Glyph]) -> dict[_Glyph, Crowding]:
    """Return the glyphs with far more lines than the others; none if the level has few glyphs.

    Args:
        glyphs: The glyphs of a level that are still in the flow, as objects or numbers.
        lines: Whether a line carries data (or only control), by its ends (from, to).
    """
    if len(glyphs) < CROWD_SIZE:
        return {}
    crowded: dict[_Glyph, Crowding] = dict.fromkeys(
        _outliers(_degrees(glyphs, lines, side=1), spread=1), "many inputs"
    )
    for glyph in _outliers(_degrees(glyphs, lines, side=0), spread=4):
        crowded.setdefault(glyph, "many readers")
    return crowded


def _degrees(glyphs: Collection[_Glyph], lines: _Lines[_Glyph], *, side: int) -> dict[_Glyph, int]:
    """Return the number of lines of each glyph on one side; control lines count if no data does.

    Args:
        glyphs: The glyphs.
        lines: As for `find_crowded`.
        side: 0 for lines to readers, 1 for lines from sources.
    """
    data = dict.fromkeys(glyphs, 0)
    control = data.copy()
    for ends, carries in lines.items():
        if carries:
            data[ends[side]] += 1
        else:
            control[ends[side]] += 1
    return {glyph: count or control[glyph] for glyph, count in data.items()}


def _outliers(degrees: Mapping[_Glyph, int], *, spread: int) -> list[_Glyph]:
    """Return the glyphs whose degree exceeds the upper quartile by more than some spreads.

    A spread is the distance between the lower and the upper quartile.
    """
    ordered = sorted(degrees.values())
    # JavaScript rounds halves up.
    lower, upper = (ordered[(len(ordered) * quarters + 2) // 4] for quarters in (1, 3))
    limit = max(upper + (upper - lower) * spread, DEGREE_LIMIT)
    return [glyph for glyph, degree in degrees.items() if degree > limit]
