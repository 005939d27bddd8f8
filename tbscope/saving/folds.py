"""Folds: runs of equal blocks in a figure, of which the first block is drawn for all.

Blocks are equal if their nodes have the same names, operations, hyper-parameters, sizes and lines,
and if each block is joined alike with the rest: it reads the block before it, or none of them does;
what one gives to others than the next block, each gives. So a line is drawn, or is inside a block
that is not drawn, or leads from a block of a run to the next one.
"""

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import TypeAlias

from tbscope.page.glyphs import Box, Item
from tbscope.saving.picture import Glyph, Picture, Read
from tbscope.saving.repeats import stem

__all__ = ["Folds"]

_Joint: TypeAlias = tuple[int, Hashable]
"""The place of a node in its block, and what it reads or is read by."""

_MOST_PERIOD = 8
# Fewer nodes take as little room as they are.
_LEAST_HIDDEN = 4


class Folds:
    """The runs of a picture; the blocks that are not drawn leave its boxes.

    Attributes:
        titles: The label and the second line of what is drawn for several blocks.
    """

    def __init__(self, picture: Picture) -> None:
        """Find the runs; blocks of several nodes or boxes get a box around the first one."""
        self.picture = picture
        self.titles: dict[Glyph, tuple[str, str]] = {}
        self.reads: dict[Item, list[Read]] = {}
        self.readers: dict[Item, list[Item]] = {}
        # For a node of a block that is not drawn, the one in the first block.
        self._first: dict[Item, Item] = {}
        # The place of the block of a node in each run that it is in.
        self._blocks: dict[Item, dict[_Run, int]] = {}
        # The boxes around blocks of several members.
        self._made: set[Box] = set()
        self._inside: dict[Glyph, list[Item]] = {}
        calls = picture.graph.calls if picture.graph else []
        self._hyperparameters = {call.scope.path: call.hyperparameters for call in calls}
        for item in picture.items:
            if not item.embedded:
                self.reads[item] = [*picture.flow(item)]
                for read in self.reads[item]:
                    self.readers.setdefault(read.source, []).append(item)
        # Parents come first.
        for box in reversed([picture.root, *picture.boxes]):
            parts = [self.nodes_in(child) for child in picture.children(box)]
            self._inside[box] = [item for part in parts for item in part]
        pending = [picture.root]
        while pending:
            pending += self._fold(pending.pop())

    def ends(self, source: Item, reader: Item) -> tuple[Item, Item] | None:
        """Return the nodes that are drawn for both ends of a line; None if it is not drawn."""
        blocks = self._blocks_of(reader)
        for run, block in self._blocks_of(source).items():
            if run in blocks and (block or blocks[run]):
                return None
        return self._drawn_for(source), self._drawn_for(reader)

    def nodes_in(self, glyph: Glyph) -> list[Item]:
        """Return the nodes in a box at any depth, in order; of a node, itself."""
        return self._inside[glyph] if isinstance(glyph, Box) else [glyph]

    def settings_of(self, glyph: Glyph) -> object:
        """Return the class of a node or a box, and the hyper-parameters of its module."""
        scope = self.picture.fact(glyph, "scope")
        return self.picture.class_of(glyph), self._hyperparameters.get(str(scope))

    def beside(self, item: Item, around: Box) -> Hashable:
        """Return what contains a node and is in a box, or beside it: there without numbers.

        Blocks in a box may each be joined with one of several that are beside it.
        """
        above: set[Box | None] = {around}
        box = around
        while box.parent is not None:
            above.add(box := box.parent)
        glyph: Glyph = item
        while (outer := self._box_around(glyph)) not in above:
            glyph = outer
        return outer.name, glyph.label if outer is around else stem(glyph.label)

    def _box_around(self, glyph: Glyph) -> Box:
        """Return the box around a node or a box, as it was before there were runs."""
        box = glyph.box if isinstance(glyph, Item) else glyph.parent
        while box is not None and box in self._made:
            box = box.parent
        assert box is not None, "the root is around all"
        return box

    def _drawn_for(self, item: Item) -> Item:
        while item in self._first:
            item = self._first[item]
        return item

    def _blocks_of(self, item: Item) -> "dict[_Run, int]":
        found = self._blocks.get(item, {})
        while item in self._first:
            item = self._first[item]
            found = {**self._blocks.get(item, {}), **found}
        return found

    def _fold(self, box: Box) -> list[Box]:
        """Fold the runs of a level, and return the boxes of it that are drawn."""
        children = self.picture.children(box)
        keys = [self._key(child) for child in children]
        kept: list[Glyph] = []
        drawn: list[Glyph] = []
        at = 0
        while at < len(children):
            run = self._run_at(box, children, keys, at)
            if run is None:
                kept.append(children[at])
                drawn.append(children[at])
                at += 1
            else:
                kept.append(self._take(box, run))
                drawn += run.blocks[0].members
                at += len(run.blocks) * len(run.blocks[0].members)
        box.children = {child.label: child for child in kept}
        return [child for child in drawn if isinstance(child, Box)]

    def _key(self, child: Glyph) -> Hashable:
        """Return what equal members of blocks have in common at first sight."""
        return stem(child.label), self.picture.class_of(child), len(self.nodes_in(child))

    def _run_at(
        self, box: Box, children: Sequence[Glyph], keys: Sequence[Hashable], at: int
    ) -> "_Run | None":
        """Return the longest run that begins at a child of a box."""
        best, most = None, at
        for period in range(1, _MOST_PERIOD + 1):
            end = at + period
            if keys[at:end] != keys[end : end + period]:
                continue
            run = _Run(self, _Block(self, children[at:end]), box)
            while keys[at : at + period] == keys[end : end + period] and run.takes(
                _Block(self, children[end : end + period])
            ):
                end += period
            hidden = (len(run.blocks) - 1) * len(run.blocks[0].nodes)
            if end > most and hidden >= _LEAST_HIDDEN:
                best, most = run, end
        return best

    def _take(self, box: Box, run: "_Run") -> Glyph:
        """Have the first block of a run stand for all, and return what is drawn of it."""
        first, *others = run.blocks
        for place, block in enumerate(run.blocks):
            for item in block.nodes:
                self._blocks.setdefault(item, {})[run] = place
        for block in others:
            self._first.update(zip(block.nodes, first.nodes, strict=True))
        glyph = first.members[0]
        label = f"{glyph.label}-{others[-1].members[-1].label}"
        if len(first.members) == 1:
            text = self.picture.second_line(glyph)
        else:
            names = [self.picture.class_of(one) or one.label for one in first.members]
            text, glyph = ", ".join(names), self._surround(box, label, first.members)
        times = f"× {len(run.blocks)}" + ("" if run.links else " side by side")
        self.titles[glyph] = label, f"{text} {times}" if text else times
        return glyph

    def _surround(self, parent: Box, label: str, members: Sequence[Glyph]) -> Box:
        """Put the members of a block into a box of their own."""
        box = self.picture.surround(parent, label, members)
        pending = list(members)
        while pending:
            one = pending.pop()
            if isinstance(one, Box):
                one.depth += 1
                pending += one.children.values()
        self.picture.boxes.append(box)
        self._made.add(box)
        return box


class _Block:
    """Some children of a box, one after the other.

    Attributes:
        members: The children.
        nodes: The nodes that they are, or that are in them.
        place: The place of each among these.
    """

    def __init__(self, folds: Folds, members: Sequence[Glyph]) -> None:
        self._folds = folds
        self.members = members
        self.nodes = [item for member in members for item in folds.nodes_in(member)]
        self.place = {item: place for place, item in enumerate(self.nodes)}

    @cached_property
    def content(self) -> object:
        """What is equal in equal blocks: nodes, in which boxes they are, and what they read."""
        picture, reads = self._folds.picture, self._folds.reads
        found: list[object] = []
        for number, member in enumerate(self.members):
            start = len(member.name)
            for item in self._folds.nodes_in(member):
                read = [(self.place.get(one.source), one.output, one.waits) for one in reads[item]]
                outputs = picture.outputs(item)
                settings = self._folds.settings_of(item)
                found.append((number, item.name[start:], item.op, settings, outputs, tuple(read)))
        return tuple(found), tuple(self._boxes())

    def _boxes(self) -> list[object]:
        picture = self._folds.picture
        found: list[object] = []
        pending = list(self.members)
        while pending:
            one = pending.pop()
            if isinstance(one, Box):
                inside = [child.label for child in picture.children(one)]
                found.append((self._folds.settings_of(one), tuple(inside)))
                pending += picture.children(one)
        return found

    def links(self, before: "_Block") -> set[_Joint]:
        """Return what nodes read of the block before, by their places."""
        return {
            (place, (before.place[read.source], read.output))
            for item, place in self.place.items()
            for read in self._folds.reads[item]
            if read.source in before.place
        }

    def entries(self, around: Box, before: "_Block | None") -> set[_Joint]:
        """Return what nodes read from elsewhere than the block before."""
        return {
            (place, self._folds.beside(read.source, around))
            for item, place in self.place.items()
            for read in self._folds.reads[item]
            if read.source not in self.place and (before is None or read.source not in before.place)
        }

    def exits(self, around: Box, after: "_Block | None") -> set[_Joint]:
        """Return by what nodes are read elsewhere than in the block after."""
        return {
            (place, self._folds.beside(reader, around))
            for item, place in self.place.items()
            for reader in self._folds.readers.get(item, ())
            if reader not in self.place and (after is None or reader not in after.place)
        }


class _Run:
    """Equal blocks, one after the other.

    Attributes:
        blocks: The blocks.
        links: What each reads of the one before; nothing for blocks side by side.
    """

    def __init__(self, folds: Folds, first: _Block, around: Box) -> None:
        self._folds = folds
        self.blocks = [first]
        self.links: set[_Joint] = set()
        self._around = around
        self._nodes = set(first.nodes)
        self._entries: set[_Joint] = set()
        self._exits: set[_Joint] = set()

    def takes(self, block: _Block) -> bool:
        """Add a block if it is equal to the others, and joined as they are."""
        around, before = self._around, self.blocks[-1]
        if block.content != before.content or self._crosses(block):
            return False
        links, entries = block.links(before), block.entries(around, before)
        exits, given = before.exits(around, block), block.exits(around, None)
        if len(self.blocks) == 1:
            joined = entries <= before.entries(around, None)
            self.links, self._entries, self._exits = links, entries, exits
        else:
            joined = (links, entries, exits) == (self.links, self._entries, self._exits)
        if joined and exits <= given:
            self.blocks.append(block)
            self._nodes.update(block.nodes)
            return True
        return False

    def _crosses(self, block: _Block) -> bool:
        """Tell whether a block reads one before the last one, or is read by one before it."""
        return any(
            read.source in self._nodes and read.source not in self.blocks[-1].place
            for item in block.nodes
            for read in self._folds.reads[item]
        ) or any(
            reader in self._nodes
            for item in block.nodes
            for reader in self._folds.readers.get(item, ())
        )
