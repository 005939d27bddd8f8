"""Folding: equal parts that follow each other, as the layers of a model, on one line.

Modules that were called are equal if their calls are uses of the same definitions, as
`Graph.functions` finds them; other parts are compared by their figures.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from tbscope.analysis.summary_columns import Row
from tbscope.functions.definition import Definition
from tbscope.ir.module_tree import Part, walk
from tbscope.ir.scopes import Scope

__all__ = ["Definitions", "Line", "equal_parts", "lines_of"]

Definitions: TypeAlias = Callable[[], Mapping[Scope, Definition]]
"""Returns the definition of each call, by its scope."""

# Modules that no module registers are called `?0`, `?1`, through the whole run.
_ADOPTED = "?"

# Times of equal parts differ, and the backward pass does less in the first of them.
_COMPARED = (
    *("class", "kind", "calls", "varies", "flops", "activation_bytes"),
    *("input", "output", "uncounted"),
)


class Line(NamedTuple):
    """One line of the printed table.

    Attributes:
        parts: The equal parts that it is for, the first one first.
        depth: How far it is indented.
        title: Their name: `fc`, or `0-11`.
        times: How many equal parts are side by side.
    """

    parts: list[Part]
    depth: int
    title: str
    times: int


def lines_of(root: Part, depth: int | None, equal: Mapping[Part, int]) -> Iterator[Line]:
    """Yield the lines of a table, one for equal parts that are numbered on: `0`, `1` as `0-1`.

    Each line below one of several parts is for as many.

    Args:
        root: The outermost part.
        depth: The most parts around one that still has a line; None for any number.
        equal: A number for each part, the same for equal ones; empty to fold none.
    """
    pending = [Line([root], 0, root.title, 1)]
    while pending:
        line = pending.pop()
        yield line
        if depth is None or line.depth < depth:
            pending.extend(reversed(list(_below(line, equal))))


def equal_parts(
    root: Part, rows: Mapping[Part, Row], definitions: Definitions
) -> Mapping[Part, int]:
    """Return a number for each part, the same for equal ones; nothing if none is numbered on.

    Equal are modules whose calls are uses of the same definitions, and that learn alike, down to
    the last part: shapes may differ.

    Args:
        root: The outermost part.
        rows: The row of each part.
        definitions: Called only if parts are numbered on.
    """
    parts = list(walk(root))
    if not any(_numbered_on(*pair) for part in parts for pair in pairwise(part.children)):
        return {}
    known = definitions()
    numbers: dict[tuple[Any, ...], int] = {}
    found: dict[Part, int] = {}
    for part in reversed(parts):
        row = rows[part]
        used = tuple([known[scope] for scope in part.scopes if scope in known])
        key = (
            used or (part.class_name, str([row[name] for name in _COMPARED])),
            row["shared_parameters"],
            # A definition takes any parameters; only whether they are frozen is no part of it.
            tuple(
                [
                    (one.name, one.requires_grad) if used else one._replace(number=-1)
                    for one in part.held
                ]
            ),
            tuple([(_title(child), found[child]) for child in part.children]),
        )
        found[part] = numbers.setdefault(key, len(numbers))
    return found


def _below(line: Line, equal: Mapping[Part, int]) -> Iterator[Line]:
    """Yield the lines of the children; of a line for several parts, of all together."""
    runs: list[list[list[Part]]] = []
    for together in zip(*(part.children for part in line.parts), strict=True):
        last, part = runs[-1][-1][0] if runs and equal else None, together[0]
        # A parameter that others have, too, would count twice in their sum.
        if (
            last is not None
            and _numbered_on(last, part)
            and equal[last] == equal[part]
            and not last.holds.shared
        ):
            runs[-1].append([*together])
        else:
            runs.append([[*together]])
    for run in runs:
        title = run[0][0].title if len(run) == 1 else f"{run[0][0].title}-{run[-1][0].title}"
        yield Line([part for parts in run for part in parts], line.depth + 1, title, len(run))


def _numbered_on(part: Part, after: Part) -> bool:
    first, second = part.attribute or "", after.attribute or ""
    numbered = all(one.isascii() and one.isdecimal() for one in (first, second))
    return numbered and int(second) == int(first) + 1


def _title(part: Part) -> str:
    """Return the name of a part in equal ones; one that no module registers is numbered on."""
    return _ADOPTED if part.name is None and part.title.startswith(_ADOPTED) else part.title
