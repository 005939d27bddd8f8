"""How data flows through what the page draws: the longest chain, and what is cut off.

Source: tensorboard/plugins/graph/tf_graph_common/layout.ts, and dagre below it.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tbscope.page.hierarchy import Box, Hierarchy, Item, is_circle
from tbscope.page.preparation import Level, Links, Series, Shape, is_library

__all__ = ["CHAIN_LIMIT", "Doors", "find_doors", "longest_chain", "lost_exits"]

CHAIN_LIMIT = 1000
"""A chain twice as long on one level leaves the page blank: dagre's longest path recurses."""


@dataclass(frozen=True, slots=True)
class Doors:
    """Where data enters and leaves boxes.

    Attributes:
        entered: The shapes that read something from outside of the box they stand in.
        left: The shapes that something outside of it reads.
    """

    entered: set[Shape] = field(default_factory=set)
    left: set[Shape] = field(default_factory=set)


def longest_chain(shapes: Sequence[Shape], lines: Links) -> int:
    """Give the number of shapes on the longest way along lines; cycles are cut somewhere.

    Source: dagre's `rank/util.js`, `longestPath`, which recurses along it.
    """
    readers: dict[Shape, list[Shape]] = {}
    waits: dict[Shape, int] = {}
    for start, end in lines:
        readers.setdefault(start, []).append(end)
        waits[end] = waits.get(end, 0) + 1
    length = dict.fromkeys(shapes, 1)
    ready = deque(shape for shape in shapes if not waits.get(shape))
    rest = deque(shape for shape in shapes if waits.get(shape))
    done: set[Shape] = set()
    while ready or rest:
        shape = ready.popleft() if ready else rest.popleft()
        if shape in done:
            continue
        done.add(shape)
        for reader in readers.get(shape, ()):
            if reader not in done:
                length[reader] = max(length[reader], length[shape] + 1)
                waits[reader] -= 1
                if not waits[reader]:
                    ready.append(reader)
    return max(length.values(), default=0)


def find_doors(hierarchy: Hierarchy) -> Doors:
    """Find where data crosses the sides of boxes."""
    doors = Doors()
    for item in hierarchy.items.values():
        if item.embedded:
            continue
        for start in _data_read_by(item):
            if not start.embedded and start.box is not item.box:
                _cross(start, item, doors)
    return doors


def _data_read_by(item: Item) -> Iterator[Item]:
    """Give whose data a node reads, itself or by what is drawn beside it.

    Of a circle it is what that reads, even where one only waits for the circle; of a summary
    icon, the kind of the edge that leaves it counts.

    Source: hierarchy.ts:790, `addEdges`
    """
    for source in item.sources:
        if not source.embedded:
            yield source
        else:
            yield from source.sources
            if not is_circle(source.op):
                yield from source.controls
    for source in item.controls:
        if source.embedded and is_circle(source.op):
            yield from source.sources


def _cross(start: Shape, end: Shape, doors: Doors) -> None:
    above, below = _around(start), _around(end)
    while above is not below:
        if above.depth >= below.depth:
            doors.left.add(start)
            start, above = above, _around(above)
        else:
            doors.entered.add(end)
            end, below = below, _around(below)


def _around(shape: Shape) -> Box:
    box = shape.parent if isinstance(shape, Box) else shape.box if isinstance(shape, Item) else None
    assert box is not None, "the root is around all"
    return box


def lost_exits(level: Level, doors: Doors) -> list[Shape]:
    """Give the shapes of a level that end its flow and lost the way from where it begins.

    An end is what nothing on its level reads, or what is read outside; a beginning is
    what reads nothing on its level, or reads from outside. Stacks count as their members.
    """
    if not level.aside and len(level.lines) == len(level.links):
        return []
    fed: set[Shape] = set()
    read: set[Shape] = set()
    for (start, end), link in level.links.items():
        if link.data:
            read.add(start)
            fed.add(end)
    starts = {
        shape for shape in level.shapes if shape not in fed or _is_among(shape, doors.entered)
    }
    # What is on a circle that nothing enters is reached from nowhere, and so it lost nothing.
    lost = _reached(starts, level.links) - _reached(starts.difference(level.aside), level.lines)
    return [
        shape
        for shape in level.shapes
        if shape in lost
        and (shape in fed or _is_among(shape, doors.entered))
        and (shape not in read or _is_among(shape, doors.left))
        and not is_library(shape)
    ]


def _reached(starts: set[Shape], lines: Links) -> set[Shape]:
    """Give the shapes to which data comes along lines, and those where it starts."""
    readers: dict[Shape, list[Shape]] = {}
    for (start, end), link in lines.items():
        if link.data:
            readers.setdefault(start, []).append(end)
    reached = set(starts)
    ways = list(reached)
    while ways:
        for reader in readers.get(ways.pop(), ()):
            if reader not in reached:
                reached.add(reader)
                ways.append(reader)
    return reached


def _is_among(shape: Shape, doors: set[Shape]) -> bool:
    if isinstance(shape, Series):
        return any(member in doors for member in shape.members)
    return shape in doors
