"""Fitting: the deepest cut of a picture that fits a page.

A guess of its size spares Graphviz what is too large.
"""

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from tbscope.page.glyphs import Box, Item, box_around
from tbscope.saving.cut import Cut
from tbscope.saving.folds import Folds
from tbscope.saving.picture import Glyph

__all__ = ["PAGE", "fitting"]

_Drawn = TypeVar("_Drawn")

PAGE = (700, 1000)
"""The width and the height of a page in points, for letters of 11 points."""

_LETTER, _PAD, _NODE, _GAP, _LABEL = 5.2, 20, 26, 17, 11
# What the sides and the titles of open boxes add: at their tops, and at their feet.
_TOP, _FOOT = 22, 8
# How far above the height of a page a guess may be.
_MOST = 1.05


def fitting(
    folds: Folds,
    draw: Callable[[Cut], _Drawn],
    size_of: Callable[[_Drawn], tuple[float, float]],
) -> _Drawn:
    """Return the drawing of the deepest cut that fits a page; of the shallowest if none does.

    Args:
        folds: A picture with its runs.
        draw: Draws a cut.
        size_of: Gives the size of a drawing in points.
    """
    cut = Cut(folds.picture, None, folds)
    while True:
        width, height = _guess(cut)
        if (width <= PAGE[0] and height <= _MOST * PAGE[1]) or not cut.depth:
            drawn = draw(cut)
            width, height = size_of(drawn)
            if not cut.depth or (width <= PAGE[0] and height <= PAGE[1]):
                return drawn
        cut = Cut(folds.picture, cut.depth - 1, folds)


def _guess(cut: Cut) -> tuple[float, float]:
    """Return about how wide, at least, and how high Graphviz draws a cut."""
    tops = _tops(cut)
    ranks: Counter[int] = Counter()
    for glyph, top in tops.items():
        text = max(cut.title(glyph), key=len)
        ranks[round(top / (_NODE + _GAP + _LABEL))] += round(len(text) * _LETTER + _PAD)
    return max(ranks.values(), default=0), max(tops.values(), default=0) + _NODE


def _tops(cut: Cut) -> dict[Glyph, float]:
    """Return where each shape is at the highest: below all that it reads."""
    shapes = [one for one in cut.walk() if isinstance(one, Item) or not cut.is_open(one)]
    around = {shape: _boxes_around(shape) for shape in shapes}
    tops = {shape: float(_TOP * len(around[shape])) for shape in shapes}
    waiting = Counter(line.end for line in cut.lines)
    after: dict[Glyph, list[tuple[Glyph, int]]] = {}
    for line in cut.lines:
        after.setdefault(line.start, []).append((line.end, _LABEL if line.text else 0))
    ready = [shape for shape in shapes if not waiting[shape]]
    while ready:
        shape = ready.pop()
        for end, label in after.get(shape, ()):
            sides = _TOP * len(around[end] - around[shape]) + _FOOT * len(
                around[shape] - around[end]
            )
            tops[end] = max(tops[end], tops[shape] + _NODE + _GAP + label + sides)
            waiting[end] -= 1
            if not waiting[end]:
                ready.append(end)
    return tops


def _boxes_around(shape: Glyph) -> set[Box]:
    found = set()
    box = box_around(shape)
    while box is not None and box.parent is not None:
        found.add(box)
        box = box.parent
    return found
