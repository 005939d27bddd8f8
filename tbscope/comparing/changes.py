"""Changes: what became of each part of a model, by the names that its user knows.

The pairs of blocks are walked from the whole to its parts; what is equal inside is not entered.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias

from tbscope.comparing.matching import Match, is_telling, matched_inputs, only_call
from tbscope.comparing.outline import Block, Outline, Port, Step
from tbscope.comparing.pairs import Detail, Pair, compare_blocks, held_details

__all__ = ["Change", "Comparison", "Fate", "Kind", "Visit"]

Fate: TypeAlias = Literal["added", "removed", "changed"]
"""What became of a part."""

Kind: TypeAlias = Literal["module", "operation", "input", "output", "parameter"]
"""What a part is: a call of a module (or a module that nobody calls), an operation, a tensor that
goes in or comes out, or a tie between parameters."""


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one part of a model.

    Attributes:
        fate: "added", "removed" or "changed".
        kind: What the part is.
        before: Its name before; None where it is added.
        after: Its name after; None where it is removed.
        label: The class of a module, or what an operation is called.
        details: What differs of a changed part; of one that came or went, what it was set to.
        operations: How many operations run in it.
        parameters: How many numbers are in the parameters in it.
    """

    fate: Fate
    kind: Kind
    before: str | None
    after: str | None
    label: str
    details: tuple[Detail, ...] = ()
    operations: int = 0
    parameters: int = 0

    @property
    def name(self) -> str:
        """Its name: the one after, or before where it is removed."""
        return (self.before if self.after is None else self.after) or ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data (docs/diff.md)."""
        return {**asdict(self), "details": [one._asdict() for one in self.details]}


class Visit(NamedTuple):
    """A pair of blocks at one place of the models.

    Attributes:
        pair: The pair.
        names: The names of the two blocks; None for what stands outside of all calls.
        alone: The names of the calls that stand alone in their block, where one does.
    """

    pair: Pair
    names: tuple[str | None, str | None]
    alone: tuple[str | None, str | None] = (None, None)

    def name(self, step: Step, side: int) -> str:
        """Return the name of a step from the model on: empty for the model itself."""
        alone, above = self.alone[side], self.names[side]
        if alone is not None:
            return alone
        if above is None:
            block = (self.pair.left, self.pair.right)[side]
            at = only_call(block)
            return "" if at >= 0 and block.steps[at] is step else step.label
        return f"{above}.{step.label}" if above else step.label


class Comparison:
    """Two outlines, compared.

    Args:
        left: The one before.
        right: The one after.

    Attributes:
        left: The one before.
        right: The one after.
        main: The pair of what stands outside of all calls.
        inputs: The names of the inputs before, with those after.
        changes: What came, what went, and what changed, in the order of the run.
        follows: How many operations give other types because of what they are given.
    """

    def __init__(self, left: Outline, right: Outline) -> None:
        self.left = left
        self.right = right
        self.follows = 0
        self._pairs: dict[tuple[str, str, bool], Pair] = {}
        self._names: dict[str, str] = {}
        self._lone: list[tuple[Change, Step]] = []
        self.main = self.pair(left.main, right.main)
        self.inputs = matched_inputs(left.main, right.main)
        walked = list(self._walked())
        found = [*self._inputs(), *self._moved(walked), *self._outputs()]
        self.changes: list[Change] = [*_joined(found, list(self._uncalled())), *self._ties()]

    def pair(self, left: Block, right: Block, *, bare: bool = False) -> Pair:
        """Return how two blocks differ; each pair is compared once."""
        key = (left.digest, right.digest, bare)
        known = self._pairs.get(key)
        if known is None:
            known = self._pairs[key] = compare_blocks(left, right, bare=bare)
        return known

    # -- what ran ---------------------------------------------------------------------

    def start(self) -> Visit | None:
        """Return the visit of what stands outside of all calls; None where all is the same."""
        if self.left.main.digest == self.right.main.digest:
            return None
        return Visit(self.main, (None, None))

    def below(self, visit: Visit, match: Match) -> Visit | None:
        """Return the visit of two calls that stand for each other; None where they are the same."""
        blocks = visit.pair.below(match)
        if blocks is None:
            return None
        one, other = visit.pair.left.steps[match.left], visit.pair.right.steps[match.right]
        names = visit.name(one, 0), visit.name(other, 1)
        alone = (
            names[0] if match.wrapped == "right" else None,
            names[1] if match.wrapped == "left" else None,
        )
        left, right, bare = blocks
        return Visit(self.pair(left, right, bare=bare), names, alone)

    def _walked(self) -> Iterator[Change]:
        start = self.start()
        pending: list[Visit | Change] = [] if start is None else [start]
        while pending:
            visit = pending.pop()
            if isinstance(visit, Change):
                yield visit
                continue
            self.follows += visit.pair.follows
            pending += reversed(list(self._parts(visit)))

    def _parts(self, visit: Visit) -> Iterator[Visit | Change]:
        """Return what became of the steps of a pair: what went, behind what stood before it."""
        pair = visit.pair
        places: list[tuple[int, int, Match | None]] = [
            *((match.right, -1, match) for match in pair.matches),
            *((at, -1, None) for at in pair.added),
        ]
        stays = {match.left: match.right for match in pair.matches if not match.moved}
        removed, last = set(pair.removed), -1
        for at in range(len(pair.left.steps)):
            last = stays.get(at, last)
            if at in removed:
                places.append((last, at, None))
        for right, left, match in sorted(places, key=lambda place: place[:2]):
            if match is not None:
                yield from self._matched(visit, match)
            elif left < 0:
                yield self._only(visit, pair.right.steps[right], "added")
            else:
                yield self._only(visit, pair.left.steps[left], "removed")

    def _only(self, visit: Visit, step: Step, fate: Fate) -> Change:
        """Return the change that a step is which stands on one side alone."""
        name = visit.name(step, fate == "added")
        names = (None, name) if fate == "added" else (name, None)
        change = _change(fate, names, step, list(_told(step, fate)))
        self._lone.append((change, step))
        return change

    def _matched(self, visit: Visit, match: Match) -> Iterator[Visit | Change]:
        pair = visit.pair
        one, other = pair.left.steps[match.left], pair.right.steps[match.right]
        names = visit.name(one, 0), visit.name(other, 1)
        self._names[names[0]] = names[1]
        details = list(pair.steps.get(match, ()))
        below = self.below(visit, match)
        if below is not None:
            details += below.pair.details
        if details:
            yield _change("changed", names, other, details)
        if below is not None:
            yield below

    def _moved(self, walked: list[Change]) -> Iterator[Change]:
        """Return changes with one in place of two, where a module went to another place."""
        went: dict[tuple[str, str], list[Change]] = {}
        came: dict[tuple[str, str], list[Change]] = {}
        for change, step in self._lone:
            if step.block is not None and is_telling(step.block):
                key = (step.block.structure, step.label.rpartition(".")[2])
                (came if change.before is None else went).setdefault(key, []).append(change)
        instead: dict[int, Change | None] = {}
        for key, (change, *more) in went.items():
            if not more and len(came.get(key, ())) == 1:
                new = came[key][0]
                told = (Detail("moved", change.before or "", new.after or ""),)
                instead[id(change)] = None
                instead[id(new)] = replace(new, fate="changed", before=change.before, details=told)
        for change in walked:
            stands = instead.get(id(change), change)
            if stands is not None:
                yield stands

    # -- what goes in and comes out ---------------------------------------------------

    def _inputs(self) -> Iterator[Change]:
        left = {port.name: port for port in self.left.main.inputs}
        right = {port.name: port for port in self.right.main.inputs}
        matched = self.inputs
        for name, other in matched.items():
            one, two = left[name], right[other]
            details = [Detail("type", one.type, two.type)] if one.type != two.type else []
            if one.kind == "input" and name != other:
                details.insert(0, Detail("name", name, other))
            if details:
                yield Change("changed", "input", name, other, _input_label(two), tuple(details))
        taken = set(matched.values())
        for port in left.values():
            if port.kind == "input" and port.name not in matched:
                told = (Detail("type", port.type, ""),)
                yield Change("removed", "input", port.name, None, "input", told)
        for port in right.values():
            if port.kind == "input" and port.name not in taken:
                told = (Detail("type", "", port.type),)
                yield Change("added", "input", None, port.name, "input", told)

    def _outputs(self) -> Iterator[Change]:
        left = dict(zip(self.left.outputs, range(len(self.left.outputs)), strict=True))
        right = dict(zip(self.right.outputs, range(len(self.right.outputs)), strict=True))
        for name, at in left.items():
            if name not in right:
                told = (Detail("type", self.left.types[at], ""),)
                yield Change("removed", "output", name, None, "output", told)
        for name, at in right.items():
            if name not in left:
                told = (Detail("type", "", self.right.types[at]),)
                yield Change("added", "output", None, name, "output", told)
            elif details := list(self.main.output_details(left[name], at)):
                yield Change("changed", "output", name, name, "output", tuple(details))
        both = [name for name in left if name in right], [name for name in right if name in left]
        if both[0] != both[1]:
            told = (Detail("order", ", ".join(both[0]), ", ".join(both[1])),)
            yield Change("changed", "output", "outputs", "outputs", "output", told)

    # -- what did not run -------------------------------------------------------------

    def _uncalled(self) -> Iterator[Change]:
        left = {self.name_now(one.name): one for one in self.left.uncalled}
        right = {one.name: one for one in self.right.uncalled}
        for name in dict.fromkeys([*left, *right]):
            before, after = left.get(name), right.get(name)
            if before is None or after is None:
                one = before or after
                assert one is not None, "it stands on one side"
                fate: Fate = "added" if before is None else "removed"
                yield Change(
                    fate,
                    "module",
                    before and before.name,
                    after and after.name,
                    one.class_name.rpartition(".")[2],
                    (Detail("never called", "", ""),),
                    0,
                    sum(held.numbers for held in one.state if held.kind == "parameter"),
                )
                continue
            details = list(held_details(before.state, after.state))
            if before.class_name != after.class_name and (before.state or after.state):
                details.insert(0, Detail("class", before.class_name, after.class_name))
            if details:
                label = after.class_name.rpartition(".")[2]
                yield Change("changed", "module", before.name, name, label, tuple(details))

    def _ties(self) -> Iterator[Change]:
        left = {frozenset(map(self.name_now, names)): names for names in self.left.ties}
        right = {frozenset(names): names for names in self.right.ties}
        for tie, names in left.items():
            if tie not in right:
                yield Change("removed", "parameter", " = ".join(names), None, "tie")
        for tie, names in right.items():
            if tie not in left:
                yield Change("added", "parameter", None, " = ".join(names), "tie")

    def name_now(self, name: str) -> str:
        """Return what a module or a parameter is called after, of whose name the start changed."""
        parts = name.split(".")
        for at in range(len(parts), -1, -1):
            now = self._names.get(".".join(parts[:at]))
            if now is not None:
                return ".".join([*([now] if now else []), *parts[at:]])
        return name


def _change(
    fate: Fate, names: tuple[str | None, str | None], step: Step, details: list[Detail]
) -> Change:
    block = step.block
    return Change(
        fate,
        "operation" if block is None else "module",
        *names,
        step.op,
        tuple(details),
        1 if block is None else block.operations,
        0 if block is None else block.numbers,
    )


def _joined(ran: list[Change], uncalled: list[Change]) -> Iterator[Change]:
    """Return changes with one for a module that is no longer called, or is called now."""
    names = {change.before: change for change in uncalled if change.fate == "removed"}
    names.update({change.after: change for change in uncalled if change.fate == "added"})
    joined: set[int] = set()
    for change in ran:
        other = names.get(change.name) if change.kind == "module" else None
        if other is None or {change.fate, other.fate} != {"added", "removed"}:
            yield change
            continue
        joined.add(id(other))
        gone = change.fate == "removed"
        details = [Detail("call", *(("called", "never") if gone else ("never", "called")))]
        labels = (change.label, other.label) if gone else (other.label, change.label)
        if labels[0] != labels[1]:
            details.insert(0, Detail("class", *labels))
        yield replace(
            change,
            fate="changed",
            before=change.name,
            after=change.name,
            label=labels[1],
            details=tuple(details),
        )
    for change in uncalled:
        if id(change) not in joined:
            yield change


def _told(step: Step, fate: Fate) -> Iterator[Detail]:
    """Return what a step that came or went was set to."""
    if step.block is None:
        facts = [(name or f"argument {at}", text) for at, (name, text) in enumerate(step.arguments)]
        facts = [(name, text) for name, text in facts if "%" not in text]
    else:
        facts = [(name, text) for name, text in step.block.facts if not name.startswith("training")]
    for name, text in facts:
        yield Detail(name, "", text) if fate == "added" else Detail(name, text, "")


def _input_label(port: Port) -> str:
    return "constant" if port.kind == "captured" else "input"
