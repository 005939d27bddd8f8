"""Folding of the summary: consecutive equal parts, such as a model's layers, print as one line.

Called modules are equal if their calls are uses of equal definitions (`Graph.functions`); other
parts are compared by their figures.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from tbscope.analysis.summary_columns import Row
from tbscope.functions.definition import Use
from tbscope.ir.module_tree import ModulePart, walk
from tbscope.ir.scopes import Scope

# Unregistered modules are numbered throughout the run, `?0`, `?1`.
_ADOPTED = "?"

# Times and backward FLOPs are left out: times differ between equal parts, and the first of them
# computes fewer gradients.
_COMPARED = (
    *("class", "kind", "calls", "varies", "flops", "activation_bytes"),
    *("input", "output", "uncounted"),
)


class SummaryLine(NamedTuple):
    """One line of the printed table.

    Attributes:
        parts: The equal parts of the line, in order.
        depth: The level of indentation.
        title: The name of the parts: `fc`, or `0-11`.
        times: The number of equal siblings.
    """

    parts: list[ModulePart]
    depth: int
    title: str
    times: int


def lines_of(
    root: ModulePart, depth: int | None, equal: Mapping[ModulePart, int]
) -> Iterator[SummaryLine]:
    """Yield the lines of a table; equal parts with consecutive numbers share a line (`0-1`).

    Each line below a shared line represents as many parts.

    Args:
        root: The outermost part.
        depth: The largest number of enclosing parts of a part with a line; None for no limit.
        equal: A number for each part, equal for equal parts; empty to fold no parts.
    """
    pending = [SummaryLine([root], 0, root.title, 1)]
    while pending:
        line = pending.pop()
        yield line
        if depth is None or line.depth < depth:
            pending.extend(reversed(list(_below(line, equal))))


def equal_parts(
    root: ModulePart, rows: Mapping[ModulePart, Row], find: Callable[[], Mapping[Scope, Use]]
) -> Mapping[ModulePart, int]:
    """Return a number for each part, equal for equal parts; empty if no siblings are consecutive.

    Modules are equal if their calls are uses of equal definitions, if their parameters agree in
    `requires_grad`, and if their submodules are equal; shapes may differ.

    Args:
        root: The outermost part.
        rows: The row of each part.
        find: Returns the use of each call; called only if siblings have consecutive numbers.
    """
    parts = walk(root)
    if not any(_numbered_on(*pair) for part in parts for pair in pairwise(part.children)):
        return {}
    uses = find()
    numbers: dict[tuple[object, ...], int] = {}
    number_of: dict[ModulePart, int] = {}
    # Children come first, because the key of a part contains the numbers of its children.
    for part in reversed(parts):
        row = rows[part]
        used = tuple([uses[scope].definition for scope in part.scopes if scope in uses])
        key = (
            used or (part.class_name, str([row[name] for name in _COMPARED])),
            row["shared_parameters"],
            # A definition does not contain `requires_grad`, so it is added here.
            tuple(
                [
                    (param.name, param.requires_grad) if used else param._replace(number=-1)
                    for param in part.own_state
                ]
            ),
            tuple([(_title(child), number_of[child]) for child in part.children]),
        )
        number_of[part] = numbers.setdefault(key, len(numbers))
    return number_of


def _below(line: SummaryLine, equal: Mapping[ModulePart, int]) -> Iterator[SummaryLine]:
    """Yield the lines of the children of a line's parts, for all of these parts together."""
    # Runs of equal siblings; a sibling is listed with its counterparts in the line's other parts.
    runs: list[list[list[ModulePart]]] = []
    for together in zip(*(part.children for part in line.parts), strict=True):
        last, part = runs[-1][-1][0] if runs and equal else None, together[0]
        # The sum of a line would count a shared parameter of these parts twice.
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
        yield SummaryLine(
            [part for parts in run for part in parts], line.depth + 1, title, len(run)
        )


def _numbered_on(part: ModulePart, after: ModulePart) -> bool:
    first, second = part.attribute or "", after.attribute or ""
    numbered = all(number.isascii() and number.isdecimal() for number in (first, second))
    return numbered and int(second) == int(first) + 1


def _title(part: ModulePart) -> str:
    """Return the name of a part for comparison; the numbers of unregistered modules are dropped."""
    return _ADOPTED if part.name is None and part.title.startswith(_ADOPTED) else part.title
