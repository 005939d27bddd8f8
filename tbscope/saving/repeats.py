"""Repeats: runs of equal blocks, `0-125`, `LlamaDecoderLayer × 126`: in the viewer, and in figures.

A run is a short sequence of siblings (a block) that repeats: one layer, alternating Linear and
ReLU, or an iteration of a loop. Their labels differ in numbers alone; the first may have no number.

The viewer draws one box for a run on a long level, and every block in it can be opened: boxes are
equal if their structures are, nodes if their operations are. A figure draws the first block only,
so the blocks of its runs must have equal names, operations, hyper-parameters, sizes and lines, and
equal joints with the rest: all blocks read the block before them, or none does; outputs that one
block passes to others than the next block, every block passes on. So each line of the graph is
drawn, or is inside a block that is not drawn, or leads from a block of a run to the next.
"""

import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from tbscope.page.glyphs import Box, Item, box_around
from tbscope.page.templates import Structures
from tbscope.saving.box_tree import Glyph, NodeInput, Picture

# A level with fewer children is readable without folds.
_LONG = 20
_MOST_PERIOD = 24
_LEAST_TIMES = 4
# For a figure: the longest block, and the fewest hidden nodes that are worth a fold.
_MOST_IN_FIGURE = 8
_LEAST_HIDDEN = 4
# Labels that differ in more than numbers were chosen by the author: their nodes are not equal.
_NUMBERS = re.compile(r"[._]\d+(?:st|nd|rd|th)?\b|\d+")
_LAST_NUMBER = re.compile(r"(.*?)(\d+)")


def _stem(label: str) -> str:
    """Return a label without its numbers: `add` for `add_1`, an empty text for `12`."""
    return _NUMBERS.sub("", label)


# -- the viewer ----------------------------------------------------------------------------------


def fold_repeats(picture: Picture) -> dict[Box, int]:
    """Put the runs of each long level of a picture into boxes of their own.

    Returns:
        A number for each box but the root, equal for boxes with equal contents.
    """
    structures = Structures(picture.hierarchy)
    numbers = {box: structure.number for box, structure in structures.of.items()}
    runs: dict[Hashable, int] = {}
    for box in [picture.root, *picture.boxes]:
        children = [*box.children.values()]
        if len(picture.children(box)) <= _LONG:
            continue
        keys = [_key(picture, structures, child) for child in children]
        folded: list[Glyph] = []
        at = 0
        while at < len(children):
            period, times = _run_at(keys, at)
            members = children[at : at + period * times]
            if times:
                label = _label(members[0].label, members[-1].label)
                while label in box.children:
                    label = f"{label}_"
                run = picture.surround(box, label, members)
                names = [
                    picture.class_of(member) or _stem(member.label) for member in members[:period]
                ]
                picture.fold(run, ", ".join(names), times)
                numbers[run] = runs.setdefault(
                    (*keys[at : at + period], times), len(structures.all) + len(runs) + 1
                )
                folded.append(run)
            else:
                folded.append(children[at])
            at += max(period * times, 1)
        box.children = {child.label: child for child in folded}
    _place(picture)
    return numbers


def _key(picture: Picture, structures: Structures, child: Glyph) -> Hashable:
    if isinstance(child, Item):
        return child.op, _stem(child.label)
    return structures.of[child].number, picture.class_of(child), _stem(child.label)


def _run_at(keys: Sequence[Hashable], at: int) -> tuple[int, int]:
    """Return the period and the count of the run that begins at an index, or zeros for none."""
    best = 0, 0
    for period in range(1, _MOST_PERIOD + 1):
        end = at + period
        while end < len(keys) and keys[end] == keys[end - period]:
            end += 1
        times = (end - at) // period
        if times >= _LEAST_TIMES and period * times > best[0] * best[1]:
            best = period, times
    return best


def _label(first: str, last: str) -> str:
    """Return the label of a run: `0-125`, `cell.0-11`, or for different labels `cell-out.11`."""
    match = _LAST_NUMBER.fullmatch(last)
    if match is not None:
        name, number = match.groups()
        begin = first.removeprefix(name)
        if first.startswith(name) and begin.isdecimal():
            return f"{name}{begin}-{number}"
        if name and first == name[:-1] and name[-1] in "._":
            # The first of several calls has no number in its label.
            return f"{name}0-{number}"
    return f"{first}-{last}"


def _place(picture: Picture) -> None:
    """List all boxes anew, each after its parent, and set their depths."""
    picture.boxes = [glyph for glyph in picture.walk() if isinstance(glyph, Box)]
    for box in picture.boxes:
        assert box.parent is not None, "the root alone has no parent"
        box.depth = box.parent.depth + 1
    picture.hierarchy.regroup(picture.boxes)


# -- figures -------------------------------------------------------------------------------------

_Joint: TypeAlias = tuple[int, Hashable]
"""The index of a node in its block, and a source or reader of it outside."""


class _ChildRange(NamedTuple):
    """Some adjacent children of a box.

    Attributes:
        members: The children.
        indices: The index of each node among the nodes of the block, at any depth.
        content: A key that is equal for equal blocks: nodes and boxes, and their inputs inside.
    """

    members: Sequence[Glyph]
    indices: dict[Item, int]
    content: list[Hashable]


class _Repetition:
    """Adjacent equal blocks.

    Attributes:
        blocks: The blocks.
        nodes: The nodes in all of them.
        joints: Three sets: the links from each block to the next, empty for blocks side by side;
            the inputs of a block from elsewhere; and the readers elsewhere of the block before.
    """

    def __init__(self, first: _ChildRange) -> None:
        self.blocks = [first]
        self.nodes = {*first.indices}
        self.joints: tuple[set[_Joint], ...] = ()


class Folds:
    """The runs of a picture; blocks that are not drawn are removed from its boxes.

    Attributes:
        picture: The picture.
        titles: The label and the second line of each node or box that represents several blocks.
    """

    def __init__(self, picture: Picture) -> None:
        """Find the runs; blocks of several nodes or boxes get a box around the first one."""
        self.picture = picture
        self.titles: dict[Glyph, tuple[str, str]] = {}
        self._reads: dict[Item, list[NodeInput]] = {}
        self._sources: dict[Item, list[Item]] = {}
        self._readers: dict[Item, list[Item]] = {}
        # The node in the first block for each node of a block that is not drawn.
        self._first: dict[Item, Item] = {}
        # The index of the block of each node, by the runs that contain it.
        self._blocks: dict[Item, dict[_Repetition, int]] = {}
        # The boxes that were made around blocks of several members.
        self._made: set[Box] = set()
        # Each box with its contents at any depth, and each node alone.
        self._below: dict[Glyph, list[Glyph]] = {}
        calls = picture.graph.calls if picture.graph else []
        self._hyperparameters = {call.scope.path: call.hyperparameters for call in calls}
        for item in picture.items:
            self._below[item] = [item]
            if not item.embedded:
                self._reads[item] = [*picture.flow(item)]
                self._sources[item] = [read.source for read in self._reads[item]]
                for source in self._sources[item]:
                    self._readers.setdefault(source, []).append(item)
        # Parents come first.
        for box in reversed([picture.root, *picture.boxes]):
            inside = (self._below[child] for child in picture.children(box))
            self._below[box] = [box, *(glyph for below in inside for glyph in below)]
        pending = [picture.root]
        while pending:
            pending += self._fold(pending.pop())

    def ends(self, source: Item, reader: Item) -> tuple[Item, Item] | None:
        """Return the nodes that are drawn for the ends of a line, or None if it is not drawn."""
        (start, of_source), (end, of_reader) = self._drawn_for(source), self._drawn_for(reader)
        for run in of_source.keys() & of_reader.keys():
            if of_source[run] or of_reader[run]:
                return None
        return start, end

    def _drawn_for(self, item: Item) -> tuple[Item, dict[_Repetition, int]]:
        """Return the node that is drawn for a node, and the indices of its blocks in all runs."""
        blocks = self._blocks.get(item, {})
        while item in self._first:
            item = self._first[item]
            blocks = {**self._blocks.get(item, {}), **blocks}
        return item, blocks

    def _fold(self, box: Box) -> list[Box]:
        """Fold the runs of a level, and return its boxes that are drawn."""
        children = self.picture.children(box)
        keys = [
            (_stem(child.label), self.picture.class_of(child), len(self._below[child]))
            for child in children
        ]
        kept: list[Glyph] = []
        drawn: list[Glyph] = []
        at = 0
        while at < len(children):
            run = self._run_at(box, children, keys, at)
            kept.append(children[at] if run is None else self._take(box, run))
            members = children[at : at + 1] if run is None else run.blocks[0].members
            drawn += members
            at += len(members) * (1 if run is None else len(run.blocks))
        box.children = {child.label: child for child in kept}
        return [child for child in drawn if isinstance(child, Box)]

    def _run_at(
        self, box: Box, children: Sequence[Glyph], keys: Sequence[Hashable], at: int
    ) -> _Repetition | None:
        """Return the longest run that begins at a child of a box."""
        best, most = None, at
        for period in range(1, _MOST_IN_FIGURE + 1):
            end = at + period
            if keys[at:end] != keys[end : end + period]:
                continue
            run = _Repetition(self._block(children[at:end]))
            while keys[at : at + period] == keys[end : end + period] and self._takes(
                run, self._block(children[end : end + period]), box
            ):
                end += period
            hidden = (len(run.blocks) - 1) * len(run.blocks[0].indices)
            if end > most and hidden >= _LEAST_HIDDEN:
                best, most = run, end
        return best

    def _block(self, members: Sequence[Glyph]) -> _ChildRange:
        picture = self.picture
        nodes = [
            glyph for member in members for glyph in self._below[member] if isinstance(glyph, Item)
        ]
        indices = {item: at for at, item in enumerate(nodes)}
        content: list[Hashable] = []
        for number, member in enumerate(members):
            for glyph in self._below[member]:
                scope = str(picture.fact(glyph, "scope"))
                key: Hashable
                if isinstance(glyph, Item):
                    reads = [
                        (indices.get(read.source), read.output, read.waits)
                        for read in self._reads[glyph]
                    ]
                    key = glyph.op, picture.outputs(glyph), tuple(reads)
                else:
                    key = picture.class_of(glyph)
                name = glyph.name[len(member.name) :]
                content.append((number, name, self._hyperparameters.get(scope), key))
        return _ChildRange(members, indices, content)

    def _takes(self, run: _Repetition, block: _ChildRange, around: Box) -> bool:
        """Add a block to a run if its content and its joints equal those of the others."""
        before = run.blocks[-1]
        if block.content != before.content:
            return False
        for item in block.indices:
            sources, readers = self._sources[item], self._readers.get(item, ())
            # A block may read only the block before it; no earlier block may read it.
            if any(
                source in run.nodes and source not in before.indices for source in sources
            ) or any(reader in run.nodes for reader in readers):
                return False
        links: set[_Joint] = {
            (index, (before.indices[read.source], read.output))
            for item, index in block.indices.items()
            for read in self._reads[item]
            if read.source in before.indices
        }
        entries = self._joints(block, self._sources, before.indices, around)
        exits = self._joints(before, self._readers, block.indices, around)
        if not run.joints:
            run.joints = links, entries, exits
            joined = entries <= self._joints(before, self._sources, (), around)
        else:
            joined = run.joints == (links, entries, exits)
        if not joined or not exits <= self._joints(block, self._readers, (), around):
            return False
        run.blocks.append(block)
        run.nodes.update(block.indices)
        return True

    def _joints(
        self,
        block: _ChildRange,
        near: Mapping[Item, Sequence[Item]],
        neighbour: Collection[Item],
        around: Box,
    ) -> set[_Joint]:
        """Return the sources or readers of a block's nodes outside of the block and its neighbour.

        Those outside of the box `around` are named without their numbers: there, each block may be
        joined with its own one of several equal nodes.
        """
        above: set[Box | None] = set()
        box: Box | None = around
        while box is not None:
            above.add(box)
            box = box.parent
        joints: set[_Joint] = set()
        for item, index in block.indices.items():
            for linked in near.get(item, ()):
                if linked not in block.indices and linked not in neighbour:
                    glyph: Glyph = linked
                    while (outer := self._box_around(glyph)) not in above:
                        glyph = outer
                    label = glyph.label if outer is around else _stem(glyph.label)
                    joints.add((index, (outer.name, label)))
        return joints

    def _box_around(self, glyph: Glyph) -> Box:
        """Return the parent of a node or a box, skipping the boxes that were made for runs."""
        box = box_around(glyph)
        while box is not None and box in self._made:
            box = box.parent
        assert box is not None, "the root is around all"
        return box

    def _take(self, box: Box, run: _Repetition) -> Glyph:
        """Fold a run into its first block, and return the node or box that is drawn for it."""
        first, *others = run.blocks
        for at, block in enumerate(run.blocks):
            for item in block.indices:
                self._blocks.setdefault(item, {})[run] = at
            if at:
                self._first.update(zip(block.indices, first.indices, strict=True))
        glyph = first.members[0]
        label = f"{glyph.label}-{others[-1].members[-1].label}"
        if len(first.members) == 1:
            text = self.picture.second_line(glyph)
        else:
            text = ", ".join(
                self.picture.class_of(member) or member.label for member in first.members
            )
            glyph = self._surround(box, label, first.members)
        times = f"× {len(run.blocks)}" + ("" if run.joints[0] else " side by side")
        self.titles[glyph] = label, f"{text} {times}" if text else times
        return glyph

    def _surround(self, parent: Box, label: str, members: Sequence[Glyph]) -> Box:
        """Put the members of a block into a box of their own."""
        box = self.picture.surround(parent, label, members)
        for member in members:
            for glyph in self._below[member]:
                if isinstance(glyph, Box):
                    glyph.depth += 1
        self.picture.boxes.append(box)
        self._made.add(box)
        return box
