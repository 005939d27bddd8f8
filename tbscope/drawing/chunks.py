"""Chunks: boxes around parts of a level that the page could not draw, or not draw whole.

The page grows slow where a level holds more than about a hundred shapes, and blank where
a chain on one level is twice as long as a thousand. Where fifteen or more stand together,
it takes those with many more edges than the others out of the flow, and with them all that
is reached only through them. Such levels are cut by the order of execution: `0` to `1999`
into `0-49`, `50-99` and so on. A level that needs no cut gets none.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from tbscope.drawing.cuts import Groups, divided, is_crowded, is_state, read_number, stem_of_end
from tbscope.drawing.unique import UniqueNames
from tbscope.page.constants import ASIDE_OP, BOX_ROOM, CHAIN_LIMIT, LIBRARY
from tbscope.page.glyphs import Box
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.ops import RESERVED
from tbscope.page.siblings import Siblings, find_siblings

__all__ = ["find_chunks", "rename"]

# What most of a chunk are called, and their first and last number.
_Span = tuple[str, int, int]

_ENDS = frozenset({"Input", "Output"})
_WORDS = re.compile(r"[_.-]+")


def find_chunks(
    hierarchy: Hierarchy,
    levels: Mapping[Box, Siblings] | None = None,
    *,
    bundles: Collection[str] = (),
    rounds: Collection[str] = (),
    modules: Collection[str] = (),
) -> dict[str, str]:
    """Find the boxes and nodes that must be grouped in chunks.

    Args:
        hierarchy: All nodes, by their names.
        levels: What `find_siblings` gives for it, if that is known.
        bundles: The names of boxes that are no modules: they may be cut like operations.
        rounds: The names of boxes that are no modules, and in which modules were called.
        modules: The names of nodes that are modules.
    Returns:
        The new name of each box and each node that stands in a chunk, by its name: for
        `rename`. Empty where no level needs a cut. No new name is one that is there.
    """
    if levels is None:
        levels = find_siblings(hierarchy)
    mapping: dict[str, str] = {}
    unique: UniqueNames | None = None
    owners: set[str] = set()
    for box, level in levels.items():
        if not is_crowded(level):
            continue
        if unique is None:
            unique = UniqueNames(_all_names(hierarchy))
            circles = (item.name for item in hierarchy.items.values() if item.embedded)
            owners = {name.rpartition("/")[0] for name in circles}
        pinned, known = _pinned(box, level), _known(box, level, {*owners, *modules}, bundles)
        turns = {
            at for at in known if is_state(level.ops[at]) or _name_of(box, level, at) in rounds
        }
        prefix = rename([box.name], mapping)[0]
        above = f"{box.name}/" if box.name else ""
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


def _pinned(box: Box, level: Siblings) -> set[int]:
    """Find the children that cannot stand in a chunk.

    Those are the node that is named like its box, the card that tells of the box, and the
    boxes of the function panel.
    """
    named = f"({box.label})"
    return {
        place
        for place, label in enumerate(level.labels)
        if label == named
        or level.ops[place] == ASIDE_OP
        or (not box.name and label.startswith(LIBRARY))
    }


def _known(box: Box, level: Siblings, modules: set[str], bundles: Collection[str]) -> set[int]:
    """Find the children whose names users know: boxes, modules, parameters, inputs and outputs.

    The inputs and outputs of the whole graph that stand right in it have boxes of their own.
    """
    names = [_name_of(box, level, place) for place in range(len(level))]
    return {
        place
        for place, name in enumerate(names)
        if is_state(level.ops[place])
        or (box.name and level.ops[place].partition("[")[0] in _ENDS)
        or (not level.ops[place] and name not in bundles)
        or name in modules
    }


def _name_of(box: Box, level: Siblings, place: int) -> str:
    return f"{box.name}/{level.labels[place]}" if box.name else level.labels[place]


def _ends_in(level: Siblings) -> Iterator[int]:
    for place, op in enumerate(level.ops):
        if op.partition("[")[0] in _ENDS:
            yield place


def _state_in(level: Siblings) -> list[int]:
    return [place for place, op in enumerate(level.ops) if is_state(op)]


def _all_names(hierarchy: Hierarchy) -> set[str]:
    """All names, and all prefixes of the names of circles."""
    names = {*hierarchy.boxes, *hierarchy.items}
    for item in hierarchy.items.values():
        if item.embedded:
            above = item.name.rpartition("/")[0]
            while above and above not in names:
                names.add(above)
                above = above.rpartition("/")[0]
    return names


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
                listed = len(known) + len(_state_in(level)) == len(level)
                pinned, modules, rounds = (
                    set(),
                    {*_ends_in(level), *(known if listed else ())},
                    set(),
                )
            groups = divided(level, pinned, modules, rounds)
            if not groups:
                if path:
                    yield from ((place, path) for place in places)
                continue
            beside = set(range(len(level))).difference(*groups)
            if path:
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
        unclear = _overlapping(spans)
        stems = _short_stems(spans)
        labels = []
        for group, span in zip(groups, spans, strict=True):
            wish = None if path else self._ends_label(group)
            if wish is None and span is not None and span[0] not in unclear:
                wish = f"{stems[span[0]]}{span[1]}-{span[2]}"
            labels.append(self._claim(wish or self._counted_label(group), path))
        return labels

    def _ends_label(self, group: list[int]) -> str | None:
        """The name that inputs or outputs share: `past`, for `past.0.key` and others.

        Parameters have one, too.
        """
        ends = {self._level.ends.get(place) for place in group}
        if all(is_state(self._level.ops[place]) for place in group):
            return "parameters"
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
        for place in group:
            numbered = read_number(self._level.labels[place])
            if numbered is not None:
                found.setdefault(numbered[0], []).append(numbered[1])
        for place in group:
            # The first call of a module, before `fc.1`.
            first = found.get(f"{self._level.labels[place]}.")
            if first is not None:
                first.append(0)
        if not found:
            return None
        stem, numbers = max(found.items(), key=lambda entry: len(entry[1]))
        if len(numbers) < 2 or len(numbers) * 10 < len(group):
            return None
        return stem, min(numbers), max(numbers)

    def _counted_label(self, group: list[int]) -> str:
        """A name by the order of execution: `ops.1-50`."""
        numbers = [self._counted[place] for place in group if place in self._counted]
        if not numbers:
            return "ends"
        word = "ops." if all(self._level.ops[place] for place in group) else "parts."
        span = f"{min(numbers)}-{max(numbers)}"
        return _short(word, BOX_ROOM - len(span)) + span

    def _claim(self, wish: str, path: str) -> str:
        above = self._above + (f"{path}/" if path else "")
        return self._unique.claim(above + wish)[len(above) :]


def _short_stems(spans: Sequence[_Span | None]) -> dict[str, str]:
    """Shorten the stems of chunks so that the longest name with each fits."""
    room: dict[str, int] = {}
    for span in spans:
        if span is not None:
            stem, first, last = span
            rest = BOX_ROOM - len(f"{first}-{last}")
            room[stem] = max(min(rest, room.get(stem, rest)), 0)
    return {stem: _short(stem, rest) for stem, rest in room.items()}


def _overlapping(spans: Sequence[_Span | None]) -> set[str]:
    """The stems whose numbers do not rise from chunk to chunk."""
    last: dict[str, int] = {}
    unclear = set()
    for span in spans:
        if span is not None:
            stem, first, to = span
            if first <= last.get(stem, -1):
                unclear.add(stem)
            last[stem] = to
    return unclear


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
