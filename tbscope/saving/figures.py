"""Figures: numbers of nodes and boxes that a viewer asks for when somebody colours by them."""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tbscope.page.glyphs import Box
from tbscope.saving.picture import Glyph, Picture

__all__ = ["ASKED", "Figure", "activation_bytes", "figure_by_names", "largest_at_the_top"]

ASKED = {"activation_bytes": "activations"}
"""The titles of figures that take a look at each node of a picture."""

_BITS = re.compile(r"\d+")
_FLAG_BITS = 8
_ENDS = ("Input", "Output")


class Figure(NamedTuple):
    """One number of each of some nodes and boxes.

    Attributes:
        key: What a card calls it (`saved_bytes`), which decides on its unit.
        title: What the viewer calls it.
        numbers: The numbers.
    """

    key: str
    title: str
    numbers: Mapping[Glyph, float]


def activation_bytes(picture: Picture) -> Figure:
    """Return the bytes of the results of each node, as far as their sizes and types are known."""
    numbers: dict[Glyph, float] = {}
    for item in picture.items:
        if not item.embedded and picture.class_of(item) not in _ENDS:
            known = [one for one in picture.outputs(item) if one.sizes is not None]
            if known:
                numbers[item] = sum(one.elements * _element_bits(one.dtype) / 8 for one in known)
    return Figure("activation_bytes", ASKED["activation_bytes"], numbers)


def _element_bits(dtype: str) -> int:
    """Return how many bits an element takes, which its type tells: `float8_e4m3fn`, `bool`."""
    bits = _BITS.search(dtype)
    return int(bits[0]) if bits else _FLAG_BITS if dtype == "bool" else 0


def figure_by_names(
    picture: Picture, key: str, title: str, numbers: Mapping[str, float]
) -> Figure | None:
    """Return the figure of a picture that has numbers by the names of nodes and boxes.

    Args:
        picture: The picture.
        key: What a card calls the figure.
        title: What the viewer calls it.
        numbers: The numbers by the names of another drawing, which may have one box around all,
            or lack it.
    Returns:
        The figure, or None if nothing in the picture has one of the names.
    """
    glyphs: list[Glyph] = [*picture.boxes, *picture.items]
    known = {glyph.name: glyph for glyph in glyphs}
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
    found = max(of_drawings, key=len)
    return Figure(key, title, found) if found else None


def largest_at_the_top(picture: Picture, number: Callable[[Glyph], float | None]) -> float:
    """Return the largest number on the first level with several boxes and nodes; 1 for none."""
    tops = picture.children(picture.root)
    while len(tops) == 1 and isinstance(tops[0], Box):
        tops = picture.children(tops[0])
    return max((number(top) or 0 for top in tops), default=0) or 1
