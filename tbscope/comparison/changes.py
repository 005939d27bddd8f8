"""Changes: what became of each part of a model, by the names that its user knows.

The pairs of blocks are walked from the whole to its parts; what is equal inside is not entered.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias

from tbscope.comparison.block_diff import Detail, Pair, held_details, renamed
from tbscope.comparison.matching import Match, alone, is_telling, matched_inputs, only_call
from tbscope.comparison.structure import Block, Outline, Step

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
        # The changes that are a step on one side alone, by that step.
        self._lone: list[tuple[Change, Step]] = []
        self._main = self._pair(left.main, right.main)
        self.inputs = matched_inputs(left.main, right.main)
        walked = list(self._walked())
        found = [*self._inputs(), *self._moved(walked), *self._outputs()]
        self.changes: list[Change] = [*_joined(found, list(self._uncalled())), *self._ties()]

    def _pair(self, left: Block, right: Block, *, bare: bool = False) -> Pair:
        """Return how two blocks differ; each pair is compared once."""
        key = (left.digest, right.digest, bare)
        if key not in self._pairs:
            self._pairs[key] = Pair(left, right, bare=bare)
        return self._pairs[key]

    # -- what ran ---------------------------------------------------------------------

    def start(self) -> Visit | None:
        """Return the visit of what stands outside of all calls; None where all is the same."""
        if self.left.main.digest == self.right.main.digest:
            return None
        return Visit(self._main, (None, None))

    def below(self, visit: Visit, match: Match) -> Visit | None:
        """Return the visit of two calls that stand for each other; None where they are the same."""
        one, other = visit.pair.steps_of(match)
        left, right = one.block, other.block
        if left is None or right is None:
            return None
        before, after = visit.name(one, 0), visit.name(other, 1)
        if match.wrapped == "right":
            pair = self._pair(alone(one), right, bare=True)
            return Visit(pair, (before, after), (before, None))
        if match.wrapped == "left":
            pair = self._pair(left, alone(other), bare=True)
            return Visit(pair, (before, after), (None, after))
        if left.digest == right.digest or match in visit.pair.replaced:
            return None
        return Visit(self._pair(left, right), (before, after))

    def _walked(self) -> Iterator[Change]:
        pending: list[Visit | Change | None] = [self.start()]
        while pending:
            visit = pending.pop()
            if isinstance(visit, Change):
                yield visit
            elif visit is not None:
                self.follows += visit.pair.follows
                pending += reversed(list(self._parts(visit)))

    def _parts(self, visit: Visit) -> Iterator[Visit | Change | None]:
        """Yield what became of the steps of a pair: what went, behind what stood before it."""
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
        if step.block is None:
            told = [(name or f"argument {n}", it) for n, (name, it) in enumerate(step.arguments)]
            told = [(name, text) for name, text in told if "%" not in text]
        else:
            told = [one for one in step.block.settings if not one[0].startswith("training")]
        details = [_told(fate, name, text) for name, text in told]
        change = _change(fate, visit.name(step, fate == "added"), step, details)
        self._lone.append((change, step))
        return change

    def _matched(self, visit: Visit, match: Match) -> Iterator[Visit | Change | None]:
        one, other = visit.pair.steps_of(match)
        before, after = visit.name(one, 0), visit.name(other, 1)
        self._names[before] = after
        details = list(visit.pair.steps.get(match, ()))
        below = self.below(visit, match)
        if below is not None:
            details += below.pair.details
        if details:
            yield replace(_change("changed", after, other, details), before=before)
        yield below

    def _moved(self, walked: list[Change]) -> Iterator[Change]:
        """Yield changes with one in place of two, where a module went to another place."""
        lone: dict[tuple[str, str], tuple[list[Change], list[Change]]] = {}
        for change, step in self._lone:
            if step.block is not None and is_telling(step.block):
                key = (step.block.structure, step.label.rpartition(".")[2])
                lone.setdefault(key, ([], []))[change.before is None].append(change)
        instead: dict[int, Change | None] = {}
        for went, came in lone.values():
            if len(went) == len(came) == 1:
                before, after = went[0].name, came[0].name
                told = (Detail("moved", before, after),)
                instead[id(went[0])] = None
                instead[id(came[0])] = replace(came[0], fate="changed", before=before, details=told)
        for change in walked:
            stands = instead.get(id(change), change)
            if stands is not None:
                yield stands

    # -- what goes in and comes out ---------------------------------------------------

    def _inputs(self) -> Iterator[Change]:
        left = {port.name: port for port in self.left.main.inputs}
        right = {port.name: port for port in self.right.main.inputs}
        for name, one in left.items():
            if name not in self.inputs:
                if one.kind == "input":
                    yield _end("input", "removed", name, one.type)
                continue
            other = right[self.inputs[name]]
            details = []
            if one.kind == "input" and name != other.name:
                details.append(Detail("name", name, other.name))
            if one.type != other.type:
                details.append(Detail("type", one.type, other.type))
            if details:
                label = "constant" if other.kind == "captured" else "input"
                yield Change("changed", "input", name, other.name, label, tuple(details))
        taken = set(self.inputs.values())
        for name, other in right.items():
            if other.kind == "input" and name not in taken:
                yield _end("input", "added", name, other.type)

    def _outputs(self) -> Iterator[Change]:
        left, right = (
            {name: at for at, name in enumerate(outline.outputs)}
            for outline in (self.left, self.right)
        )
        for name, at in left.items():
            if name not in right:
                yield _end("output", "removed", name, self.left.types[at])
            elif details := tuple(self._main.output_details(at, right[name])):
                yield Change("changed", "output", name, name, "output", details)
        for name, at in right.items():
            if name not in left:
                yield _end("output", "added", name, self.right.types[at])
        orders = [name for name in left if name in right], [name for name in right if name in left]
        if orders[0] != orders[1]:
            told = (Detail("order", *map(", ".join, orders)),)
            yield Change("changed", "output", "outputs", "outputs", "output", told)

    # -- what did not run -------------------------------------------------------------

    def _uncalled(self) -> Iterator[Change]:
        left = {self.name_now(one.name): one for one in self.left.uncalled}
        right = {one.name: one for one in self.right.uncalled}
        for name in dict.fromkeys([*left, *right]):
            before, after = left.get(name), right.get(name)
            one = after or before
            assert one is not None, "it stands on one side"
            fate: Fate = "added" if before is None else "removed"
            details = [Detail("never called", "", "")]
            numbers = sum(held.numbers for held in one.state if held.kind == "parameter")
            if before is not None and after is not None:
                fate, numbers = "changed", 0
                details = list(held_details(before.state, after.state))
                if before.class_name != after.class_name and (before.state or after.state):
                    details.insert(0, Detail("class", before.class_name, after.class_name))
                if not details:
                    continue
            yield Change(
                fate,
                "module",
                before and before.name,
                after and after.name,
                one.class_name.rpartition(".")[2],
                tuple(details),
                parameters=numbers,
            )

    def _ties(self) -> Iterator[Change]:
        left = {frozenset(map(self.name_now, names)): names for names in self.left.ties}
        right = {frozenset(names): names for names in self.right.ties}
        for tie, names in (left | right).items():
            if tie not in right:
                yield Change("removed", "parameter", " = ".join(names), None, "tie")
            elif tie not in left:
                yield Change("added", "parameter", None, " = ".join(names), "tie")

    def name_now(self, name: str) -> str:
        """Return what a module or a parameter is called after, of whose name the start changed."""
        return renamed(name, self._names)


def _change(fate: Fate, name: str, step: Step, details: Iterable[Detail]) -> Change:
    block = step.block
    return Change(
        fate,
        "operation" if block is None else "module",
        None if fate == "added" else name,
        None if fate == "removed" else name,
        step.op,
        tuple(details),
        1 if block is None else block.operations,
        0 if block is None else block.numbers,
    )


def _end(kind: Kind, fate: Fate, name: str, of: str) -> Change:
    """Return the change that an input or an output of a type is which stands on one side alone."""
    before, after = (None, name) if fate == "added" else (name, None)
    return Change(fate, kind, before, after, kind, (_told(fate, "type", of),))


def _told(fate: Fate, what: str, text: str) -> Detail:
    return Detail(what, "", text) if fate == "added" else Detail(what, text, "")


def _joined(ran: list[Change], uncalled: list[Change]) -> Iterator[Change]:
    """Yield changes with one for a module that is no longer called, or is called now."""
    rest = {(one.name, one.fate): one for one in uncalled}
    for change in ran:
        gone = change.fate == "removed"
        key: tuple[str, Fate] = (change.name, "added" if gone else "removed")
        alone = change.kind == "module" and change.fate != "changed"
        other = rest.pop(key, None) if alone else None
        if other is None:
            yield change
            continue
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
    yield from rest.values()
