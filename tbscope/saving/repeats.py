"""Repeats: runs of equal blocks on a long level as one box, `0-125`, `LlamaDecoderLayer × 126`.

A run is a period of at most some nodes and boxes that comes again and again: one block, Linear and
ReLU by turns, or a step of a loop. Boxes are equal if their structures are, nodes if their
operations are; their labels differ in numbers alone, of which the first may have none.
"""

import re
from collections.abc import Hashable, Sequence

from tbscope.page.glyphs import Box, Item
from tbscope.page.structures import Structures
from tbscope.saving.picture import Picture

__all__ = ["fold_repeats", "stem"]

# A level with fewer children can be read as it is.
_LONG = 20
_MOST_PERIOD = 24
_LEAST_TIMES = 4
# Where labels tell apart by more than numbers, their author has meant something by it.
_NUMBERS = re.compile(r"[._]\d+(?:st|nd|rd|th)?\b|\d+")
_LAST_NUMBER = re.compile(r"(.*?)(\d+)")


def stem(label: str) -> str:
    """Return a label without its numbers.

    >>> stem("add_1"), stem("12")
    ('add', '')
    """
    return _NUMBERS.sub("", label)


def fold_repeats(picture: Picture) -> dict[Box, int]:
    """Put the runs of each long level of a picture into boxes of their own.

    Returns:
        A number for each box but the root, the same for boxes with the same inside.
    """
    structures = Structures(picture.hierarchy)
    numbers = {box: structure.number for box, structure in structures.of.items()}
    runs: dict[Hashable, int] = {}
    for box in [picture.root, *picture.boxes]:
        children = [*box.children.values()]
        if len(picture.children(box)) <= _LONG:
            continue
        keys = [_key(picture, structures, child) for child in children]
        folded: list[Box | Item] = []
        at = 0
        while at < len(children):
            period, times = _run_at(keys, at)
            members = children[at : at + period * times]
            if times:
                run = _fold(picture, box, members, period, times)
                new = len(structures.all) + len(runs) + 1
                numbers[run] = runs.setdefault((*keys[at : at + period], times), new)
                folded.append(run)
            else:
                folded.append(children[at])
            at += max(period * times, 1)
        box.children = {child.label: child for child in folded}
    _place(picture)
    return numbers


def _key(picture: Picture, structures: Structures, child: Box | Item) -> Hashable:
    if isinstance(child, Item):
        return child.op, stem(child.label)
    return structures.of[child].number, picture.class_of(child), stem(child.label)


def _run_at(keys: Sequence[Hashable], at: int) -> tuple[int, int]:
    """Return the period and the times of the run that begins somewhere, or zeros for none."""
    best = 0, 0
    for period in range(1, _MOST_PERIOD + 1):
        end = at + period
        while end < len(keys) and keys[end] == keys[end - period]:
            end += 1
        times = (end - at) // period
        if times >= _LEAST_TIMES and period * times > best[0] * best[1]:
            best = period, times
    return best


def _fold(
    picture: Picture, parent: Box, members: Sequence[Box | Item], period: int, times: int
) -> Box:
    label = _label(members[0].label, members[-1].label)
    while label in parent.children:
        label = f"{label}_"
    box = picture.surround(parent, label, members)
    names = [picture.class_of(one) or stem(one.label) for one in members[:period]]
    picture.fold(box, ", ".join(names), times)
    return box


def _label(first: str, last: str) -> str:
    """Return the label of a run: `0-125`, `cell.0-11`, or of different labels `cell-out.11`."""
    found = _LAST_NUMBER.fullmatch(last)
    if found is not None:
        name, number = found.groups()
        begin = first.removeprefix(name)
        if first.startswith(name) and begin.isdecimal():
            return f"{name}{begin}-{number}"
        if name and first == name[:-1] and name[-1] in "._":
            # What is called for the first time has no number.
            return f"{name}0-{number}"
    return f"{first}-{last}"


def _place(picture: Picture) -> None:
    """List all boxes again, each after the one around it, with their depths."""
    boxes: list[Box] = []
    pending: list[Box] = [picture.root]
    while pending:
        box = pending.pop()
        if box.parent is not None:
            box.depth = box.parent.depth + 1
            boxes.append(box)
        pending += [child for child in reversed([*box.children.values()]) if isinstance(child, Box)]
    picture.boxes = boxes
    picture.hierarchy.regroup(boxes)
