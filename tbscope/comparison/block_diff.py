"""Pairs: what differs between two blocks, themselves and step by step.

Each pair of blocks is compared once, however often it is called. What follows from a difference
further up, as the type of all that reads a wider tensor, is counted and not told.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tbscope.comparison.matching import (
    Match,
    match_steps,
    matched_inputs,
    plain_arguments,
)
from tbscope.comparison.structure import Block, Held, Ref, Step

__all__ = ["Detail", "Pair", "held_details", "renamed"]


class Detail(NamedTuple):
    """One thing that differs.

    Attributes:
        what: What it is: `p`, `weight`, `training`, `name`, `reads`, `op`.
        before: What it was, as text; empty for nothing.
        after: What it is now; empty for nothing.
    """

    what: str
    before: str
    after: str

    def __str__(self) -> str:
        if self.what == "wrapped in":
            return f"{'' if self.after else 'no longer '}wrapped in {self.after or self.before}"
        if not self.before and not self.after:
            return self.what
        if not self.before or not self.after:
            return f"{self.what} {self.after or self.before} {'added' if self.after else 'removed'}"
        return f"{self.what} {self.before} -> {self.after}"


class Pair:
    """How two blocks differ.

    Args:
        left: The one before.
        right: The one after.
        bare: Whether one of them is a call alone, that the other one wraps: it has no settings
            of its own.

    Attributes:
        left: The one before.
        right: The one after.
        matches: The steps that stand for each other.
        removed: The places of the steps that only the left one has.
        added: The places of those that only the right one has.
        details: How the blocks differ themselves.
        steps: How matched steps differ in their place, beside what they call.
        replaced: Those of two classes that have nothing in common but their place.
        follows: How many operations give another type for that they are given one.
    """

    def __init__(self, left: Block, right: Block, *, bare: bool = False) -> None:
        self.left = left
        self.right = right
        self._bare = bare
        self.matches = match_steps(left, right)
        stay = {match.left for match in self.matches}, {match.right for match in self.matches}
        self.removed = [at for at in range(len(left.steps)) if at not in stay[0]]
        self.added = [at for at in range(len(right.steps)) if at not in stay[1]]
        self.replaced: set[Match] = set()
        self.follows = 0
        both = [(match, *self.steps_of(match)) for match in self.matches]
        # The label after by the one before, and whether what is called is the same.
        self._labels = {one.label: other.label for _, one, other in both}
        self._alike = {
            one.label: not (one.block and other.block)
            or one.block.structure == other.block.structure
            for _, one, other in both
        }
        self._inputs = matched_inputs(left, right, bare=bare)
        # Through what is only on one side, or moved, edges are followed to what is on both.
        moved = [(one, other) for match, one, other in both if match.moved]
        passed = (
            [*(left.steps[at] for at in self.removed), *(one for one, _ in moved)],
            [*(right.steps[at] for at in self.added), *(other for _, other in moved)],
        )
        self._passed = [{step.label: step for step in steps} for steps in passed]
        self.details = [] if bare else list(self._own_details())
        # A leaf module that is set to something else hands that on to what runs in it.
        self._set_otherwise = bool(self.details) and _are_leaves(left, right)
        self.steps: dict[Match, list[Detail]] = {}
        for match, one, other in both:
            if details := list(self._step(match, one, other)):
                self.steps[match] = details

    def steps_of(self, match: Match) -> tuple[Step, Step]:
        """Return the steps of a match."""
        return self.left.steps[match.left], self.right.steps[match.right]

    # -- the blocks themselves --------------------------------------------------------

    def _own_details(self) -> Iterator[Detail]:
        left, right = self.left, self.right
        both = left.label != right.label
        yield from _differing(left.settings, right.settings, both=both)
        yield from _differing(left.arguments, right.arguments, "argument ", both=both)
        if not left.again and not right.again:
            yield from held_details(left.state, right.state)
        if not left.class_name and not right.class_name:
            # The inputs and outputs of a graph are told by their names.
            return
        names = [
            [port.name for port in block.inputs if port.kind == "argument"]
            for block in (left, right)
        ]
        for name in names[0]:
            if self._inputs.get(name) != name:
                yield Detail("argument", name, self._inputs.get(name, ""))
        taken = set(self._inputs.values())
        yield from (Detail("argument", "", name) for name in names[1] if name not in taken)
        if left.results != right.results:
            yield Detail("results", left.results or "none", right.results or "none")
        elif not all(map(self._same, left.given, right.given)):
            yield _reads("results", left.given, right.given)

    def output_details(self, left: int, right: int) -> Iterator[Detail]:
        """Yield how two outputs of graphs differ, by their places among these."""
        one, other = self.left.given[left], self.right.given[right]
        if not self._same(one, other):
            yield Detail("is", str(one), str(other))

    # -- steps ------------------------------------------------------------------------

    def _step(self, match: Match, one: Step, other: Step) -> Iterator[Detail]:
        yield from self._placed(match, one, other)
        for detail in _differing(one.settings, other.settings):
            # How an operation ran follows from what its module is set to.
            ran = one.block is None and detail.what in ("writes", "random")
            if not (ran and self._set_otherwise):
                yield detail
        differs = False
        if one.block is None:
            # Another operation takes others, which is no news.
            both = one.op != other.op
            for detail in _differing(_named_arguments(one), _named_arguments(other), both=both):
                differs = True
                if not self._follows(detail):
                    yield detail
        if reads := self._reads(match, one, other):
            differs = True
            yield reads
        if one.block is not None or one.gives == other.gives:
            return
        if one.takes == other.takes and not (differs and len(one.gives) != len(other.gives)):
            yield Detail("gives", ", ".join(one.gives), ", ".join(other.gives))
        elif not differs:
            self.follows += 1

    def _placed(self, match: Match, one: Step, other: Step) -> Iterator[Detail]:
        """Yield how the names, the places and the classes of two steps differ."""
        if not self._bare:
            if one.block is not None and one.label != other.label:
                # A model that is called otherwise is another class, not another name.
                if self.left.class_name or one.place or other.place:
                    yield Detail("name", one.label, other.label)
            elif one.place != other.place:
                yield Detail("place", one.place or "none", other.place or "none")
        if one.block is None or other.block is None:
            if one.op != other.op:
                yield Detail("op", one.op, other.op)
        elif match.wrapped:
            names = one.op, other.op
            if one.op == other.op:
                names = one.block.class_name, other.block.class_name
            before, after = ("", names[1]) if match.wrapped == "right" else (names[0], "")
            yield Detail("wrapped in", before, after)
        elif one.op != other.op:
            yield Detail("class", one.op, other.op)
            ran = [{step.op for step in block.steps} for block in (one.block, other.block)]
            if _are_leaves(one.block, other.block) and ran[0].isdisjoint(ran[1]):
                self.replaced.add(match)
                yield from held_details(one.block.state, other.block.state)
        if match.moved:
            places = _behind(self.left, match.left), _behind(self.right, match.right)
            yield Detail("moved", *places)

    def _follows(self, detail: Detail) -> bool:
        """Whether an argument differs as a leaf module hands on what it was set to."""
        if not self._set_otherwise:
            return False
        if any(detail.what == one.what or detail[1:] == one[1:] for one in self.details):
            return True
        # What it owns no more, it hands on no more.
        owned = any(not (one.before and one.after) for one in self.details)
        return owned and {detail.before, detail.after} == {"%", "None"}

    # -- what is read -----------------------------------------------------------------

    def _reads(self, match: Match, one: Step, other: Step) -> Detail | None:
        """Return how what a step reads differs, where that tells something new."""
        pairs: Iterable[tuple[Ref, Ref]] = []
        if one.block is not None and other.block is not None:
            bare = one.block.class_name != other.block.class_name
            matched = matched_inputs(one.block, other.block, bare=bare)
            reads = dict(zip(other.ports, other.reads, strict=True))
            pairs = [
                (ref, reads[matched[name]])
                for name, ref in zip(one.ports, one.reads, strict=True)
                if matched.get(name) in reads
            ]
        elif len(one.reads) == len(other.reads):
            pairs = zip(one.reads, other.reads, strict=True)
        elif plain_arguments(one) == plain_arguments(other):
            return _reads("reads", one.reads, other.reads)
        # What stands at another place reads what is there.
        if match.moved or all(self._same(*pair) for pair in pairs):
            return None
        return _reads("reads", one.reads, other.reads)

    def _same(self, left: Ref, right: Ref) -> bool:
        """Whether two refs name what stands for each other, or follow from other changes."""
        if self._is_same(left, right):
            return True
        if left.label not in self._passed[0] and right.label not in self._passed[1]:
            return False
        before, after = self._sources(left, 0), self._sources(right, 1)
        if not before or not after:
            # What is read comes from nowhere else: it was made where it is read.
            return left.role == right.role == "step"
        return any(self._is_same(one, other) for one in before for other in after)

    def _is_same(self, left: Ref, right: Ref) -> bool:
        if left.role != right.role:
            return False
        if left.role == "in":
            return self._inputs.get(left.label, left.label) == right.label
        if left.role == "state":
            return right.label in (left.label, renamed(left.label, self._labels))
        if self._labels.get(left.label) != right.label:
            return False
        # Inside of calls that differ, labels are no longer the same: these tell it themselves.
        inside = not self._alike[left.label] and (left.inner or right.inner)
        return bool(inside) or left[1:] == right[1:]

    def _sources(self, ref: Ref, side: int) -> set[Ref]:
        """Return what something is made of, through steps that the other side has not."""
        passed, found, seen, pending = self._passed[side], set(), {ref}, [ref]
        while pending:
            one = pending.pop()
            step = passed.get(one.label) if one.role == "step" else None
            if step is None:
                found.add(one)
                continue
            new = [inner for inner in step.reads if inner not in seen]
            seen.update(new)
            pending += new
        return found


def renamed(name: str, names: Mapping[str, str]) -> str:
    """Return a name whose start, as far as it is known, is another one now."""
    parts = name.split(".")
    for at in range(len(parts), -1, -1):
        now = names.get(".".join(parts[:at]))
        if now is not None:
            return ".".join([*([now] if now else []), *parts[at:]])
    return name


def _are_leaves(*blocks: Block) -> bool:
    return not any(step.block for block in blocks for step in block.steps)


def _behind(block: Block, place: int) -> str:
    return f"behind {block.steps[place - 1].label}" if place else "first"


def _differing(
    one: Iterable[tuple[str, str]],
    other: Iterable[tuple[str, str]],
    what: str = "",
    *,
    both: bool = False,
) -> Iterator[Detail]:
    """Yield how settings differ; if asked, only those that stand on both sides."""
    left, right = dict(one), dict(other)
    for name in dict.fromkeys([*left, *right]):
        before, after = left.get(name), right.get(name)
        if before != after and not (both and (before is None or after is None)):
            yield Detail(f"{what}{name}", before or "", after or "")


def held_details(one: Iterable[Held], other: Iterable[Held]) -> Iterator[Detail]:
    """Yield how the parameters and buffers of two modules differ."""
    left, right = {held.name: held for held in one}, {held.name: held for held in other}
    trainable: dict[str, tuple[str, str]] = {}
    for name in dict.fromkeys([*left, *right]):
        before, after = left.get(name), right.get(name)
        if before is None or after is None or before.kind != after.kind:
            told = [f"{held.kind} {held.type}" if held else "" for held in (before, after)]
            yield Detail(name, *told)
            continue
        if before.type != after.type:
            yield Detail(name, before.type, after.type)
        if before.trainable != after.trainable:
            trainable[name] = str(before.trainable), str(after.trainable)
    parameters = [held for held in right.values() if held.kind == "parameter"]
    if len(set(trainable.values())) == 1 and len(trainable) == len(parameters):
        yield Detail("trainable", *next(iter(trainable.values())))
    else:
        for name, flags in trainable.items():
            yield Detail(f"{name} trainable", *flags)


def _named_arguments(step: Step) -> Iterator[tuple[str, str]]:
    for at, (name, text) in enumerate(plain_arguments(step)):
        yield name or f"argument {at}", text


def _reads(what: str, one: Iterable[Ref], other: Iterable[Ref]) -> Detail:
    return Detail(what, *(", ".join(map(str, refs)) or "nothing" for refs in (one, other)))
