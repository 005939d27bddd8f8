"""Folding: equal parts that follow each other, as the layers of a model, as one line.

Modules that were called are equal where their calls are uses of the same definitions, as
`Graph.functions` finds them. What has no definition is told by its figures.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from tbscope.figures.summary.part import Part, walk
from tbscope.figures.summary.rows import Row
from tbscope.functions.definition import Definition
from tbscope.ir.graph import Parameter
from tbscope.ir.scopes import Scope

__all__ = ["Definitions", "Line", "folded", "unfolded"]

Definitions: TypeAlias = Callable[[], Mapping[Scope, Definition]]
"""Gives the definition of each call, by its scope."""


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


def folded(
    root: Part, depth: int | None, rows: Mapping[Part, Row], definitions: Definitions
) -> Iterator[Line]:
    """Return the lines, one for equal parts that are numbered on: `0`, `1`, `2` as `0-2`.

    Equal are modules whose calls are uses of the same definitions, and that learn alike, down to
    the last part: shapes may differ. Each line below one of several parts stands for as many.

    Args:
        root: The outermost part.
        depth: The most parts around one that still has a line; None for any number.
        rows: The row of each part.
        definitions: Asked for only where parts are numbered on.
    """
    alike: Mapping[Part, int] = {}
    if any(_numbered_on(*pair) for part in walk(root) for pair in pairwise(part.children)):
        alike = _alike(root, rows, definitions())
    pending = [Line([root], 0, root.title, 1)]
    while pending:
        line = pending.pop()
        yield line
        if depth is None or line.depth < depth:
            pending.extend(reversed(list(_below(line, alike))))


def _below(line: Line, alike: Mapping[Part, int]) -> Iterator[Line]:
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


def _follows(part: Part, after: Part, alike: Mapping[Part, int]) -> bool:
    return (
        _numbered_on(part, after)
        and alike[part] == alike[after]
        # What others hold, too, would be counted twice in their sum.
        and not part.holds.shared
    )


def _numbered_on(part: Part, after: Part) -> bool:
    first, second = part.attribute, after.attribute
    return (
        first is not None
        and second is not None
        and _is_number(first)
        and _is_number(second)
        and int(second) == int(first) + 1
    )


def _is_number(attribute: str) -> bool:
    return attribute.isascii() and attribute.isdecimal()


def _alike(
    root: Part, rows: Mapping[Part, Row], definitions: Mapping[Scope, Definition]
) -> dict[Part, int]:
    """Return a number for each part; equal parts have the same."""
    numbers: dict[tuple[Any, ...], int] = {}
    found: dict[Part, int] = {}
    for part in reversed(list(walk(root))):
        used = tuple([definitions[scope] for scope in part.scopes if scope in definitions])
        row = rows[part]
        told = (
            used or _facts(part, row),
            row["shared_parameters"],
            tuple([_held(one, called=bool(used)) for one in part.held]),
            tuple([(_title(child), found[child]) for child in part.children]),
        )
        found[part] = numbers.setdefault(told, len(numbers))
    return found


def _title(part: Part) -> str:
    """Return what a part is called in equal ones; what nobody registers is numbered on."""
    return _ADOPTED if part.name is None and part.title.startswith(_ADOPTED) else part.title


def _facts(part: Part, row: Row) -> tuple[Any, ...]:
    """Return what is equal for equal parts of which no call tells what they do."""
    return (
        part.class_name,
        *(row[name] for name in _TOLD),
        *(tuple((row[name] or {}).items()) for name in ("input", "output", "uncounted")),
    )


def _held(parameter: Parameter, *, called: bool) -> tuple[Any, ...]:
    """Return what must be equal in parameters of equal parts."""
    if called:
        # A definition is given its parameters, whatever they are; only, what is frozen is told.
        return parameter.name, parameter.requires_grad
    return parameter._replace(number=-1)


# How modules that nobody registers are called: `?0`, `?1`, through the whole run.
_ADOPTED = "?"

# The times of equal parts differ, and the backward pass does less in the first of them.
_TOLD = ("class", "kind", "calls", "varies", "flops", "activation_bytes")
