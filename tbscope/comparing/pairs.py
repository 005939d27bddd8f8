"""Pairs: what differs between two blocks, themselves and step by step.

Each pair of blocks is compared once, however often it is called. What follows from a difference
further up, as the type of all that reads a wider tensor, is counted and not told.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from tbscope.comparing.matching import (
    Match,
    alone,
    match_steps,
    matched_inputs,
    plain_arguments,
)
from tbscope.comparing.outline import Block, Facts, Held, Ref, Step

__all__ = ["Detail", "Pair", "compare_blocks", "held_details"]


# The facts of an operation that tell how it ran.
_OF_RUNNING = frozenset({"writes", "random"})


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


@dataclass
class Pair:
    """Two blocks.

    Attributes:
        left: The one before.
        right: The one after.
        bare: Whether one of them is only a call alone, and so has no facts of its own.
        matches: The steps that stand for each other.
        removed: The places of the steps that only the left one has.
        added: The places of those that only the right one has.
        details: How the blocks differ themselves.
        steps: How matched steps differ in their place, beside what they call.
        replaced: Those of two classes that have nothing in common but their place.
        follows: How many operations give another type for that they are given one.
    """

    left: Block
    right: Block
    bare: bool
    matches: list[Match]
    removed: list[int]
    added: list[int]
    details: list[Detail] = field(default_factory=list)
    steps: dict[Match, list[Detail]] = field(default_factory=dict)
    replaced: set[Match] = field(default_factory=set)
    follows: int = 0

    @cached_property
    def ways(self) -> "_Ways":
        """Tells what reads the same on both sides."""
        return _Ways(self)

    def output_details(self, left: int, right: int) -> "Iterator[Detail]":
        """Return how two outputs of graphs differ, by their places among these."""
        one, other = self.left.given[left], self.right.given[right]
        if not self.ways.same(one, other):
            yield Detail("is", str(one), str(other))

    def below(self, match: Match) -> tuple[Block, Block, bool] | None:
        """Return the blocks of two calls that stand for each other; None where they are equal."""
        one, other = self.left.steps[match.left], self.right.steps[match.right]
        if one.block is None or other.block is None:
            return None
        if match.wrapped == "right":
            return alone(one), other.block, True
        if match.wrapped == "left":
            return one.block, alone(other), True
        if one.block.digest == other.block.digest or match in self.replaced:
            return None
        return one.block, other.block, False


def compare_blocks(left: Block, right: Block, *, bare: bool = False) -> Pair:
    """Return how two blocks differ.

    Args:
        left: The one before.
        right: The one after.
        bare: Whether one of them is a call alone, that the other one wraps.
    """
    matches = match_steps(left, right)
    pair = Pair(
        left,
        right,
        bare,
        matches,
        sorted(set(range(len(left.steps))).difference(match.left for match in matches)),
        sorted(set(range(len(right.steps))).difference(match.right for match in matches)),
    )
    ways = pair.ways
    if not bare:
        same_class = left.label == right.label
        pair.details += _facts(left.facts, right.facts, both=not same_class)
        pair.details += _facts(left.arguments, right.arguments, "argument ", both=not same_class)
        if not left.again and not right.again:
            pair.details += held_details(left.state, right.state)
        pair.details += ways.inputs()
        pair.details += _results(pair, ways)
    for match in matches:
        details = list(_step(pair, match, ways))
        if details:
            pair.steps[match] = details
    return pair


def _step(pair: Pair, match: Match, ways: "_Ways") -> Iterator[Detail]:
    one, other = pair.left.steps[match.left], pair.right.steps[match.right]
    if one.block is not None and one.label != other.label and not pair.bare:
        if pair.left.class_name or one.place or other.place:
            yield Detail("name", one.label, other.label)
    elif one.place != other.place and not pair.bare:
        yield Detail("place", one.place or "none", other.place or "none")
    if one.op != other.op and one.block is None:
        yield Detail("op", one.op, other.op)
    if match.wrapped:
        names = [step.op for step in (one, other)]
        if one.op == other.op:
            names = [step.block.class_name if step.block else "" for step in (one, other)]
        told = ("", names[1]) if match.wrapped == "right" else (names[0], "")
        yield Detail("wrapped in", *told)
    elif one.block and other.block and one.op != other.op:
        yield Detail("class", one.op, other.op)
        if _have_nothing_in_common(one.block, other.block):
            pair.replaced.add(match)
            yield from held_details(one.block.state, other.block.state)
    if match.moved:
        yield Detail("moved", _behind(pair.left, match.left), _behind(pair.right, match.right))
    for detail in _facts(one.facts, other.facts):
        if not (one.block is None and detail.what in _OF_RUNNING and _is_set_otherwise(pair)):
            yield detail
    differs = False
    if one.block is None:
        for detail in _arguments(one, other):
            differs = True
            if not _follows(detail, pair):
                yield detail
    for detail in ways.reads(one, other, match):
        differs = True
        yield detail
    if one.gives != other.gives:
        if one.block is not None:
            return
        if one.took == other.took and not (differs and len(one.gives) != len(other.gives)):
            yield Detail("gives", ", ".join(one.gives), ", ".join(other.gives))
        elif not differs:
            pair.follows += 1


def _is_leaf(block: Block) -> bool:
    return not any(step.block for step in block.steps)


def _have_nothing_in_common(one: Block, other: Block) -> bool:
    """Tell whether two modules that call no others run other operations, all of them."""
    ran = [{step.op for step in block.steps} for block in (one, other)]
    return _is_leaf(one) and _is_leaf(other) and ran[0].isdisjoint(ran[1])


def _behind(block: Block, place: int) -> str:
    return f"behind {block.steps[place - 1].label}" if place else "first"


def _facts(one: Facts, other: Facts, what: str = "", *, both: bool = False) -> Iterator[Detail]:
    """Return how facts differ; if asked, only of those that stand on both sides."""
    left, right = dict(one), dict(other)
    for name in dict.fromkeys([*left, *right]):
        if both and (name not in left or name not in right):
            continue
        if left.get(name) != right.get(name):
            yield Detail(f"{what}{name}", left.get(name, ""), right.get(name, ""))


def held_details(one: Iterable[Held], other: Iterable[Held]) -> Iterator[Detail]:
    """Return how the parameters and buffers of two modules differ."""
    left, right = {held.name: held for held in one}, {held.name: held for held in other}
    trainable: list[tuple[str, bool, bool]] = []
    for name in dict.fromkeys([*left, *right]):
        before, after = left.get(name), right.get(name)
        if before is None or after is None or before.kind != after.kind:
            told = [f"{held.kind} {held.type}" if held else "" for held in (before, after)]
            yield Detail(name, *told)
            continue
        if before.type != after.type:
            yield Detail(name, before.type, after.type)
        if before.trainable != after.trainable:
            trainable.append((name, before.trainable, after.trainable))
    kinds = {flags[1:] for flags in trainable}
    parameters = [held for held in right.values() if held.kind == "parameter"]
    if len(kinds) == 1 and len(trainable) == len(parameters):
        yield Detail("trainable", *map(str, kinds.pop()))
    else:
        for name, was, now in trainable:
            yield Detail(f"{name} trainable", str(was), str(now))


def _arguments(one: Step, other: Step) -> Iterator[Detail]:
    left, right = plain_arguments(one), plain_arguments(other)
    if left == right:
        return
    named = [
        {name or f"argument {at}": text for at, (name, text) in enumerate(arguments)}
        for arguments in (left, right)
    ]
    # Another operation takes others, which is no news.
    both = one.op != other.op
    yield from _facts(tuple(named[0].items()), tuple(named[1].items()), both=both)


def _is_set_otherwise(pair: Pair) -> bool:
    """Tell whether a leaf module is set to something else: what runs in it follows that."""
    return bool(pair.details) and _is_leaf(pair.left) and _is_leaf(pair.right)


def _follows(detail: Detail, pair: Pair) -> bool:
    """Tell whether an argument differs as a leaf module hands on what it was set to."""
    if not _is_set_otherwise(pair):
        return False
    if any(detail.what == one.what or detail[1:] == one[1:] for one in pair.details):
        return True
    # What it owns no more, it hands on no more.
    owned = any(not (one.before and one.after) for one in pair.details)
    return owned and {detail.before, detail.after} == {"%", "None"}


def _results(pair: Pair, ways: "_Ways") -> Iterator[Detail]:
    left, right = pair.left, pair.right
    if not left.class_name and not right.class_name:
        # The outputs of a graph are told by their names.
        return
    if left.results != right.results:
        yield Detail("results", left.results or "none", right.results or "none")
    elif not ways.same_all(left.given, right.given):
        yield Detail("results", _refs(left.given), _refs(right.given))


def _refs(refs: Iterable[Ref]) -> str:
    return ", ".join(map(str, refs)) or "nothing"


class _Ways:
    """Tells whether two steps read the same, and whether what differs follows from the rest.

    Args:
        pair: The two blocks.
    """

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        left, right = pair.left.steps, pair.right.steps
        self._labels = {left[one.left].label: right[one.right].label for one in pair.matches}
        self._inputs = matched_inputs(pair.left, pair.right, bare=pair.bare)
        # Through what is only on one side, or moved, edges are followed to what is on both.
        moved = [match for match in pair.matches if match.moved]
        self._passed = (
            {left[at].label: left[at] for at in [*pair.removed, *(one.left for one in moved)]},
            {right[at].label: right[at] for at in [*pair.added, *(one.right for one in moved)]},
        )
        self._same_calls = {
            left[one.left].label: _same_inside(left[one.left], right[one.right])
            for one in pair.matches
        }

    def inputs(self) -> Iterator[Detail]:
        """Return the inputs that only one of the blocks has, or that are called otherwise."""
        left = {port.name: port for port in self._pair.left.inputs}
        right = {port.name: port for port in self._pair.right.inputs}
        if not self._pair.left.class_name and not self._pair.right.class_name:
            return
        for name, other in self._inputs.items():
            if name != other and left[name].kind == right[other].kind == "argument":
                yield Detail("argument", name, other)
        taken = set(self._inputs.values())
        for port in self._pair.left.inputs:
            if port.kind == "argument" and port.name not in self._inputs:
                yield Detail("argument", port.name, "")
        for port in self._pair.right.inputs:
            if port.kind == "argument" and port.name not in taken:
                yield Detail("argument", "", port.name)

    def reads(self, one: Step, other: Step, match: Match) -> Iterator[Detail]:
        """Return how what a step reads differs, where that tells something new."""
        pairs: list[tuple[Ref, Ref]] = []
        if one.block is not None and other.block is not None:
            ports = _matched_ports(one, other)
            pairs = [(one.reads[at], other.reads[place]) for at, place in ports]
        elif len(one.reads) == len(other.reads):
            pairs = list(zip(one.reads, other.reads, strict=True))
        elif plain_arguments(one) == plain_arguments(other):
            yield Detail("reads", _refs(one.reads), _refs(other.reads))
        # What stands at another place reads what is there.
        if not match.moved and not all(self.same(*pair) for pair in pairs):
            yield Detail("reads", _refs(one.reads), _refs(other.reads))

    def same_all(self, left: Iterable[Ref], right: Iterable[Ref]) -> bool:
        """Tell whether all refs are the same, one by one."""
        one, other = list(left), list(right)
        return len(one) == len(other) and all(map(self.same, one, other))

    def same(self, left: Ref, right: Ref) -> bool:
        """Tell whether two refs name what stands for each other, or follow from other changes."""
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
            return left.label == right.label or self._state(left.label) == right.label
        if self._labels.get(left.label) != right.label:
            return False
        if self._same_calls.get(left.label):
            return left[1:] == right[1:]
        # Inside of calls that differ, labels are no longer the same: these tell it themselves.
        return left.output == right.output or bool(left.inner or right.inner)

    def _state(self, name: str) -> str:
        """Return what a parameter of a module that is called otherwise now is called."""
        parts = name.split(".")
        for at in range(len(parts) - 1, 0, -1):
            label = self._labels.get(".".join(parts[:at]))
            if label is not None:
                return ".".join([label, *parts[at:]])
        return name

    def _sources(self, ref: Ref, side: int) -> set[Ref]:
        """Return what something is made of, through steps that the other side has not."""
        passed, found, seen, pending = self._passed[side], set(), {ref}, [ref]
        while pending:
            one = pending.pop()
            step = passed.get(one.label) if one.role == "step" else None
            if step is None:
                found.add(one)
                continue
            for inner in step.reads:
                if inner not in seen:
                    seen.add(inner)
                    pending.append(inner)
        return found


def _same_inside(one: Step, other: Step) -> bool:
    if one.block is None or other.block is None:
        return True
    return one.block.structure == other.block.structure


def _matched_ports(one: Step, other: Step) -> list[tuple[int, int]]:
    assert one.block is not None, "calls have ports"
    assert other.block is not None, "calls have ports"
    bare = one.block.class_name != other.block.class_name
    matched = matched_inputs(one.block, other.block, bare=bare)
    places = {name: place for place, name in enumerate(other.ports)}
    return [
        (at, places[matched[name]])
        for at, name in enumerate(one.ports)
        if name in matched and matched[name] in places
    ]
