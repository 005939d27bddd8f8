"""Chunks: boxes around parts of a level that the page could not draw, or not draw whole.

The page is slow if a level has more than about a hundred glyphs, and blank if a chain on one
level is twice as long as a thousand. On a level of fifteen or more, it takes the glyphs with
many more edges than the others out of the flow, and with them all glyphs that are reached only
through them. These levels are split in the order of execution: `0` to `1999` into `0-49`,
`50-99` and so on. A level that the page draws well has no chunks.

`placement/split_levels.py` decides which children share a chunk; this file names the chunks.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain

from tbscope.drawing.naming import ORDINAL, UniqueNames
from tbscope.drawing.placement.split_levels import (
    Groups,
    is_end,
    is_state,
    needs_split,
    read_number,
    split_level,
    stem_of_end,
)
from tbscope.page.constants import ASIDE_OP, CHAIN_LIMIT, LIBRARY
from tbscope.page.glyphs import Box
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.label_widths import fits_box
from tbscope.page.level_graph import LevelGraph
from tbscope.page.op_types import RESERVED

# The stem of the names of most members of a chunk, and their first and last number.
_Span = tuple[str, int, int]


def find_chunks(
    hierarchy: Hierarchy,
    levels: Mapping[Box, LevelGraph],
    *,
    boxed: Collection[str] = (),
    iterations: Collection[str] = (),
    modules: Collection[str] = (),
) -> dict[str, str]:
    """Return new names for the boxes and nodes that must be grouped in chunks.

    Args:
        hierarchy: All nodes of the drawing.
        levels: The levels with many children, outer levels first.
        boxed: The names of boxes of functions or loop iterations in which no module was
            called: they may go into chunks like operations.
        iterations: The names of boxes of functions or loop iterations in which modules were called.
        modules: The names of nodes that represent modules.
    Returns:
        The new name of each box or node that moves into a chunk, by its old name, for
        `rename`. No new name is in use already.
    """
    mapping: dict[str, str] = {}
    levels = {box: level for box, level in levels.items() if needs_split(level)}
    if not levels:
        return mapping
    circles = [item.name for item in hierarchy.items.values() if item.embedded]
    unique = UniqueNames([*hierarchy.boxes, *hierarchy.items])
    unique.reserve_above(circles)
    named = {*modules, *(name.rpartition("/")[0] for name in circles)}
    for box, level in levels.items():
        above = f"{box.name}/" if box.name else ""
        names = [above + label for label in level.labels]
        # Children that cannot move into a chunk: the node that is named like its box, the info
        # card of the box, and the boxes of the function panel.
        pinned = {
            index
            for index, (label, op) in enumerate(zip(level.labels, level.ops, strict=True))
            if label == f"({box.label})" or op == ASIDE_OP or label.startswith(LIBRARY)
        }
        # Children whose names users rely on: boxes, modules, parameters, inputs and outputs.
        # Inputs and outputs that are nodes at the top level are not among them: they share boxes
        # of their own.
        state = {at for at, op in enumerate(level.ops) if is_state(op)}
        known = state.union(
            at
            for at, (name, op) in enumerate(zip(names, level.ops, strict=True))
            if (box.name and is_end(op)) or (not op and name not in boxed) or name in named
        )
        repeated = state.union(at for at in known if names[at] in iterations)
        prefix = rename([box.name], mapping)[0]
        cutter = _Cutter(level, unique, above)
        for index, path in cutter.cut(pinned, known - repeated, repeated):
            label = level.labels[index]
            new = f"{path}/{label}"
            mapping[above + label] = f"{prefix}/{new}" if prefix else new
    return mapping


def rename(names: Iterable[str], mapping: Mapping[str, str]) -> list[str]:
    """Return names after the moves into chunks.

    Args:
        names: Names of boxes and nodes.
        mapping: The new names from `find_chunks`; they apply to everything inside, too.
    """
    known: dict[str, str] = {"": "", **mapping}
    renamed = []
    for name in names:
        new = known.get(name)
        if new is None:
            # The new name of each enclosing box is cached for the other nodes in it.
            missing = []
            above = name
            while above not in known:
                above, _, label = above.rpartition("/")
                missing.append((above, label))
            new = known[above]
            for above, label in reversed(missing):
                new = f"{new}/{label}" if above else label
                if (above, label) != missing[0]:
                    known[f"{above}/{label}" if above else label] = new
        renamed.append(new)
    return renamed


class _Cutter:
    """Splits one level into chunks, and chunks that are still too large again."""

    def __init__(self, level: LevelGraph, unique: UniqueNames, above: str) -> None:
        self._level = level
        self._unique = unique
        self._above = above

    def cut(
        self, pinned: set[int], modules: set[int], iterations: set[int]
    ) -> Iterator[tuple[int, str]]:
        """Yield the index of each child that moves into a chunk, and the path of its chunks.

        Args:
            pinned: The children that must stay on the level.
            modules: The children whose names users rely on.
            iterations: Boxes in which modules were called, and parameters.
        """
        pending = [(self._level, list(range(len(self._level))), "")]
        # If the level has more children than the page can draw, chunks of modules may be split
        # again, too.
        every = modules if len(self._level) <= CHAIN_LIMIT else set()
        while pending:
            level, indices, path = pending.pop()
            if path:
                # A chunk may be split again, but not a chunk of inputs, of outputs or of modules.
                known = {at for at, index in enumerate(indices) if index in every}
                listed = len(known) + sum(map(is_state, level.ops)) == len(level)
                ends = {at for at, op in enumerate(level.ops) if is_end(op)}
                pinned, modules, iterations = set(), ends | known if listed else ends, set()
            groups = split_level(level, pinned, modules, iterations)
            if path:
                beside = set(range(len(level))).difference(*groups)
                yield from ((indices[at], path) for at in sorted(beside))
            inner = [[indices[at] for at in group] for group in groups]
            labels = self._labels(inner, path)
            parts = zip(level.parts(groups), inner, labels, strict=True)
            pending += [
                (part, members, f"{path}/{label}" if path else label)
                for part, members, label in parts
            ]

    def _labels(self, groups: Groups, path: str) -> list[str]:
        """Return a name for each chunk.

        Names are, in this order of preference: the common name of inputs or outputs, the stem
        with the first and last number of the members, and the first and last member
        (`exp-matmul`).

        Args:
            groups: The indices of the children in each chunk.
            path: The path of the enclosing chunks; empty if there are none.
        """
        spans = [self._span(group) for group in groups]
        last: dict[str, int] = {}
        # Stems whose numbers do not rise from chunk to chunk are of no use in names.
        unclear: set[str] = set()
        for stem, first, to in filter(None, spans):
            if first <= last.get(stem, -1):
                unclear.add(stem)
            last[stem] = to
        # The numbers of a list are followed by the classes of its members, if all labels fit.
        classes = ""
        plain = [group for group, span in zip(groups, spans, strict=True) if span and not span[0]]
        for kind in {self._level.ops[at].partition("[")[0]: None for at in chain(*plain[:1])}:
            longer = f"{classes}_{kind}"
            if kind and all(fits_box(f"{span[1]}-{span[2]}{longer}") for span in spans if span):
                classes = longer
        labels = []
        for group, span in zip(groups, spans, strict=True):
            wish = None if path else self._ends_label(group)
            if wish is None and span is not None and span[0] not in unclear:
                wish = f"{span[0]}{span[1]}-{span[2]}{'' if span[0] else classes}"
            above = self._above + (f"{path}/" if path else "")
            if not wish:
                ends = (self._level.labels[index] for index in (group[0], group[-1]))
                wish = "-".join(ORDINAL.sub("", label) for label in ends)
            name = self._unique.claim(above + wish)
            labels.append(name[len(above) :])
        return labels

    def _ends_label(self, group: list[int]) -> str | None:
        """Return the common name of inputs or outputs: `past`, for `past.0.key` and others.

        Parameters are called `parameters`. None if the group contains anything else.
        """
        if all(is_state(self._level.ops[index]) for index in group):
            return "parameters"
        ends = {self._level.ends.get(index) for index in group}
        if None in ends or len(ends) > 1:
            return None
        stems = {stem_of_end(self._level.labels[index]) for index in group}
        label = min(stems)
        if len(stems) > 1 or not label or label in RESERVED:
            return "inputs" if "Input" in ends else "outputs"
        # An input and an output often have equal names.
        taken = self._above + label in self._unique
        return f"out.{label}" if "Output" in ends and taken else label

    def _span(self, group: list[int]) -> _Span | None:
        """Return the most frequent stem of the members' names, and their first and last number.

        None if fewer than two members, or fewer than a tenth, have it.
        """
        numbers_of: dict[str, list[int]] = {}
        labels = [self._level.labels[index] for index in group]
        ops = [self._level.ops[index] for index in group]
        for numbered in filter(None, map(read_number, labels, ops)):
            numbers_of.setdefault(numbered[0], []).append(numbered[1])
        for label in labels:
            # `fc` is the first call of a module whose later calls are `fc.2nd` and so on.
            if f"{label}." in numbers_of:
                numbers_of[f"{label}."].append(1)
        stem, numbers = max(numbers_of.items(), key=lambda entry: len(entry[1]), default=("", []))
        if len(numbers) < 2 or len(numbers) * 10 < len(group):
            return None
        return stem, min(numbers), max(numbers)
