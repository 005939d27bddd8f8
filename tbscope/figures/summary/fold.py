"""Folding: equal parts that follow each other, as the layers of a model, as one line."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tbscope.figures.summary.part import Part, walk
from tbscope.figures.summary.rows import Row

__all__ = ["Line", "folded", "unfolded"]


class Line(NamedTuple):
    """One line of the printed table.

    Attributes:
        parts: The equal parts that it stands for, the first one first.
        depth: How far it is indented.
        title: What they are called: `fc`, or `0-11`.
        times: How many equal parts stand beside each other.
    """

    parts: list[Part]
    depth: int
    title: str
    times: int


def unfolded(root: Part, depth: int | None) -> Iterator[Line]:
    """Return a line for each part that has no more than `depth` parts around it."""
    pending = [(root, 0)]
    while pending:
        part, level = pending.pop()
        yield Line([part], level, part.title, 1)
        if depth is None or level < depth:
            pending.extend((child, level + 1) for child in reversed(part.children))


def folded(root: Part, depth: int | None, rows: Mapping[Part, Row]) -> Iterator[Line]:
    """Return the lines, one for equal parts that are numbered on: `0`, `1`, `2` as `0-2`.

    Equal is what has the same classes, parameters, shapes and figures, down to the last part.
    Each line below one of several parts stands for as many.

    Args:
        root: The outermost part.
        depth: The most parts around one that still has a line; None for any number.
        rows: The row of each part.
    """
    alike = _alike(root, rows)
    pending = [Line([root], 0, root.title, 1)]
    while pending:
        line = pending.pop()
        yield line
        if depth is None or line.depth < depth:
            pending.extend(reversed(list(_below(line, alike))))


def _below(line: Line, alike: dict[Part, int]) -> Iterator[Line]:
    """Return the lines of the children; of a line for several parts, of all together."""
    children = [
        list(column) for column in zip(*(part.children for part in line.parts), strict=True)
    ]
    start = 0
    while start < len(children):
        end = start + 1
        while end < len(children) and _follows(children[end - 1][0], children[end][0], alike):
            end += 1
        run = children[start:end]
        title = run[0][0].title if len(run) == 1 else f"{run[0][0].title}-{run[-1][0].title}"
        yield Line([part for column in run for part in column], line.depth + 1, title, len(run))
        start = end


def _follows(part: Part, after: Part, alike: dict[Part, int]) -> bool:
    first, second = part.attribute, after.attribute
    return (
        first is not None
        and second is not None
        and _is_number(first)
        and _is_number(second)
        and int(second) == int(first) + 1
        and alike[part] == alike[after]
        # What others hold, too, would be counted twice in their sum.
        and not part.holds.shared
    )


def _is_number(attribute: str) -> bool:
    return attribute.isascii() and attribute.isdecimal()


def _alike(root: Part, rows: Mapping[Part, Row]) -> dict[Part, int]:
    """Return a number for each part; equal parts have the same."""
    numbers: dict[tuple[Any, ...], int] = {}
    found: dict[Part, int] = {}
    for part in reversed(list(walk(root))):
        row = rows[part]
        told = (
            *(row[name] for name in _TOLD),
            *(tuple((row[name] or {}).items()) for name in ("input", "output", "uncounted")),
            tuple(one._replace(number=-1) for one in part.held),
            tuple((child.title, found[child]) for child in part.children),
        )
        found[part] = numbers.setdefault(told, len(numbers))
    return found


# The times of equal parts differ, and the backward pass does less in the first of them.
_TOLD = ("class", "kind", "calls", "varies", "shared_parameters", "flops", "activation_bytes")
