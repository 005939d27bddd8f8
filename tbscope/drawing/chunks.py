"""Chunks: boxes around parts of a level that the page could not draw, or not draw whole.

The page grows slow where a level holds more than about a hundred shapes, and blank where
a chain on one level is twice as long as a thousand. Where fifteen or more stand together,
it takes those with many more edges than the others out of the flow, and with them all that
is reached only through them. Such levels are cut by the order of execution: `0` to `1999`
into `0-49`, `50-99` and so on. A level that needs no cut gets none.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from tbscope.drawing.unique import UniqueNames
from tbscope.page.constants import ASIDE_OP, BOX_ROOM, CROWD_SIZE, LEVEL_LIMIT, LIBRARY
from tbscope.page.glyphs import Box
from tbscope.page.hierarchy import Hierarchy
from tbscope.page.ops import RESERVED
from tbscope.page.siblings import Siblings, find_siblings

__all__ = ["MOST_FOLDED", "find_chunks", "rename"]

MOST_FOLDED = 250
"""How many equal siblings a series holds at most: all of them are drawn when it is opened."""

_Groups = list[list[int]]
# What most of a chunk are called, and their first and last number.
_Span = tuple[str, int, int]

# How many children a chunk holds, the least with which there are few enough chunks.
_SIZES: list[int] = [10, 20, *(digit * 10**power for power in range(1, 9) for digit in (5, 10))]
_MOST_CHUNKS = 50
_FEW_CHUNKS = 10
# How many children may stay beside the chunks.
_MOST_BESIDE = 20
# How many inputs of one name become a box.
_FEWEST_ENDS = 5
_DIGITS = "0123456789"
_NUMBER = re.compile("[0-9]+")
_WORDS = re.compile(r"[_.-]+")


def find_chunks(hierarchy: Hierarchy) -> dict[str, str]:
    """Find what has to stand in chunks.

    Args:
        hierarchy: All nodes, by their names.
    Returns:
        The new name of each box and each node that stands in a chunk, by its name: for
        `rename`. Empty where no level needs a cut. No new name is one that is there.
    """
    levels = find_siblings(hierarchy)
    mapping: dict[str, str] = {}
    unique: UniqueNames | None = None
    owners: set[str] = set()
    for box, level in levels.items():
        if not _is_crowded(level):
            continue
        if unique is None:
            unique = UniqueNames(_all_names(hierarchy))
            circles = (item.name for item in hierarchy.items.values() if item.embedded)
            owners = {name.rpartition("/")[0] for name in circles}
        pinned, modules = _pinned(box, level), _modules(box, level, owners)
        prefix = rename([box.name], mapping)[0]
        above = f"{box.name}/" if box.name else ""
        for place, path in _Cutter(level, unique, above).cut(pinned, modules):
            label = level.labels[place]
            new = f"{path}/{label}"
            mapping[above + label] = f"{prefix}/{new}" if prefix else new
    return mapping


def rename(names: Iterable[str], mapping: Mapping[str, str]) -> list[str]:
    """Rename what stands in the boxes and nodes to which `find_chunks` gave new names."""
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


def _modules(box: Box, level: Siblings, owners: set[str]) -> set[int]:
    """Find the boxes of a level and its nodes with parameters: users look for their names."""
    above = f"{box.name}/" if box.name else ""
    return {
        place
        for place, label in enumerate(level.labels)
        if not level.ops[place] or above + label in owners
    }


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


def _is_crowded(level: Siblings) -> bool:
    """Tell whether the page cannot draw a level well."""
    if len(level) < CROWD_SIZE:
        return False
    series = level.series()
    if any(len(members) > MOST_FOLDED for members in series):
        return True
    drawn = level.grouped(series) if series else level
    return len(drawn) > LEVEL_LIMIT or not drawn.keeps_flow()


class _Cutter:
    """Cuts one level, and the chunks of it that are still too large."""

    def __init__(self, level: Siblings, unique: UniqueNames, above: str) -> None:
        self._level = level
        self._unique = unique
        self._above = above
        # Operations and boxes are counted in the order of execution.
        inner = [at for at in range(len(level)) if at not in level.ends]
        self._counted = {place: number for number, place in enumerate(inner, 1)}

    def cut(self, pinned: set[int], modules: set[int]) -> Iterator[tuple[int, str]]:
        """Yield each child that stands in a chunk, and the path of the chunks around it."""
        pending = [(self._level, list(range(len(self._level))), "")]
        while pending:
            level, places, path = pending.pop()
            groups = _divided(level, *((set(), set()) if path else (pinned, modules)))
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

    def _labels(self, groups: _Groups, path: str) -> list[str]:
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
        """The name that inputs or outputs share: `past`, for `past.0.key` and others."""
        ends = {self._level.ends.get(place) for place in group}
        if None in ends or len(ends) > 1:
            return None
        stems = {_stem_of_end(self._level.labels[place]) for place in group}
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
            numbered = _numbered(self._level.labels[place])
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


def _divided(level: Siblings, pinned: set[int], modules: set[int]) -> _Groups:
    """The groups of children that become chunks, in order; none if all is well."""
    if not _is_crowded(level):
        return []
    groups: _Groups = []
    for groups in _proposals(level, pinned, modules):
        # One chunk of all would be the same level again.
        is_cut = len(groups) > 1 or (groups and len(groups[0]) < len(level) - 1)
        if is_cut and not _is_crowded(level.grouped(groups)):
            return groups
    return groups


def _proposals(level: Siblings, pinned: set[int], modules: set[int]) -> Iterator[_Groups]:
    """Yield ways to cut a level, the mildest first; the last one always serves."""
    inner = [at for at in range(len(level)) if at not in level.ends and at not in pinned]
    groups = _alike_ends(level)
    if groups:
        yield groups
    tangled = _tangled(level)
    apart = [at for at in inner if at not in tangled]
    core = _without_rare(level, apart)
    # Where the level is not too wide, operations alone: the names of modules stay keys.
    few = 0 < len(modules) <= _MOST_BESIDE and len(level) <= LEVEL_LIMIT
    plain = [at for at in inner if at not in modules] if few else []
    for members in (plain, core, apart, inner):
        for most in (_MOST_CHUNKS, _FEW_CHUNKS):
            size = _size(len(members), most, smallest=50 if most == _MOST_CHUNKS else 10)
            if size < len(members):
                yield groups + _sections(level, members, size)
    known = {at for group in groups for at in group}
    for word in ("Input", "Output"):
        ends = [at for at, found in level.ends.items() if found == word and at not in known]
        if len(ends) > 2:
            groups = [*groups, ends]
    if len(inner) > _FEW_CHUNKS:
        yield groups + _sections(level, inner, _size(len(inner), _FEW_CHUNKS, smallest=10))
    whole = [at for at in range(len(level)) if at not in pinned]
    yield _sections(level, whole, _size(len(whole), _FEW_CHUNKS, smallest=10))


def _alike_ends(level: Siblings) -> _Groups:
    """The inputs, and the outputs, that share the start of their names."""
    found: dict[tuple[str, str], list[int]] = {}
    for place, word in level.ends.items():
        stem = _stem_of_end(level.labels[place])
        if stem:
            found.setdefault((word, stem), []).append(place)
    return [places for places in found.values() if len(places) >= _FEWEST_ENDS]


def _numbered(label: str) -> tuple[str, int] | None:
    """Part a name in stem and number: `fc.3` in `fc.` and 3, `Linear[3]` in nothing and 3."""
    stem = label.rstrip(_DIGITS)
    if stem != label:
        return stem, int(label[len(stem) :])
    number = label.rpartition("[")[2].removesuffix("]")
    return ("", int(number)) if label.endswith("]") and _NUMBER.fullmatch(number) else None


def _stem_of_end(label: str) -> str:
    """The text before the first dot or number: `past` of `past.0.key`."""
    return label.partition(".")[0].rstrip(_DIGITS).rstrip("_-")


def _tangled(level: Siblings) -> set[int]:
    """The few boxes that ran by turns with others: a list whose layers a loop calls."""
    tangled = {end for start, end in level.links if start > end and not level.ops[end]}
    return tangled if len(tangled) <= _MOST_BESIDE // 2 else set()


def _without_rare(level: Siblings, places: list[int]) -> list[int]:
    """Leave out what comes before and after the long list of a level, if that is little."""
    numbered = [_numbered(level.labels[at]) for at in places]
    stems = [found[0] if found else None for found in numbered]
    counts = Counter(stem for stem in stems if stem is not None)
    if not counts:
        return places
    stem, count = counts.most_common(1)[0]
    first = stems.index(stem)
    last = len(stems) - stems[::-1].index(stem)
    if first and level.labels[places[first - 1]] + "." == stem:
        # The first call of the module whose later ones have numbers.
        first -= 1
    little = first + len(stems) - last <= _MOST_BESIDE
    return places[first:last] if little and count * 10 >= len(places) else places


def _size(count: int, most: int, *, smallest: int) -> int:
    """The size of chunks that makes at most so many of them."""
    return next(size for size in _SIZES if size >= smallest and count <= size * most)


def _sections(level: Siblings, places: list[int], size: int) -> _Groups:
    """Cut children into sections of about this size, where few edges cross.

    A section holds at least four fifths of it, and the last one at most seven fifths.
    """
    crossing = _crossings(level, places)
    slack = size // 5
    sections = []
    start, count = 0, len(places)
    while count - start > size + 2 * slack:
        ideal = start + size
        # A bit more than needed, where there is no better place for the cut.
        end = min(
            range(ideal - slack, ideal + slack + 1),
            key=lambda at: (crossing[at], abs(at - ideal)),
        )
        sections.append(places[start:end])
        start = end
    sections.append(places[start:])
    return sections


def _crossings(level: Siblings, places: Sequence[int]) -> list[int]:
    """For each place of a cut, how many children before it are read behind it."""
    order = {place: at for at, place in enumerate(places)}
    last: dict[int, int] = {}
    for start, end in level.links:
        if start in order and end in order:
            first, to = sorted((order[start], order[end]))
            last[first] = max(last.get(first, 0), to)
    steps = [0] * (len(places) + 1)
    for first, to in last.items():
        steps[first + 1] += 1
        steps[min(to + 1, len(places))] -= 1
    return list(accumulate(steps))


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
