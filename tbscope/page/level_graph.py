"""Level graphs: the children of one box as numbers, for levels that do not exist yet.

The layout often tests how the page would draw a level if some of its children were in a box
of their own. So a child is its index among the children, and no glyphs are made: levels of
20,000 operations are split in half a second. The rules of `series.py` are applied here, and
tests/test_both_models.py compares the results with a second model of the page.

Only boxes with many children are read, since the page puts nothing aside on small levels.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tbscope.page.constants import ASIDE_OP, CROWD_SIZE, LIBRARY
from tbscope.page.glyphs import Box, Glyph, Item
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.series import find_crowded, fold

_Steps = dict[int, list[int]]


@dataclass(slots=True, eq=False)
class LevelGraph:
    """The children of one box, or some of them, by index.

    Stacks are cached, so a level must not change after `series` was called.

    Attributes:
        labels: The last part of the name of each child.
        ops: The op type of each child; empty for a box.
        links: Whether any data flows along a line (or only control), by its ends (from, to).
        fed: The children that read data from outside; at the root, the inputs of the graph.
        giving: The children whose data is read outside; at the root, the outputs of the graph.
        ends: "Input" or "Output" for each input or output of the whole graph that is a node at
            its top level.
    """

    labels: list[str]
    ops: list[str]
    links: dict[tuple[int, int], bool] = field(default_factory=dict)
    fed: set[int] = field(default_factory=set)
    giving: set[int] = field(default_factory=set)
    ends: dict[int, str] = field(default_factory=dict)
    _stacks: list[list[int]] | None = field(default=None, init=False, repr=False)
    _folded: "LevelGraph | None" = field(default=None, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    def series(self) -> list[list[int]]:
        """Return the members of each stack into which the page folds children."""
        if self._stacks is None:
            self._stacks = list(fold(self.labels, self.ops).values())
        return self._stacks

    def folded(self) -> "LevelGraph":
        """Return the level with each of its stacks as one child, as the page draws it."""
        stacks = self.series()
        if not stacks:
            return self
        if self._folded is None:
            self._folded = self.grouped(stacks)
        return self._folded

    def with_boxes(self, count: int) -> "LevelGraph":
        """Return the level with a number of additional boxes of the function panel."""
        labels = [*self.labels, *(f"{LIBRARY}{number}" for number in range(count))]
        # An op type of their own: they are no boxes between which operations are.
        ops = self.ops + [LIBRARY] * count
        level = LevelGraph(labels, ops, self.links, self.fed, self.giving, self.ends)
        # The page folds none of these boxes, so the stacks do not change.
        level._stacks = self.series()
        return level

    def grouped(self, groups: Iterable[Sequence[int]]) -> "LevelGraph":
        """Return the level with each group of children replaced by one box without a name.

        The groups come first, then the remaining children in their order.
        """
        group_of: dict[int, int] = {}
        for number, members in enumerate(groups):
            group_of.update(dict.fromkeys(members, number))
        count = len(set(group_of.values()))
        # An empty op type marks a box, so the page never folds the groups themselves.
        labels, ops = [""] * count, [""] * count
        for index, (label, op) in enumerate(zip(self.labels, self.ops, strict=True)):
            if index not in group_of:
                group_of[index] = len(labels)
                labels.append(label)
                ops.append(op)
        links: dict[tuple[int, int], bool] = {}
        for (start, end), data in self.links.items():
            ends = group_of[start], group_of[end]
            if ends[0] != ends[1]:
                links[ends] = data or links.get(ends, False)
        fed = {group_of[index] for index in self.fed}
        return LevelGraph(labels, ops, links, fed, {group_of[index] for index in self.giving})

    def parts(self, groups: Sequence[Sequence[int]]) -> list["LevelGraph"]:
        """Return the level inside of the box of each group."""
        whereto: dict[int, tuple[int, int]] = {}
        parts = []
        for number, members in enumerate(groups):
            whereto.update((index, (number, at)) for at, index in enumerate(members))
            part = LevelGraph(
                [self.labels[at] for at in members],
                [self.ops[at] for at in members],
                fed={at for at, index in enumerate(members) if index in self.fed},
                giving={at for at, index in enumerate(members) if index in self.giving},
            )
            parts.append(part)
        nowhere = (-1, 0)
        for (start, end), data in self.links.items():
            here, at = whereto.get(start, nowhere)
            there, to = whereto.get(end, nowhere)
            if here == there:
                if here >= 0:
                    parts[here].links[at, to] = data
            elif data:
                if here >= 0:
                    parts[here].giving.add(at)
                if there >= 0:
                    parts[there].fed.add(to)
        return parts

    def put_aside(self) -> set[int]:
        """Return the children whose lines the page cuts to stubs because they are too many."""
        cards = {index for index, op in enumerate(self.ops) if op == ASIDE_OP}
        remaining: Sequence[int] = range(len(self))
        links = self.links
        if cards:
            remaining = [index for index in remaining if index not in cards]
            links = {ends: data for ends, data in links.items() if cards.isdisjoint(ends)}
        return find_crowded(remaining, links)

    def keeps_flow(self) -> bool:
        """Whether data still flows from the entries to the exits, as the page draws the level.

        A child that the page puts aside may isolate a few others that lead nowhere else (such
        as the operations that make a mask for every layer), but no child that leads outside.
        A child without data lines on its level is not missed: if many nodes have a control
        dependency on one node, the page cuts their lines, and no box around some of them would
        change that.
        """
        crowded = self.put_aside()
        if not crowded:
            return True
        aside = crowded | self._stranded(crowded)
        hubs = self._hubs(crowded)
        before, after = self._through(set()), self._through(aside)
        lost = before - after
        if self.giving & lost - hubs or len(lost - crowded) * 4 > len(before):
            return False
        return not self._lost(aside, hubs)

    def lost_ends(self) -> set[int]:
        """Return the exits that no entry reaches any more, as the page draws the level.

        The rule `lost-output` (rules/levels.py) reports them as errors.
        """
        crowded = self.put_aside()
        if not crowded:
            return set()
        return self._lost(crowded | self._stranded(crowded), self._hubs(crowded))

    def _hubs(self, crowded: set[int]) -> set[int]:
        """Return the children put aside that have data readers on this level.

        They are not missed as exits, since their readers continue the flow.
        """
        return crowded & {start for (start, _), data in self.links.items() if data}

    def _lost(self, aside: set[int], hubs: set[int]) -> set[int]:
        """Return the exits that data does not reach any more.

        Args:
            aside: The children without which data must flow.
            hubs: The children that do not count as exits.
        """
        read = {start for (start, _), data in self.links.items() if data}
        reads = {end for (_, end), data in self.links.items() if data}
        places = set(range(len(self)))
        ends = (places - read | self.giving) & (reads | self.fed) - hubs
        starts = places - reads | self.fed
        before, _ = self._steps(set())
        after, _ = self._steps(aside)
        return ends & _reached(starts, before) - _reached(starts - aside, after)

    def _stranded(self, aside: set[int]) -> set[int]:
        """Return the children that lose all lines with these, and so are put aside as well.

        Source: render.ts, `extractHighDegrees`
        """
        joined: set[int] = set()
        sides: tuple[set[int], set[int]] = set(), set()
        for start, end in self.links:
            if start in aside or end in aside:
                sides[0].add(start)
                sides[1].add(end)
            else:
                joined.update((start, end))
        return (sides[0] ^ sides[1]) - joined - aside

    def _through(self, aside: set[int]) -> set[int]:
        """Return the children on a path of data from outside to outside, without these."""
        onwards, backwards = self._steps(aside)
        return _reached(self.fed - aside, onwards) & _reached(self.giving - aside, backwards)

    def _steps(self, aside: set[int]) -> tuple[_Steps, _Steps]:
        """Return the readers of each child's data and the sources of its data, without these."""
        onwards: _Steps = defaultdict(list)
        backwards: _Steps = defaultdict(list)
        for (start, end), data in self.links.items():
            if data and start not in aside and end not in aside:
                onwards[start].append(end)
                backwards[end].append(start)
        return onwards, backwards


def _reached(starts: set[int], steps: _Steps) -> set[int]:
    """Return the children that are reachable from the starts, these included."""
    visited = set(starts)
    pending = list(visited)
    while pending:
        for step in steps.get(pending.pop(), ()):
            if step not in visited:
                visited.add(step)
                pending.append(step)
    return visited


def read_levels(hierarchy: Hierarchy, fewest: int = CROWD_SIZE) -> dict[Box, LevelGraph]:
    """Return the level of each box with at least that many children, outer boxes first."""
    boxes = (hierarchy.root, *hierarchy.boxes.values())
    return _levels(hierarchy, [box for box in boxes if len(box.children) >= fewest])


def read_root(hierarchy: Hierarchy) -> LevelGraph:
    """Return the level of the root."""
    return _levels(hierarchy, [hierarchy.root])[hierarchy.root]


def _levels(hierarchy: Hierarchy, boxes: list[Box]) -> dict[Box, LevelGraph]:
    levels: dict[Box, LevelGraph] = {}
    places: dict[Glyph, int] = {}
    for box in boxes:
        children = box.children
        ops = [child.op if isinstance(child, Item) else "" for child in children.values()]
        levels[box] = LevelGraph(list(children), ops)
        places.update(zip(children.values(), range(len(children)), strict=True))
    if levels:
        _link(hierarchy, levels, places)
    if hierarchy.root in levels:
        _find_ends(levels[hierarchy.root], hierarchy.root.children.values())
    return levels


def _link(
    hierarchy: Hierarchy, levels: Mapping[Box, LevelGraph], places: Mapping[Glyph, int]
) -> None:
    entered, left = hierarchy.doors.entered, hierarchy.doors.left
    for box, level in levels.items():
        level.links = {
            (places[start], places[end]): link.data > 0
            for (start, end), link in hierarchy.links(box).items()
        }
        for index, child in enumerate(box.children.values()):
            if child in entered:
                level.fed.add(index)
            if child in left:
                level.giving.add(index)


def _find_ends(level: LevelGraph, children: Iterable[Box | Item]) -> None:
    """Mark the inputs and outputs of the whole graph, and the boxes that begin with one.

    Without inputs, the children that read nothing count as fed; without outputs, the children
    that nothing reads count as giving.
    """
    words = [word_of_end(child) for child in children]
    level.ends.update(
        (index, word) for index, word in enumerate(words) if word and level.ops[index]
    )
    for word, ends, side in (("Input", level.fed, 1), ("Output", level.giving, 0)):
        ends.update(index for index, kind in enumerate(words) if kind == word)
        if not ends:
            ends.update(set(range(len(level))) - {link[side] for link in level.links})


def word_of_end(child: Box | Item) -> str:
    """Return "Input" or "Output" for a node of that type or a box that begins with one.

    The result is empty for any other child.
    """
    while isinstance(child, Box):
        child = next(iter(child.children.values()))
    # An input that must not be folded has the op type `Input[image]`.
    word = child.op.partition("[")[0]
    return word if word in ("Input", "Output") else ""
