"""What TensorBoard's page does with a hierarchy before it draws it.

It folds siblings into stacks, takes nodes out of the flow and puts them aside, and
lays out what is left. These functions foretell it, one for each thing; they change
nothing. Lines are those of tensorboard/plugins/graph/tf_graph_common of TensorBoard 2.21.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tbscope.page.hierarchy import Box, Hierarchy, Item, Link, is_circle

__all__ = [
    "LEVEL_LIMIT",
    "LIBRARY",
    "Level",
    "Links",
    "Reason",
    "Series",
    "Shape",
    "find_series",
    "is_library",
    "label_room",
    "read_level",
    "read_levels",
    "shown_label",
]

LEVEL_LIMIT = 100
"""Up to so many shapes on one level are laid out at once (measured)."""

LIBRARY = "__function_library__"
"""How the name of a box begins that stands in the panel of functions (graph.ts:25)."""

# render.ts:129-191, `PARAMS`, and hierarchy.ts:474, `DefaultHierarchyParams`.
_SERIES_SIZE = 5
_CROWD = 15
_DEGREE = 4
_CONTROLS = 4
_ASIDE_OP = "NoOp"

_NUMBERED = re.compile(r"([^0-9]*)([0-9]+)")
_FUNCTION = re.compile(rf"(?:{LIBRARY})?([A-Za-z0-9_]+)_[a-z0-9]{{8}}(?:_[0-9]+)?")

_OP_ROOM = 11
_BOX_ROOM = 13


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Siblings that are folded into one stack.

    Attributes:
        name: What the page calls the stack (`net/relu_[1-7]`).
        members: The nodes in it, by their numbers.
    """

    name: str
    members: tuple[Item, ...]


Shape: TypeAlias = Box | Item | Series
"""What is drawn on a level: a box, a node, or a stack."""

Reason: TypeAlias = Literal["NoOp", "many inputs", "many readers", "isolated"]
"""Why the page puts a shape aside."""

Links: TypeAlias = Mapping[tuple[Shape, Shape], Link]


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """What is drawn in one box when it is opened.

    Attributes:
        box: The box; the root for the first look.
        shapes: The shapes in it, stacks after all others.
        links: The lines among them as the data tells.
        aside: The shapes that are taken out of the flow, and why.
        lines: The links that are drawn as lines; others are only hinted at.
    """

    box: Box
    shapes: list[Shape]
    links: Links
    aside: dict[Shape, Reason] = field(default_factory=dict)
    lines: dict[tuple[Shape, Shape], Link] = field(default_factory=dict)


def is_library(shape: Shape) -> bool:
    """Tell whether a shape stands in the panel of functions, not in the graph.

    Source: hierarchy.ts:677-698, `addNodes`; render.ts:950-965, `buildSubhierarchy`
    """
    if not isinstance(shape, Box) or not shape.name.startswith(LIBRARY):
        return False
    return shape.parent is not None and shape.parent.parent is None


def shown_label(shape: Shape) -> str:
    """Give the whole label of a shape, before it is cut to its width.

    Source: render.ts:1678-1700, `RenderNodeInfo`
    """
    label = shape.name.rpartition("/")[2]
    if is_library(shape):
        found = _FUNCTION.fullmatch(label)
        label = found[1] if found else label.removeprefix(LIBRARY)
    return label


def label_room(shape: Shape) -> int:
    """Give about how many characters of a label are seen; an open box shows all.

    The page measures pixels: this holds for lower case, and capitals are wider.

    Source: node.ts:440-514, `enforceLabelWidth`; layout.ts:108-126
    """
    return _OP_ROOM if isinstance(shape, Item) else _BOX_ROOM


def find_series(box: Box) -> list[Series]:
    """Give the siblings in a box that the page folds: five or more of one op type, numbered.

    Source: hierarchy.ts:855-1109, `groupSeries`, `detectSeriesUsingNumericSuffixes`
    """
    if len(box.children) < _SERIES_SIZE:
        return []
    by_op: dict[str, list[Item]] = {}
    for child in box.children.values():
        if isinstance(child, Item) and child.op:
            by_op.setdefault(child.op, []).append(child)
    runs: dict[str, list[Item]] = {}
    for members in by_op.values():
        if len(members) > 1:
            for (prefix, suffix), numbered in _by_prefix(members).items():
                for first, last, run in _consecutive(numbered):
                    runs[f"{prefix}[{_number(first)}-{_number(last)}]{suffix}"] = run
    above = f"{box.name}/" if box.name else ""
    return [
        Series(above + name, tuple(run)) for name, run in runs.items() if len(run) >= _SERIES_SIZE
    ]


def _by_prefix(members: list[Item]) -> dict[tuple[str, str], list[tuple[float, Item]]]:
    """Give the numbers at the end of names; a name without one counts as 0."""
    found: dict[tuple[str, str], list[tuple[float, Item]]] = {}
    for item in members:
        label = item.name.rpartition("/")[2]
        match = _NUMBERED.fullmatch(label)
        if match:
            found.setdefault((match[1], ""), []).append((float(match[2]), item))
        elif label.endswith("*"):
            found.setdefault((label[:-1], "*"), []).append((0.0, item))
        else:
            found.setdefault((label, ""), []).append((0.0, item))
    return found


def _consecutive(numbered: list[tuple[float, Item]]) -> Iterator[tuple[float, float, list[Item]]]:
    """Give each run of two or more numbers that follow each other."""
    numbered.sort(key=lambda pair: pair[0])
    start = 0
    for at in range(1, len(numbered) + 1):
        if at == len(numbered) or numbered[at][0] != numbered[at - 1][0] + 1:
            if at - start > 1:
                run = [item for _, item in numbered[start:at]]
                yield numbered[start][0], numbered[at - 1][0], run
            start = at


def _number(number: float) -> str:
    return str(int(number)) if number < 1e21 else repr(number)


def read_level(hierarchy: Hierarchy, box: Box) -> Level:
    """Give what the page draws in a box when it is opened."""
    return _read(hierarchy, box, _with_icons(hierarchy))


def read_levels(hierarchy: Hierarchy) -> Iterator[Level]:
    """Give what the page draws in each box, the root first; not what is in the function panel."""
    icons = _with_icons(hierarchy)
    yield _read(hierarchy, hierarchy.root, icons)
    for box in hierarchy.boxes.values():
        if not box.name.startswith(LIBRARY):
            yield _read(hierarchy, box, icons)


def _with_icons(hierarchy: Hierarchy) -> set[Item]:
    """Give the nodes beside which a summary is drawn as an icon."""
    return {
        source
        for item in hierarchy.items.values()
        if item.embedded and not is_circle(item.op)
        for source in (*item.sources, *item.controls)
    }


def _read(hierarchy: Hierarchy, box: Box, icons: set[Item]) -> Level:
    stacks = find_series(box)
    links: Links = hierarchy.links(box)  # type: ignore[assignment]
    shapes: list[Shape] = list(box.children.values())
    if stacks:
        within: dict[Shape, Series] = {
            member: stack for stack in stacks for member in stack.members
        }
        shapes = [shape for shape in shapes if shape not in within]
        shapes += stacks
        links = _fold(links, within)
    level = Level(box, shapes, links)
    _put_aside(level, icons)
    return level


def _fold(links: Links, within: Mapping[Shape, Series]) -> Links:
    """Give the lines that are left where nodes are in stacks; those inside one are not."""
    folded: dict[tuple[Shape, Shape], Link] = {}
    for (start, end), link in links.items():
        ends = within.get(start, start), within.get(end, end)
        if ends[0] is not ends[1]:
            known = folded.get(ends, Link(0, 0))
            folded[ends] = Link(known.data + link.data, known.control + link.control)
    return folded


def _put_aside(level: Level, icons: set[Item]) -> None:
    """Take out of a level what the page takes out of the flow, in its order.

    Source: render.ts:1989-2255, `extractHighDegrees`
    """
    lines = dict(level.links)
    aside = level.aside
    # Whoever loses a line gets a hint of it at that side, as a circle is one.
    reads: set[Shape] = set()
    gives: set[Shape] = set()
    for shape in level.shapes:
        if isinstance(shape, Item):
            if any(s.embedded and is_circle(s.op) for s in (*shape.sources, *shape.controls)):
                reads.add(shape)
            if shape in icons:
                gives.add(shape)

    def cut(ends: Sequence[tuple[Shape, Shape]]) -> None:
        for start, end in ends:
            gives.add(start)
            reads.add(end)
            lines.pop((start, end), None)

    for shape in level.shapes:
        if _is_aside_by_op(shape):
            aside[shape] = "NoOp"
    cut([ends for ends in lines if ends[0] in aside or ends[1] in aside])
    busy = _busy([shape for shape in level.shapes if shape not in aside], lines)
    aside.update(busy)
    cut([ends for ends in lines if ends[0] in busy or ends[1] in busy])
    cut(_crowded_controls(lines))
    if lines or reads or gives:
        joined = {shape for ends in lines for shape in ends}
        for shape in level.shapes:
            if shape not in joined and shape not in aside and (shape in reads) != (shape in gives):
                aside[shape] = "isolated"
    level.lines.update(lines)


def _is_aside_by_op(shape: Shape) -> bool:
    """Tell whether a node is a `NoOp`, or a box has one that is named like it.

    Source: render.ts:1969-2023, `hasTypeIn`; graph.ts:605, `getRootOp`
    """
    if isinstance(shape, Box):
        named = shape.children.get(f"({shape.name.rpartition('/')[2]})")
        return isinstance(named, Item) and named.op == _ASIDE_OP
    return isinstance(shape, Item) and shape.op == _ASIDE_OP


def _busy(shapes: list[Shape], lines: Links) -> dict[Shape, Reason]:
    """Give the shapes with far more lines than the others on their level.

    Source: render.ts:2038-2134, `extractHighInOrOutDegree`
    """
    count = len(shapes)
    if count < _CROWD:
        return {}
    # Control edges count only where there are no others.
    inputs: dict[Shape, list[int]] = {shape: [0, 0] for shape in shapes}
    readers: dict[Shape, list[int]] = {shape: [0, 0] for shape in shapes}
    for (start, end), link in lines.items():
        readers[start][link.data == 0] += 1
        inputs[end][link.data == 0] += 1
    found: dict[Shape, Reason] = {}
    limit = _limit([data or control for data, control in inputs.values()], spread=1)
    for shape, (data, control) in inputs.items():
        if (data or control) > limit:
            found[shape] = "many inputs"
    limit = _limit([data or control for data, control in readers.values()], spread=4)
    for shape, (data, control) in readers.items():
        if (data or control) > limit:
            found.setdefault(shape, "many readers")
    return found


def _limit(degrees: list[int], *, spread: int) -> int:
    degrees.sort()
    count = len(degrees)
    # JavaScript rounds halves up.
    upper, lower = degrees[(count * 3 + 2) // 4], degrees[(count + 2) // 4]
    return max(upper + (upper - lower) * spread, _DEGREE)


def _crowded_controls(lines: Links) -> list[tuple[Shape, Shape]]:
    """Give the control lines of shapes that have more than four of them.

    Source: render.ts:2136-2152, `removeControlEdges`
    """
    controls = [ends for ends, link in lines.items() if not link.data]
    if len(controls) <= _CONTROLS:
        return []
    counts: dict[Shape, int] = {}
    for ends in controls:
        for shape in ends:
            counts[shape] = counts.get(shape, 0) + 1
    return [ends for ends in controls if max(counts[ends[0]], counts[ends[1]]) > _CONTROLS]
