"""Data flow through a scene: the longest chain in it, and the exits that are cut off.

Source: tensorboard/plugins/graph/tf_graph_common/layout.ts, and dagre below it.
"""

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar, get_args

from tbscope.page.edges import Links
from tbscope.page.function_library import is_library
from tbscope.page.glyphs import Glyph, members_of
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.high_degree import Crowding
from tbscope.page.scenes import Scene

__all__ = ["longest_chain", "lost_exits", "reached"]

_Place = TypeVar("_Place", bound=Hashable)


def longest_chain(glyphs: Sequence[Glyph], lines: Links) -> int:
    """Return the number of glyphs on the longest path along lines; a cycle is cut at some line.

    Source: dagre's `rank/util.js`, `longestPath`, which recurses along it.
    """
    readers: dict[Glyph, list[Glyph]] = {}
    for start, end in lines:
        readers.setdefault(start, []).append(end)
    pending_sources = Counter(end for _, end in lines)
    length = dict.fromkeys(glyphs, 1)
    ready = deque(glyph for glyph in glyphs if not pending_sources[glyph])
    rest = deque(glyph for glyph in glyphs if pending_sources[glyph])
    done: set[Glyph] = set()
    while ready or rest:
        # If no glyph is ready, a cycle is cut before the first remaining one.
        glyph = ready.popleft() if ready else rest.popleft()
        if glyph in done:
            continue
        done.add(glyph)
        for reader in readers.get(glyph, ()):
            if reader not in done:
                length[reader] = max(length[reader], length[glyph] + 1)
                pending_sources[reader] -= 1
                if not pending_sources[reader]:
                    ready.append(reader)
    return max(length.values(), default=0)


def lost_exits(hierarchy: Hierarchy, scene: Scene) -> list[Glyph]:
    """Return the exits of a scene that are no longer reached from its entries.

    An exit is a glyph that reads data, and has no readers on its level, or has readers outside.
    An entry is a glyph that reads nothing on its level, or reads from outside; a stack is an
    entry if one of its members is. An exit that was put aside for its many lines, and has
    readers on its level as well, counts as lost only if another exit is lost.
    """
    if not scene.aside and len(scene.lines) == len(scene.links):
        return []
    doors = hierarchy.doors
    fed = {end for (_, end), link in scene.links.items() if link.data}
    read = {start for (start, _), link in scene.links.items() if link.data}
    # The scene's own links lack the lines inside of stacks, so that the hierarchy is asked here.
    reads = {end for (_, end), link in hierarchy.links(scene.box).items() if link.data}
    starts = {
        glyph
        for glyph in scene.glyphs
        if any(member not in reads or member in doors.entered for member in members_of(glyph))
    }
    # Glyphs on a cycle without an entry were never reached, so they cannot be lost.
    lost = _fed_from(starts, scene.links) - _fed_from(starts.difference(scene.aside), scene.lines)
    exits = [
        glyph
        for glyph in scene.glyphs
        if (glyph in fed or not doors.entered.isdisjoint(members_of(glyph)))
        and (glyph not in read or not doors.left.isdisjoint(members_of(glyph)))
        and not is_library(glyph)
    ]
    # Exits that were put aside for their many lines, and are read on this level, too: users do
    # not miss their lines to the outside if all other exits are reached.
    unmissed = {
        member
        for member, why in scene.aside.items()
        if why in get_args(Crowding) and member in read
    }
    if not any(glyph in lost for glyph in exits if glyph not in unmissed):
        return []
    return [glyph for glyph in exits if glyph in lost]


def _fed_from(starts: set[Glyph], lines: Links) -> set[Glyph]:
    """Return the glyphs that data reaches along lines, the starts included."""
    readers: dict[Glyph, list[Glyph]] = {}
    for (start, end), link in lines.items():
        if link.data:
            readers.setdefault(start, []).append(end)
    return reached(starts, readers)


def reached(starts: Iterable[_Place], steps: Mapping[_Place, Sequence[_Place]]) -> set[_Place]:
    """Return the places that are reachable from the starts, these included."""
    visited = set(starts)
    pending = list(visited)
    while pending:
        for step in steps.get(pending.pop(), ()):
            if step not in visited:
                visited.add(step)
                pending.append(step)
    return visited
