"""Chunks: boxes around parts of a level that the page could not draw, or not draw whole.

The page grows slow where a level holds more than about a hundred shapes, and blank where
a chain on one level is twice as long as a thousand. Where fifteen or more stand together,
it takes those with many more edges than the others out of the flow, and with them all that
is reached only through them. Such levels are cut by the order of execution: `0` to `1999`
into `0-49`, `50-99` and so on. A level that needs no cut gets none.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from tbscope.drawing.naming import UniqueNames
from tbscope.drawing.placement.split_levels import (
    Groups,
    divided,
    is_state,
    read_number,
    stem_of_end,
)
from tbscope.page.constants import ASIDE_OP, BOX_ROOM, CHAIN_LIMIT, LIBRARY
from tbscope.page.glyphs import Box
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.level_graph import Siblings
from tbscope.page.op_types import RESERVED

__all__ = ["find_chunks", "rename"]

# What most of a chunk are called, and their first and last number.
_Span = tuple[str, int, int]

_ENDS = frozenset({"Input", "Output"})
_WORDS = re.compile(r"[_.-]+")


def find_chunks(
    hierarchy: Hierarchy,
    crowded: Mapping[Box, Siblings],
    *,
    bundles: Collection[str] = (),
    rounds: Collection[str] = (),
    modules: Collection[str] = (),
) -> dict[str, str]:
    """Find the boxes and nodes that must be grouped in chunks.

    Args:
        hierarchy: All nodes, by their names.
        crowded: Its levels that the page cannot draw well, outer ones first.
        bundles: The names of boxes that are no modules: they may be cut like operations.
        rounds: The names of boxes that are no modules, and in which modules were called.
        modules: The names of nodes that are modules.
    Returns:
        The new name of each box and each node that stands in a chunk, by its name: for
        `rename`. No new name is one that is there.
    """
    mapping: dict[str, str] = {}
    circles = [item.name for item in hierarchy.items.values() if item.embedded]
    unique = UniqueNames([*hierarchy.boxes, *hierarchy.items])
    unique.reserve_above(circles)
    named = {*modules, *(name.rpartition("/")[0] for name in circles)}
    for box, level in crowded.items():
        above = f"{box.name}/" if box.name else ""
        names = [above + label for label in level.labels]
        # They cannot stand in a chunk: the node that is named like its box, the card that tells of
        # the box, and the boxes of the function panel.
        pinned = {
            place
            for place, (label, op) in enumerate(zip(level.labels, level.ops, strict=True))
            if label == f"({box.label})"
            or op == ASIDE_OP
            or (not box.name and label.startswith(LIBRARY))
        }
        # Those whose names users know: boxes, modules, parameters, inputs and outputs. The inputs
        # and outputs of the whole graph that stand right in it have boxes of their own.
        state = {at for at, op in enumerate(level.ops) if is_state(op)}
        known = state.union(
            at
            for at, (name, op) in enumerate(zip(names, level.ops, strict=True))
            if (box.name and _is_end(op)) or (not op and name not in bundles) or name in named
        )
        turns = state.union(at for at in known if names[at] in rounds)
        prefix = rename([box.name], mapping)[0]
        for place, path in _Cutter(level, unique, above).cut(pinned, known - turns, turns):
            label = level.labels[place]
            new = f"{path}/{label}"
            mapping[above + label] = f"{prefix}/{new}" if prefix else new
    return mapping


def rename(names: Iterable[str], mapping: Mapping[str, str]) -> list[str]:
    """Rename the boxes and nodes that have a new name from `find_chunks`, and all inside them."""
    known: dict[str, str] = {"": "", **mapping}
    renamed = []
    for name in names:
        new = known.get(name)
        if new is None:
            # What is known of the boxes around it is told once to all that stand in them.
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


def _is_end(op: str) -> bool:
    return op.partition("[")[0] in _ENDS


class _Cutter:
    """Cuts one level, and the chunks of it that are still too large."""

    def __init__(self, level: Siblings, unique: UniqueNames, above: str) -> None:
        self._level = level
        self._unique = unique
        self._above = above
        # Operations and boxes are counted in the order of execution.
        inner = [at for at in range(len(level)) if at not in level.ends]
        self._counted = {place: number for number, place in enumerate(inner, 1)}

    def cut(
        self, pinned: set[int], modules: set[int], rounds: set[int]
    ) -> Iterator[tuple[int, str]]:
        """Yield each child that stands in a chunk, and the path of the chunks around it."""
        pending = [(self._level, list(range(len(self._level))), "")]
        # Of more modules than the page can draw, those of each part may be parted again.
        every = modules if len(self._level) <= CHAIN_LIMIT else set()
        while pending:
            level, places, path = pending.pop()
            if path:
                # What had to be parted may be parted again, but for boxes of inputs or of modules.
                known = {at for at, place in enumerate(places) if place in every}
                listed = len(known) + sum(map(is_state, level.ops)) == len(level)
                ends = {at for at, op in enumerate(level.ops) if _is_end(op)}
                pinned, modules, rounds = set(), ends | known if listed else ends, set()
            groups = divided(level, pinned, modules, rounds)
            if path:
                beside = set(range(len(level))).difference(*groups)
                yield from ((places[at], path) for at in sorted(beside))
            inner = [[places[at] for at in group] for group in groups]
            labels = self._labels(inner, path)
            parts = zip(level.parts(groups), inner, labels, strict=True)
            pending += [
                (part, members, f"{path}/{label}" if path else label)
                for part, members, label in parts
            ]

    def _labels(self, groups: Groups, path: str) -> list[str]:
        """A name for each chunk."""
        spans = [self._span(group) for group in groups]
        room: dict[str, int] = {}
        last: dict[str, int] = {}
        # The stems whose numbers do not rise from chunk to chunk.
        unclear: set[str] = set()
        for stem, first, to in filter(None, spans):
            if first <= last.get(stem, -1):
                unclear.add(stem)
            last[stem] = to
            # The longest name with each fits.
            rest = BOX_ROOM - len(f"{first}-{to}")
            room[stem] = max(min(rest, room.get(stem, rest)), 0)
        labels = []
        for group, span in zip(groups, spans, strict=True):
            wish = None if path else self._ends_label(group)
            if wish is None and span is not None and span[0] not in unclear:
                wish = f"{_short(span[0], room[span[0]])}{span[1]}-{span[2]}"
            above = self._above + (f"{path}/" if path else "")
            if not wish:
                # A name by the order of execution: `ops.1-50`.
                numbers = [self._counted[place] for place in group if place in self._counted]
                word = "ops." if all(self._level.ops[place] for place in group) else "parts."
                text = f"{min(numbers)}-{max(numbers)}" if numbers else ""
                wish = _short(word, BOX_ROOM - len(text)) + text if numbers else "ends"
            name = self._unique.claim(above + wish)
            labels.append(name[len(above) :])
        return labels

    def _ends_label(self, group: list[int]) -> str | None:
        """The name that inputs or outputs share: `past`, for `past.0.key` and others.

        Parameters have one, too.
        """
        if all(is_state(self._level.ops[place]) for place in group):
            return "parameters"
        ends = {self._level.ends.get(place) for place in group}
        if None in ends or len(ends) > 1:
            return None
        stems = {stem_of_end(self._level.labels[place]) for place in group}
        label = _short(min(stems), BOX_ROOM)
        if len(stems) > 1 or not label or label in RESERVED:
            return "inputs" if "Input" in ends else "outputs"
        # What comes in and what goes out often have one name.
        taken = self._above + label in self._unique
        return f"out.{label}" if "Output" in ends and taken else label

    def _span(self, group: list[int]) -> _Span | None:
        """The stem of most members' names, and their first and last number."""
        found: dict[str, list[int]] = {}
        labels = [self._level.labels[place] for place in group]
        for numbered in filter(None, map(read_number, labels)):
            found.setdefault(numbered[0], []).append(numbered[1])
        for label in labels:
            # The first call of a module, before `fc.1`.
            if f"{label}." in found:
                found[f"{label}."].append(0)
        stem, numbers = max(found.items(), key=lambda entry: len(entry[1]), default=("", []))
        if len(numbers) < 2 or len(numbers) * 10 < len(group):
            return None
        return stem, min(numbers), max(numbers)


def _short(stem: str, room: int) -> str:
    """Shorten a stem to so many characters, by whole words where that is possible."""
    if len(stem) <= room:
        return stem
    bare = stem.rstrip("_.-")
    words = [word for word in _WORDS.split(bare) if word]
    for text in (bare, *words[-1:], *words[:1]):
        if len(text) <= room:
            return text
    return bare[:room]
