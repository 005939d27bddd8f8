"""Figures: numbers of nodes and boxes that a viewer asks for when somebody colours by them."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tbscope.page.glyphs import Box
from tbscope.saving.picture import LARGEST, Glyph, Picture

__all__ = ["ASKED", "Figure", "figure_answer", "figure_by_names", "largest_at_the_top"]


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


def _activation_bytes(picture: Picture) -> dict[Glyph, float]:
    """Return the bytes of the results of each node, as far as their sizes and types are known."""
    numbers: dict[Glyph, float] = {}
    for item in picture.items:
        if item.embedded or picture.class_of(item) in _ENDS:
            continue
        known = [one for one in picture.outputs(item) if one.sizes is not None]
        sizes = [one.elements * _element_bits(one.dtype) / 8 for one in known]
        if sizes:
            numbers[item] = sum(sizes)
    return numbers


def _element_bits(dtype: str) -> int:
    """Return how many bits an element takes, which its type tells: `float8_e4m3fn`, `bool`."""
    bits = _BITS.search(dtype)
    return int(bits[0]) if bits else _FLAG_BITS if dtype == "bool" else 0


ASKED: Mapping[str, tuple[str, Callable[[Picture], dict[Glyph, float]]]] = {
    "activation_bytes": ("activations", _activation_bytes),
}
"""Figures that take a look at each node of a picture: their titles, and what counts them."""


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
    outer = {name.partition("/")[0] for name in numbers}
    ways: list[Callable[[str], str]] = [lambda name: name]
    ways += [lambda name, top=top: f"{top}/{name}" for top in tops if len(tops) == 1]  # type: ignore[misc]
    if len(outer) == 1:
        ways.append(lambda name: name.partition("/")[2])
    of_ways = [
        {known[way(name)]: number for name, number in numbers.items() if way(name) in known}
        for way in ways
    ]
    found = max(of_ways, key=len)
    return Figure(key, title, found) if found else None


def figure_answer(picture: Picture, figure: Figure, number: Mapping[Glyph, int]) -> dict[str, Any]:
    """Return a figure as the viewer takes it, with sums for boxes that have no number.

    Args:
        picture: The picture.
        figure: The figure.
        number: The number of each node and box.
    """
    join = max if figure.key in LARGEST else sum
    numbers = dict(figure.numbers)
    for box in (*reversed(picture.boxes), picture.root):
        inside = [numbers[child] for child in picture.children(box) if child in numbers]
        if inside and box not in numbers:
            numbers[box] = join(inside)
    return {
        "key": figure.key,
        "title": figure.title,
        "most": largest_at_the_top(picture, numbers.get),
        "at": [number[glyph] for glyph in numbers],
        "numbers": list(numbers.values()),
    }


def largest_at_the_top(picture: Picture, number: Callable[[Glyph], float | None]) -> float:
    """Return the largest number on the first level with several boxes and nodes; 1 for none."""
    tops = picture.children(picture.root)
    while len(tops) == 1 and isinstance(tops[0], Box):
        tops = picture.children(tops[0])
    return max((number(top) or 0 for top in tops), default=0) or 1
