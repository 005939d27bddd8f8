"""Repeats: runs of equal blocks on a long level as one box, `0-125`, `LlamaDecoderLayer × 126`.

A run is a period of at most a few nodes and boxes that comes again and again: one block, or Linear
and ReLU by turns. Boxes are equal if their structures are, nodes if their operations are; their
labels differ in numbers alone.
"""

import re
from collections.abc import Hashable, Sequence

from tbscope.page.glyphs import Box, Item
from tbscope.page.structures import Structures
from tbscope.saving.picture import Picture

__all__ = ["fold_repeats"]

# A level with fewer children can be read as it is.
_LONG = 20
_MOST_PERIOD = 8
_LEAST_TIMES = 4
# Where labels tell apart by more than numbers, their author has meant something by it.
_NUMBERS = re.compile(r"\.\d+(?:st|nd|rd|th)\b|\d+")


def fold_repeats(picture: Picture) -> None:
    """Put the runs of each long level of a picture into boxes of their own."""
    structures = Structures(picture.hierarchy)
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
                folded.append(_fold(picture, box, members, period, times))
            else:
                folded.append(children[at])
            at += max(period * times, 1)
        box.children = {child.label: child for child in folded}
    _place(picture)


def _key(picture: Picture, structures: Structures, child: Box | Item) -> Hashable:
    stem = _NUMBERS.sub("", child.label)
    if isinstance(child, Item):
        return child.op, stem
    return structures.of[child].number, picture.class_of(child), stem


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
    label = f"{members[0].label}-{members[-1].label}"
    while label in parent.children:
        label = f"{label}_"
    box = Box(f"{parent.name}/{label}" if parent.name else label, label, parent)
    box.children = {member.label: member for member in members}
    for member in members:
        if isinstance(member, Box):
            member.parent = box
        else:
            member.box = box
    names = [picture.class_of(member) or member.label for member in members[:period]]
    picture.fold(box, ", ".join(names), times)
    return box


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
