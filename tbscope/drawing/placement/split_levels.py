"""Split of levels into chunks, if the page could not draw a level, or not draw it whole.

Children are indices in a `LevelGraph`. `split_level` generates candidate groupings, the mildest
first, and returns the first after which the page draws the level well. Without modules among the
children, that is the whole search; with modules, groupings that leave them in place come first,
and groupings that move them only follow if the page would stay blank or lose an exit of the
flow. `drawing/chunks.py` names the chunks.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain
from typing import TypeAlias

from tbscope.drawing.placement.split_hubs import in_short_runs
from tbscope.page.constants import (
    CHAIN_LIMIT,
    CROWD_SIZE,
    LEVEL_LIMIT,
    LIBRARY,
    SERIES_SIZE,
    SLOW_LIMIT,
    STACK_LIMIT,
)
from tbscope.page.level_graph import LevelGraph
from tbscope.utils.components import find_cycles

Groups: TypeAlias = list[list[int]]
"""The indices of the children in each chunk."""

# The most children of a level, and the most operations beside its boxes, before functions and loops
# of the source code become boxes.
_MANY, _MANY_LOOSE = 30, 8
# The most operations beside boxes before others share boxes.
_MOST_BETWEEN = 12
# The most children that repeat on a level before they are split.
_MOST_IN_ROW = 40
# The sizes of chunks; the smallest with which there are few enough chunks is used.
_SIZES: list[int] = [digit * 10**power for power in range(1, 9) for digit in (1, 2, 4)]
# The most operations in a row that share a box to relieve a hub.
_MOST_IN_RUN = 25
_MOST_CHUNKS = 20
_FEW_CHUNKS = 10
_FEWEST_CHUNKS = 6
# The most children that may stay beside the chunks.
_MOST_BESIDE = 20
# The fewest inputs of one name that become a box.
_FEWEST_ENDS = 5
# The fewest operations that are worth a box.
_FEWEST_PARTS = 3
_DIGITS = "0123456789"
_NOTHING: set[int] = set()
_STATE_OPS = frozenset({"Parameter", "Buffer"})

_NTH = re.compile(r"(.*\.)([0-9]+)(?:st|nd|rd|th)")


def split_level(
    level: LevelGraph,
    pinned: set[int],
    modules: set[int],
    rounds: set[int] = _NOTHING,
) -> Groups:
    """Return the groups of children that become chunks, in order; empty for a level drawn well.

    Args:
        level: The level.
        pinned: The children that always stay on the level.
        modules: The children whose names users rely on. They move into a chunk only if the page
            would stay blank, or cut an exit of the flow off; a slow layout is accepted.
        rounds: Boxes of functions or loop iterations in which modules were called, and parameters
            that are nodes. They move into a chunk only if chunks of operations do not help.
    """
    kept = pinned | modules | rounds
    repeated = _runs(level, set(range(len(level))) - pinned)
    cut, _ = _first(level, chain(repeated, _between(level)), _Cut.is_good)
    if cut is not None or not is_crowded(level):
        return cut.groups if cut else []
    groupings = _proposals(level, kept)
    if modules or rounds or _outputs(level):
        # Candidates that leave modules in place come first.
        groupings = chain(_of_operations(level, kept), groupings)
    if _fits(level, LEVEL_LIMIT):
        fewest = len(_operations(level)) - _MOST_IN_ROW
        runs = in_short_runs(level, _rows(level, kept), fewest=_FEWEST_PARTS, most=_MOST_IN_RUN)
        short = (grouping for grouping in runs if sum(map(len, grouping)) >= fewest)
        groupings = chain(_of_numbered(level, set(range(len(level))) - kept), short, groupings)
    if rounds:
        groupings = chain(groupings, _of_numbered(level, rounds), _proposals(level, kept - rounds))
    if not modules:
        return _first_drawn_well(level, groupings)
    state = {index for index in rounds if is_state(level.ops[index])}
    for kept_too in (kept, kept - rounds | state):
        of_operations = _of_operations(level, kept_too)
        groupings = chain(
            groupings, (_with_state(level, grouping, state) for grouping in of_operations)
        )
    cut = _beside_modules(level, groupings, modules)
    if cut is not None and not cut.left.folded().lost_ends():
        return cut.groups
    milder = [] if cut is None else _with_modules(level, cut.groups, pinned)
    whole, _ = _first(level, milder, _Cut.is_whole)
    return whole.groups if whole else _first_drawn_well(level, _proposals(level, pinned))


class _Cut:
    """A level with a grouping of its children, as it would be drawn.

    Attributes:
        groups: The grouping.
        left: The remaining level.
    """

    def __init__(self, level: LevelGraph, groups: Groups) -> None:
        self.groups, self._level = groups, level
        self.left = level.grouped(groups) if groups else level

    @cached_property
    def is_drawn_well(self) -> bool:
        """Whether the grouping changes the level, and the page then draws it well."""
        return self._is_changed() and not is_crowded(self.left)

    def is_good(self) -> bool:
        """Whether the page draws the grouping well, and it makes no cycle."""
        return self.is_drawn_well and not self.makes_cycle

    @cached_property
    def makes_cycle(self) -> bool:
        """Whether the grouping puts a box on a cycle whose members were on none."""
        if not self.groups:
            return False
        boxes = set().union(*find_cycles(self.left.links)).intersection(range(len(self.groups)))
        before = set().union(*find_cycles(self._level.links)) if boxes else _NOTHING
        return any(before.isdisjoint(self.groups[number]) for number in boxes)

    def is_whole(self) -> bool:
        """Whether the grouping changes the level so that all of its exits are reached."""
        if not self._is_changed() or not _fits(self.left, SLOW_LIMIT):
            return False
        return not (self.left.folded().lost_ends() or self.makes_cycle)

    def _is_changed(self) -> bool:
        # A single chunk of all children would not change the level.
        groups = self.groups
        return len(groups) > 1 or (bool(groups) and len(groups[0]) < len(self._level) - 1)


def _first(
    level: LevelGraph, groupings: Iterable[Groups], *tests: Callable[[_Cut], bool]
) -> tuple[_Cut | None, list[_Cut]]:
    """Return the first grouping that passes a test, or None, and all that failed the first test.

    Args:
        level: The level.
        groupings: The candidates.
        tests: A test counts only if no candidate passes the tests before it.
    """
    failed: list[_Cut] = []
    for groups in groupings:
        cut = _Cut(level, groups)
        if tests[0](cut):
            return cut, failed
        failed.append(cut)
    return next((cut for test in tests[1:] for cut in failed if test(cut)), None), failed


def _beside_modules(
    level: LevelGraph, groupings: Iterable[Groups], modules: set[int]
) -> _Cut | None:
    """Return the best of these groupings, or an empty one, all of which leave modules in place.

    Returns:
        A grouping; None if the page would stay blank with each of them.
    """

    def is_fine(cut: _Cut, most: int = LEVEL_LIMIT) -> bool:
        """Whether the remaining level is small enough, whole, and without a new cycle."""
        return _fits(cut.left, most) and cut.left.folded().keeps_flow() and not cut.makes_cycle

    # A slow level in which every module keeps its name is better than modules in boxes.
    cut, failed = _first(
        level, chain([[]], groupings), is_fine, lambda cut: is_fine(cut, SLOW_LIMIT)
    )
    if cut is None:
        cut, _ = _first(level, _equal_children(level, modules), is_fine)
    if cut is not None:
        return cut

    def rank(cut: _Cut) -> tuple[int, ...]:
        folded = cut.left.folded()
        if folded.keeps_flow():
            return 0, len(folded)
        return 1, len(folded.put_aside())

    # Slow, or not whole, but every module keeps its name.
    cut = min([cut for cut in failed if not cut.makes_cycle], key=rank)
    return cut if _fits(cut.left, CHAIN_LIMIT) else None


def _with_modules(level: LevelGraph, grouping: Groups, pinned: set[int]) -> Iterator[Groups]:
    """Yield groupings that add boxes of a few modules or parameters to another grouping.

    The mildest come first: a box of parameters, boxes of consecutively numbered children (calls of
    one module among them), boxes of children with equal sources and readers, and boxes of a few
    children in a row.
    """
    inner = set(range(len(level))) - pinned - level.ends.keys()
    state = [index for index in sorted(inner) if is_state(level.ops[index])]
    if len(state) >= _FEWEST_PARTS:
        yield _joined(grouping, [state])
    for groups in chain(_of_numbered(level, inner), _equal_children(level, inner)):
        joined = _joined(grouping, groups)
        yield _with_state(level, joined, set(state).difference(*joined))
    units = [
        *grouping,
        *([index] for index in sorted(set(range(len(level))).difference(*grouping))),
    ]
    row = [at for at, unit in enumerate(units) if inner.issuperset(unit)]
    row.sort(key=units.__getitem__)
    for runs in in_short_runs(level.grouped(grouping), [row], fewest=2, most=_MOST_IN_RUN):
        yield _joined(grouping, [sorted(chain(*(units[at] for at in run))) for run in runs])


def _equal_children(level: LevelGraph, indices: set[int]) -> Iterator[Groups]:
    """Yield a grouping with a box for children with equal sources and readers, if any.

    The box contains the parameters that only these children read, too.
    """
    reads, feeds = _neighbours(level, indices)
    by_neighbours: dict[tuple[frozenset[int], frozenset[int]], list[int]] = {}
    for index in sorted(indices):
        if reads[index] or feeds[index]:
            key = frozenset(reads[index]), frozenset(feeds[index])
            by_neighbours.setdefault(key, []).append(index)
    groups = [
        group for group in by_neighbours.values() if SERIES_SIZE <= len(group) < len(level) - 1
    ]
    if groups:
        yield _with_state(level, groups, {at for at, op in enumerate(level.ops) if is_state(op)})


def _neighbours(
    level: LevelGraph, indices: Iterable[int]
) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """Return the sources of each child, without parameters, and its readers."""
    reads: dict[int, set[int]] = {index: set() for index in indices}
    feeds: dict[int, set[int]] = {index: set() for index in reads}
    for start, end in level.links:
        if end in reads and not is_state(level.ops[start]):
            reads[end].add(start)
        if start in feeds:
            feeds[start].add(end)
    return reads, feeds


def _joined(grouping: Groups, groups: Groups) -> Groups:
    """Return groups, followed by the groups of another grouping without their members."""
    taken = set(chain.from_iterable(groups))
    rest = [[index for index in group if index not in taken] for group in grouping]
    return groups + [group for group in rest if group]


def _first_drawn_well(level: LevelGraph, groupings: Iterable[Groups]) -> Groups:
    """Return the first grouping after which the page draws a level well, or else the last one.

    A grouping that makes a cycle is returned only if no other one draws the level well.
    """
    cut, failed = _first(level, groupings, _Cut.is_good, lambda cut: cut.is_drawn_well)
    if cut is None and failed:
        cut = failed[-1]
    return cut.groups if cut else []


def _of_operations(level: LevelGraph, kept: set[int]) -> Iterator[Groups]:
    """Yield groupings of operations that leave modules and inputs in place.

    Operations share a chunk only if no module is on a path from one to the other.
    """
    ends = _outputs(level)
    if ends:
        yield ends
    rows = _rows(level, kept)
    for size in (_size(sum(map(len, rows)), _MOST_CHUNKS), 20, 10):
        parts = [
            part
            for row in rows
            for part in (_sections(level, row, size) if len(row) > size else [row])
            if len(part) >= _FEWEST_PARTS
        ]
        if parts:
            yield ends + parts


def _with_state(level: LevelGraph, groups: Groups, state: set[int]) -> Groups:
    """Return the groups, each with the parameters that only this group reads.

    Args:
        level: The level.
        groups: The groups.
        state: The parameters and buffers that may be added.
    """
    group_of = {index: number for number, group in enumerate(groups) for index in group}
    readers: dict[int, set[int | None]] = {index: set() for index in state}
    for start, end in level.links:
        if start in readers:
            readers[start].add(group_of.get(end))
    return [
        sorted([*group, *(index for index, users in readers.items() if users == {number})])
        for number, group in enumerate(groups)
    ]


def _rows(level: LevelGraph, kept: set[int]) -> list[list[int]]:
    """Return the operations in rows, so that no kept child is on a path within a row."""
    sources: dict[int, list[int]] = {}
    for start, end in level.links:
        if start < end:
            sources.setdefault(end, []).append(start)
    # The number of kept children on the path to each child that has most of them.
    before: list[int] = []
    rows: dict[int, list[int]] = {}
    for index in range(len(level)):
        counts = [before[source] + (source in kept) for source in sources.get(index, ())]
        before.append(max(counts, default=0))
        if index not in kept and index not in level.ends:
            rows.setdefault(before[index], []).append(index)
    return list(rows.values())


def _outputs(level: LevelGraph) -> Groups:
    """Return the outputs of the whole graph as one group, if they are many."""
    outputs = [index for index, word in level.ends.items() if word == "Output"]
    return [outputs] if len(outputs) >= _FEWEST_ENDS else []


def is_state(op: str) -> bool:
    """Whether nodes of an op type are parameters or buffers."""
    # A parameter that must not be folded has the op type `Parameter[w0]`.
    return op.partition("[")[0] in _STATE_OPS


def is_end(op: str) -> bool:
    """Whether nodes of an op type are inputs or outputs of the whole graph."""
    # One in a box has the op type `Input[past]`.
    return op.partition("[")[0] in ("Input", "Output")


def is_crowded(level: LevelGraph) -> bool:
    """Whether the page cannot draw a level well: it has too many glyphs, or loses its flow."""
    return not _fits(level, LEVEL_LIMIT) or not level.folded().keeps_flow()


def _fits(level: LevelGraph, most: int) -> bool:
    """Whether the page lays out at most this number of glyphs at once, on the level or in a stack.

    A stack may have `STACK_LIMIT` members in any case.
    """
    if any(len(members) > max(most, STACK_LIMIT) for members in level.series()):
        return False
    return len(level.folded()) <= most


def _operations(level: LevelGraph) -> set[int]:
    """Return the operations of a level, which are named by their op types."""
    named = enumerate(zip(level.labels, level.ops, strict=True))
    return {at for at, (label, op) in named if op and label.split(".")[0] == op.partition("[")[0]}


def is_full(level: LevelGraph) -> bool:
    """Whether a level has many children, or many operations beside its boxes."""
    return len(level.folded()) > _MANY or any(_between(level, _MANY_LOOSE))


def needs_split(level: LevelGraph) -> bool:
    """Whether a level is crowded, or has children to group for its readers."""
    repeated = _runs(level, set(range(len(level))))
    return is_crowded(level) or any(chain(repeated, _between(level)))


def _runs(level: LevelGraph, indices: set[int]) -> Iterator[Groups]:
    """Yield groupings of children that repeat, for a level with too many of them.

    Boxes side by side share a box. A long row of children that are numbered, or whose
    kinds repeat in a period, is split into boxes of one size, a multiple of the period.
    """
    count = len(level.folded())
    if count <= _MOST_BETWEEN:
        return
    ops = level.ops
    indices = {
        at for at in indices if not is_end(ops[at]) and not is_state(ops[at]) and ops[at] != LIBRARY
    }
    boxes = {at for at in indices if not ops[at]}
    if len(boxes) > _MOST_BETWEEN:
        for groups in _equal_children(level, boxes):
            yield [group for group in groups if len(group) > _MOST_BETWEEN]
    row = _without_rare(level, sorted(indices))
    if len(row) > _MOST_IN_ROW < count:
        kinds = [ops[at].partition("[")[0] for at in row]
        periods = (at for at in range(1, _MOST_BETWEEN) if kinds[at:] == kinds[:-at])
        period = next(periods, int(_is_list(level, row)))
        if period:
            size = -(-_size(len(row), _MOST_CHUNKS) // period) * period
            sections = [row[at : at + size] for at in range(0, len(row), size)]
            yield [section for section in sections if len(section) >= _FEWEST_PARTS]


def _between(level: LevelGraph, most: int = _MOST_BETWEEN) -> Iterator[Groups]:
    """Yield groupings of connected operations between boxes, for a level with too many of them.

    The largest groups that leave at most this number of operations beside the boxes are the
    first grouping.
    """
    loose = _operations(level) if "" in level.ops else _NOTHING
    if len(loose) <= most:
        return
    rows = enumerate(_rows(level, set(range(len(level))) - loose))
    row_of = {at: number for number, row in rows for at in row}
    steps = [ends for ends in level.links if row_of.get(ends[0], -1) == row_of.get(ends[1])]
    connected = find_cycles([*steps, *((end, start) for start, end in steps)])
    groups = sorted(map(sorted, connected), key=lambda group: (-len(group), group))
    left = accumulate(map(len, groups), lambda count, size: count - size, initial=len(loose))
    chosen = [
        group
        for group, count in zip(groups, left, strict=False)
        if len(group) >= _FEWEST_PARTS and count > most
    ]
    if chosen:
        yield chosen
        # Smaller boxes have fewer lines, which may keep all of them in the flow.
        for size in (4, 3):
            yield [part for group in chosen for part in _sections(level, group, size)]


def _proposals(level: LevelGraph, kept: set[int]) -> Iterator[Groups]:
    """Yield groupings of a level into sections, the mildest first.

    If nothing is kept, the last one always makes the level small enough.
    """
    inner = [at for at in range(len(level)) if at not in level.ends and at not in kept]
    groups = _alike_ends(level)
    if groups:
        yield groups
    core = _without_rare(level, inner)
    for members in (core, inner):
        for most in (_MOST_CHUNKS, _FEW_CHUNKS):
            size = _size(len(members), most)
            if size < len(members):
                yield groups + _sections(level, members, size)
    few = _sections(level, inner, _size(len(inner), _FEW_CHUNKS)) if inner else []
    if len(inner) > _FEW_CHUNKS:
        yield groups + _ends(level, {at for group in groups for at in group}) + few
    boxes = _ends(level, _NOTHING)
    yield boxes + few
    if len(inner) >= CROWD_SIZE:
        # So few chunks that the page puts nothing aside.
        yield boxes + _sections(level, inner, -(-len(inner) // _FEWEST_CHUNKS))


def _of_numbered(level: LevelGraph, indices: set[int]) -> Iterator[Groups]:
    """Yield groupings with boxes of consecutively numbered children, like members of a list.

    Examples are the iterations of a loop, and modules in separate attributes (`head_0`, `head_1`).

    Args:
        level: The level.
        indices: The children that may move into a box.
    """
    by_stem: dict[tuple[str, str], dict[int, int]] = {}
    kinds = {
        index: level.ops[index].partition("[")[0] for index in sorted(indices - level.ends.keys())
    }
    for index, op in kinds.items():
        numbered = read_number(level.labels[index], op)
        if numbered is not None:
            by_stem.setdefault((numbered[0], op), {})[numbered[1]] = index
    # The first call of a module, before `fc.2nd`, has no number.
    for index, op in kinds.items():
        calls = by_stem.get((f"{level.labels[index]}.", op))
        if calls is not None:
            calls.setdefault(1, index)
    # A box of all children would be the same level again.
    groups = [
        list(members.values())
        for members in by_stem.values()
        if SERIES_SIZE <= len(members) < len(level) - 1
        and max(members) - min(members) < len(members)
    ]
    yield from ([group] for group in groups)
    if len(groups) > 1:
        yield groups


def _ends(level: LevelGraph, known: set[int]) -> Groups:
    """Return the inputs, and the outputs, as groups if they are more than two.

    Args:
        level: The level.
        known: Inputs and outputs that are in a group already.
    """
    groups = [
        [at for at, kind in level.ends.items() if kind == word and at not in known]
        for word in ("Input", "Output")
    ]
    return [ends for ends in groups if len(ends) > 2]


def _alike_ends(level: LevelGraph) -> Groups:
    """Return groups of inputs, and of outputs, whose names begin alike (`past.0`, `past.1`)."""
    by_stem: dict[tuple[str, str], list[int]] = {}
    for index, word in level.ends.items():
        stem = stem_of_end(level.labels[index])
        if stem:
            by_stem.setdefault((word, stem), []).append(index)
    return [indices for indices in by_stem.values() if len(indices) >= _FEWEST_ENDS]


def _without_rare(level: LevelGraph, indices: list[int]) -> list[int]:
    """Return children without those before and after the most frequent numbered list.

    All are returned if those are many, or if less than a tenth of the children are in the list.
    """
    numbered = [read_number(level.labels[at], level.ops[at]) for at in indices]
    stems = [matches[0] if matches else None for matches in numbered]
    counts = Counter(stem for stem in stems if stem is not None)
    if not counts:
        return indices
    stem, count = counts.most_common(1)[0]
    first = stems.index(stem)
    last = len(stems) - stems[::-1].index(stem)
    if first and level.labels[indices[first - 1]] + "." == stem:
        # The first call of a module has no number, unlike its later calls.
        first -= 1
    little = first + len(stems) - last <= _MOST_BESIDE
    return indices[first:last] if little and count * 10 >= len(indices) else indices


def _is_list(level: LevelGraph, indices: list[int]) -> bool:
    """Whether most children are numbered: the members of a list, or calls of a module."""
    numbered = [read_number(level.labels[at], level.ops[at]) for at in indices]
    return len(indices) < 2 * (len(numbered) - numbered.count(None))


def _size(count: int, most: int) -> int:
    """Return the smallest size with which there are at most `most` chunks."""
    return next(size for size in _SIZES if count <= size * most)


def _sections(level: LevelGraph, indices: list[int], size: int) -> Groups:
    """Return children in sections of about this size, split where few edges cross.

    A section has at least four fifths of the size, and the last at most seven fifths.
    """
    crossing = _crossings(level, indices)
    slack = size // 5
    sections = []
    start, count = 0, len(indices)
    while count - start > size + 2 * slack:
        ideal = start + size
        # The fewest crossings decide, then the distance from the ideal size.
        end = min(
            range(ideal - slack, ideal + slack + 1),
            key=lambda at: (crossing[at], abs(at - ideal)),
        )
        sections.append(indices[start:end])
        start = end
    sections.append(indices[start:])
    return sections


def _crossings(level: LevelGraph, indices: Sequence[int]) -> list[int]:
    """Return the number of children that are linked across each possible cut.

    A child before the cut counts once, however many children behind it have a link to it.
    """
    order = {index: position for position, index in enumerate(indices)}
    last: dict[int, int] = {}
    for start, end in level.links:
        if start in order and end in order:
            first, to = sorted((order[start], order[end]))
            last[first] = max(last.get(first, 0), to)
    steps = [0] * (len(indices) + 1)
    for first, to in last.items():
        steps[first + 1] += 1
        steps[min(to + 1, len(indices))] -= 1
    return list(accumulate(steps))


def read_number(label: str, op: str = "") -> tuple[str, int] | None:
    """Split a name into stem and number: `0.3` into `0.` and 3, `3_Linear` into "" and 3.

    The third call of a module, `fc.3rd`, has the number 3, but the third operation of a type, whose
    name is its op type, has none. None for a name without a number.
    """
    nth = _NTH.fullmatch(label)
    if nth is not None:
        return None if nth[1] == f"{op}." else (nth[1], int(nth[2]))
    stem = label.rstrip(_DIGITS)
    if stem != label:
        return stem, int(label[len(stem) :])
    number = label.partition("_")[0]
    if label.endswith("]"):
        number = label.rpartition("[")[2][:-1]
    return ("", int(number)) if number.isdecimal() else None


def stem_of_end(label: str) -> str:
    """Return the text before the first dot, without digits at its end: `past` of `past.0.key`."""
    return label.partition(".")[0].rstrip(_DIGITS).rstrip("_-")
