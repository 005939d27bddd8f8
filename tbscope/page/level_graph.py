"""Siblings: the children of one box as numbers, for levels that do not exist yet.

A layout asks how the page would draw a level if some of its children stood in a box, and
asks it often. So a child is known by its place among the children here, and glyphs are
not made: levels of 20,000 operations are cut in half a second. `scenes.py` reads the levels
that exist. The rules of the page (`series.py`, `crowds.py`) are the same ones for both, and
tests/test_both_models.py compares the two.

Only boxes of many children are looked at: the page puts nothing aside where there are few.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tbscope.page.constants import ASIDE_OP, CROWD_SIZE
from tbscope.page.flow import reached
from tbscope.page.glyphs import Box, Glyph, Item
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.high_degree import find_crowded
from tbscope.page.series import fold

__all__ = ["Siblings", "bears_seeds", "find_siblings"]

_Steps = dict[int, list[int]]


@dataclass(slots=True, eq=False)
class Siblings:
    """The children of one box, or of a part of it.

    What the page folds is found once: nobody changes a level whose stacks were asked for.

    Attributes:
        labels: The last part of the name of each.
        ops: The op type of each; empty for a box.
        links: Which child another one reads (from, to), and whether any data goes there.
        fed: Those that read data from outside; of the whole graph, its inputs.
        giving: Those whose data is read outside; of the whole graph, its outputs.
        ends: Those that are inputs or outputs of the whole graph, and stand at its top
            level: "Input" or "Output" for each.
    """

    labels: list[str]
    ops: list[str]
    links: dict[tuple[int, int], bool] = field(default_factory=dict)
    fed: set[int] = field(default_factory=set)
    giving: set[int] = field(default_factory=set)
    ends: dict[int, str] = field(default_factory=dict)
    _stacks: list[list[int]] | None = field(default=None, init=False, repr=False)
    _folded: "Siblings | None" = field(default=None, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    def series(self) -> list[list[int]]:
        """The children that the page folds into one stack each."""
        if self._stacks is None:
            self._stacks = list(fold(self.labels, self.ops).values())
        return self._stacks

    def folded(self) -> "Siblings":
        """Return the level with each of its stacks as one box, as the page draws it."""
        stacks = self.series()
        if not stacks:
            return self
        if self._folded is None:
            self._folded = self.grouped(stacks)
        return self._folded

    def with_boxes(self, count: int) -> "Siblings":
        """Return the level with so many boxes more, which nothing reads and which read nothing."""
        labels = [*self.labels, *(f"{number}_template" for number in range(count))]
        level = Siblings(labels, self.ops + [""] * count, self.links, self.fed, self.giving)
        # No box is folded, so the stacks are the same.
        level._stacks = self.series()
        return level

    def grouped(self, groups: Iterable[Sequence[int]]) -> "Siblings":
        """Return the level where each of these groups is one box without a name.

        The groups come first, then the others in their order.
        """
        whereto: dict[int, int] = {}
        for number, members in enumerate(groups):
            whereto.update(dict.fromkeys(members, number))
        count = len(set(whereto.values()))
        labels, ops = [""] * count, [""] * count
        for place, (label, op) in enumerate(zip(self.labels, self.ops, strict=True)):
            if place not in whereto:
                whereto[place] = len(labels)
                labels.append(label)
                ops.append(op)
        links: dict[tuple[int, int], bool] = {}
        for (start, end), data in self.links.items():
            ends = whereto[start], whereto[end]
            if ends[0] != ends[1]:
                links[ends] = data or links.get(ends, False)
        fed = {whereto[place] for place in self.fed}
        return Siblings(labels, ops, links, fed, {whereto[place] for place in self.giving})

    def parts(self, groups: Sequence[Sequence[int]]) -> list["Siblings"]:
        """Return the levels in the boxes of these groups."""
        whereto: dict[int, tuple[int, int]] = {}
        parts = []
        for number, members in enumerate(groups):
            whereto.update((place, (number, at)) for at, place in enumerate(members))
            part = Siblings([self.labels[at] for at in members], [self.ops[at] for at in members])
            part.fed.update(at for at, place in enumerate(members) if place in self.fed)
            part.giving.update(at for at, place in enumerate(members) if place in self.giving)
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
        """The children whose edges the page cuts to stubs, for they are too many."""
        cards = {place for place, op in enumerate(self.ops) if op == ASIDE_OP}
        places: Sequence[int] = range(len(self))
        links = self.links
        if cards:
            places = [place for place in places if place not in cards]
            links = {ends: data for ends, data in links.items() if cards.isdisjoint(ends)}
        return set(find_crowded(places, links))

    def keeps_flow(self) -> bool:
        """Tell whether what comes in still reaches what goes out, as the page draws it.

        What the page puts aside may take a few others with it that lead nowhere else (what
        makes a mask for every layer), but nothing that leads outside. What has no data line
        on its level is not missed: where one node has many wait for it, the page cuts their
        lines, and no box around some of them would mend that.
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
        return self._reaches_ends(aside, hubs)

    def keeps_ends(self) -> bool:
        """Whether lines lead to each end of the flow from where it begins, as the page draws it.

        That is the least: `lost-output` is an error where they do not (rules/levels.py).
        """
        crowded = self.put_aside()
        if not crowded:
            return True
        return self._reaches_ends(crowded | self._stranded(crowded), self._hubs(crowded))

    def _hubs(self, crowded: set[int]) -> set[int]:
        """Of what is put aside, that is not missed: what reads it here goes on."""
        return crowded & {start for (start, _), data in self.links.items() if data}

    def _reaches_ends(self, aside: set[int], hubs: set[int]) -> bool:
        """Whether data reaches each end without these, but for those that it never reached."""
        read = {start for (start, _), data in self.links.items() if data}
        reads = {end for (_, end), data in self.links.items() if data}
        places = set(range(len(self)))
        ends = (places - read | self.giving) & (reads | self.fed) - hubs
        starts = places - reads | self.fed
        before, _ = self._steps(set())
        after, _ = self._steps(aside)
        known, fed = reached(starts, before), reached(starts - aside, after)
        return ends & known <= fed

    def _stranded(self, aside: set[int]) -> set[int]:
        """The children that stand alone without these, and are put aside in their turn.

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
        """The children on a way of data from outside to outside, without these."""
        onwards, backwards = self._steps(aside)
        fed, read = reached(self.fed - aside, onwards), reached(self.giving - aside, backwards)
        return fed & read

    def _steps(self, aside: set[int]) -> tuple[_Steps, _Steps]:
        """The readers of each child's data, and the children whose data it reads, without these."""
        onwards: _Steps = defaultdict(list)
        backwards: _Steps = defaultdict(list)
        for (start, end), data in self.links.items():
            if data and start not in aside and end not in aside:
                onwards[start].append(end)
                backwards[end].append(start)
        return onwards, backwards


def find_siblings(hierarchy: Hierarchy, fewest: int = CROWD_SIZE) -> dict[Box, Siblings]:
    """Read the level of each box that has so many children, outer boxes first."""
    boxes = (hierarchy.root, *hierarchy.boxes.values())
    return _levels(hierarchy, [box for box in boxes if len(box.children) >= fewest])


def bears_seeds(hierarchy: Hierarchy, count: int, known: Siblings | None = None) -> bool:
    """Tell whether so many boxes of the function panel leave the flow of the graph whole.

    The page counts them among the children of the root when it looks for those that have
    more edges than the others, and only then moves them to their panel.

    Args:
        hierarchy: All nodes without them, in chunks where they need any.
        count: How many there shall be.
        known: What `find_siblings` has read of its root; None where nobody has asked.

    Source: render.ts, `buildSubhierarchy`
    """
    root = hierarchy.root
    if len(root.children) + count < CROWD_SIZE:
        return True
    level = _levels(hierarchy, [root])[root] if known is None else known
    return level.with_boxes(count).folded().keeps_flow()


def _levels(hierarchy: Hierarchy, boxes: list[Box]) -> dict[Box, Siblings]:
    levels: dict[Box, Siblings] = {}
    places: dict[Glyph, int] = {}
    for box in boxes:
        children = box.children
        ops = [child.op if isinstance(child, Item) else "" for child in children.values()]
        levels[box] = Siblings(list(children), ops)
        places.update((child, place) for place, child in enumerate(children.values()))
    if levels:
        _link(hierarchy, levels, places)
    if hierarchy.root in levels:
        _find_ends(levels[hierarchy.root], hierarchy.root.children.values())
    return levels


def _link(
    hierarchy: Hierarchy, levels: Mapping[Box, Siblings], places: Mapping[Glyph, int]
) -> None:
    entered, left = hierarchy.doors.entered, hierarchy.doors.left
    for box, level in levels.items():
        level.links = {
            (places[start], places[end]): link.data > 0
            for (start, end), link in hierarchy.links(box).items()
        }
        for place, child in enumerate(box.children.values()):
            if child in entered:
                level.fed.add(place)
            if child in left:
                level.giving.add(place)


def _find_ends(level: Siblings, children: Iterable[Box | Item]) -> None:
    """Find the inputs and the outputs of the whole graph, and the boxes that begin with one."""
    words = [_word_of_end(child) for child in children]
    level.ends.update((at, word) for at, word in enumerate(words) if word and level.ops[at])
    for word, ends, side in (("Input", level.fed, 1), ("Output", level.giving, 0)):
        ends.update(at for at, found in enumerate(words) if found == word)
        if not ends:
            ends.update(set(range(len(level))) - {link[side] for link in level.links})


def _word_of_end(child: Box | Item) -> str:
    """Return "Input" or "Output" for one of the graph, or a box of some; empty for all else."""
    while isinstance(child, Box):
        if not child.children:
            return ""
        child = next(iter(child.children.values()))
    # One that must not be folded with others is an `Input[image]`.
    word = child.op.partition("[")[0]
    return word if word in ("Input", "Output") else ""
