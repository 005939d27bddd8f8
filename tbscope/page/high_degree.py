"""Crowds: what the page puts aside since it has far more lines than the others on its level.

Source: tensorboard/plugins/graph/tf_graph_common/render.ts:2038-2134,
`extractHighInOrOutDegree`
"""

from collections.abc import Collection, Hashable, Mapping
from typing import Literal, TypeAlias, TypeVar

from tbscope.page.constants import CROWD_SIZE, DEGREE_LIMIT

__all__ = ["Crowding", "find_crowded"]

Crowding: TypeAlias = Literal["many inputs", "many readers"]
"""On which side the lines are too many."""

_Glyph = TypeVar("_Glyph", bound=Hashable)
_Lines: TypeAlias = Mapping[tuple[_Glyph, _Glyph], bool]


def find_crowded(glyphs: Collection[_Glyph], lines: _Lines[_Glyph]) -> dict[_Glyph, Crowding]:
    """Find the glyphs with far more lines than the others; none where there are few glyphs.

    Args:
        glyphs: All of a level that are still in the flow, in any form.
        lines: Which one another reads (from, to), and whether data goes there.
    """
    if len(glyphs) < CROWD_SIZE:
        return {}
    found: dict[_Glyph, Crowding] = dict.fromkeys(
        _outliers(_degrees(glyphs, lines, side=1), spread=1), "many inputs"
    )
    for glyph in _outliers(_degrees(glyphs, lines, side=0), spread=4):
        found.setdefault(glyph, "many readers")
    return found


def _degrees(glyphs: Collection[_Glyph], lines: _Lines[_Glyph], *, side: int) -> dict[_Glyph, int]:
    """How many lines each glyph has on one side; those of control count where there is no data."""
    data = dict.fromkeys(glyphs, 0)
    waits = data.copy()
    for ends, carries in lines.items():
        if carries:
            data[ends[side]] += 1
        else:
            waits[ends[side]] += 1
    return {glyph: count or waits[glyph] for glyph, count in data.items()}


def _outliers(degrees: Mapping[_Glyph, int], *, spread: int) -> list[_Glyph]:
    """The glyphs whose degree is above the upper quartile by more than some spreads."""
    ordered = sorted(degrees.values())
    # JavaScript rounds halves up.
    lower, upper = (ordered[(len(ordered) * quarters + 2) // 4] for quarters in (1, 3))
    limit = max(upper + (upper - lower) * spread, DEGREE_LIMIT)
    return [glyph for glyph, degree in degrees.items() if degree > limit]
