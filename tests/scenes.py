"""Scenes: all that the page draws in one box when it is opened.

The page folds siblings into stacks, puts some glyphs aside, and lays out the rest. A scene
records which glyphs were put aside, and the reason. This model of the page is independent of
`tbscope/page/level_graph.py`, by which drawings are made and checked; `test_both_models.py`
compares the two, and `test_page_foretold.py` compares this one with TensorBoard's page.

File and line refer to tensorboard/plugins/graph/tf_graph_common of TensorBoard 2.21; lines are laid
out by layout.ts, and dagre below it.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tbscope.page.constants import ASIDE_OP, CONTROL_LIMIT, LIBRARY
from tbscope.page.glyphs import Box, Glyph, Item, Series, is_library
from tbscope.page.hierarchy import Hierarchy, Link, Links
from tbscope.page.op_types import is_circle
from tbscope.page.series import find_crowded, find_series

_Reason: TypeAlias = Literal["NoOp", "isolated", "many lines"]
"""The reason why the page puts a glyph aside."""


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """All that is drawn in one box when it is opened.

    Attributes:
        box: The box; the root for the page's initial state.
        glyphs: The glyphs in it, stacks after all others.
        links: All lines among them.
        aside: The glyphs that are taken out of the flow, and the reason.
        lines: The links that are drawn as lines; the page draws only stubs of the others.
    """

    box: Box
    glyphs: list[Glyph]
    links: Links
    aside: dict[Glyph, _Reason]
    lines: Links


def read_scene(hierarchy: Hierarchy, box: Box) -> Scene:
    """Return the scene of one box."""
    return _read(hierarchy, box, _with_icons(hierarchy))


def read_scenes(hierarchy: Hierarchy) -> Iterator[Scene]:
    """Yield the scenes of all boxes but those in the panel of functions, the root first."""
    icons = _with_icons(hierarchy)
    yield _read(hierarchy, hierarchy.root, icons)
    for box in hierarchy.boxes.values():
        if not box.name.startswith(LIBRARY):
            yield _read(hierarchy, box, icons)


def _with_icons(hierarchy: Hierarchy) -> set[Item]:
    """Return the nodes beside which a summary is drawn as an icon."""
    return {
        source
        for item in hierarchy.items.values()
        if item.embedded and not is_circle(item.op)
        for source in (*item.sources, *item.controls)
    }


def _read(hierarchy: Hierarchy, box: Box, icons: set[Item]) -> Scene:
    stacks = find_series(box)
    links = hierarchy.links(box)
    glyphs: list[Glyph] = list(box.children.values())
    if stacks:
        within: dict[Glyph, Glyph] = {member: stack for stack in stacks for member in stack.members}
        glyphs = [glyph for glyph in glyphs if glyph not in within]
        glyphs += stacks
        links = _folded(links, within)
    return Scene(box, glyphs, links, *_put_aside(glyphs, links, icons))


def _folded(links: Links, within: Mapping[Glyph, Glyph]) -> Links:
    """Return the lines among glyphs after folding; lines inside a stack disappear."""
    folded: dict[tuple[Glyph, Glyph], Link] = {}
    for (start, end), link in links.items():
        ends = within.get(start, start), within.get(end, end)
        if ends[0] is not ends[1]:
            link_before = folded.get(ends, Link(0, 0))
            folded[ends] = Link(link_before.data + link.data, link_before.control + link.control)
    return folded


def _put_aside(
    glyphs: list[Glyph], links: Links, icons: set[Item]
) -> tuple[dict[Glyph, _Reason], Links]:
    """Return the glyphs that the page takes out of the flow, and the links that are lines.

    Source: render.ts:1989-2255, `extractHighDegrees`
    """
    lines = dict(links)
    # A glyph that loses a line has an annotation (a stub) on that side, as from a circle or icon.
    gives: set[Glyph] = {glyph for glyph in glyphs if glyph in icons}
    reads: set[Glyph] = {
        glyph
        for glyph in glyphs
        if isinstance(glyph, Item)
        and any(s.embedded and is_circle(s.op) for s in (*glyph.sources, *glyph.controls))
    }

    def cut(ends: Iterable[tuple[Glyph, Glyph]]) -> None:
        for start, end in ends:
            gives.add(start)
            reads.add(end)
            del lines[start, end]

    aside: dict[Glyph, _Reason] = {glyph: "NoOp" for glyph in glyphs if _is_aside_by_op(glyph)}
    cut([ends for ends in lines if ends[0] in aside or ends[1] in aside])
    crowded = find_crowded(
        [glyph for glyph in glyphs if glyph not in aside],
        {ends: link.data > 0 for ends, link in lines.items()},
    )
    aside.update(dict.fromkeys(crowded, "many lines"))
    cut([ends for ends in lines if ends[0] in crowded or ends[1] in crowded])
    cut(_crowded_controls(lines))
    if lines or reads or gives:
        joined = {glyph for ends in lines for glyph in ends}
        # A glyph without lines stays in the flow if it has annotations on both sides, or none.
        for glyph in glyphs:
            if glyph not in joined and glyph not in aside and (glyph in reads) != (glyph in gives):
                aside[glyph] = "isolated"
    return aside, lines


def _is_aside_by_op(glyph: Glyph) -> bool:
    """Whether a node is a `NoOp`, or a box contains a `NoOp` that is named like the box.

    Source: render.ts:1969-2023, `hasTypeIn`; graph.ts:605, `getRootOp`
    """
    if isinstance(glyph, Box):
        named = glyph.children.get(f"({glyph.name.rpartition('/')[2]})")
        return isinstance(named, Item) and named.op == ASIDE_OP
    return isinstance(glyph, Item) and glyph.op == ASIDE_OP


def _crowded_controls(lines: Links) -> list[tuple[Glyph, Glyph]]:
    """Return the control lines at glyphs that have too many of them.

    Source: render.ts:2136-2152, `removeControlEdges`
    """
    controls = [ends for ends, link in lines.items() if not link.data]
    if len(controls) <= CONTROL_LIMIT:
        return []
    counts = Counter(glyph for ends in controls for glyph in ends)
    return [ends for ends in controls if max(counts[ends[0]], counts[ends[1]]) > CONTROL_LIMIT]


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
        member for member, why in scene.aside.items() if why == "many lines" and member in read
    }
    if not any(glyph in lost for glyph in exits if glyph not in unmissed):
        return []
    return [glyph for glyph in exits if glyph in lost]


def members_of(glyph: Glyph) -> tuple[Glyph, ...]:
    """Return the members of a stack; any other glyph alone."""
    return glyph.members if isinstance(glyph, Series) else (glyph,)


def _fed_from(starts: set[Glyph], lines: Links) -> set[Glyph]:
    """Return the glyphs that data reaches along lines, the starts included."""
    readers: dict[Glyph, list[Glyph]] = {}
    for (start, end), link in lines.items():
        if link.data:
            readers.setdefault(start, []).append(end)
    visited = set(starts)
    pending = list(visited)
    while pending:
        for reader in readers.get(pending.pop(), ()):
            if reader not in visited:
                visited.add(reader)
                pending.append(reader)
    return visited
