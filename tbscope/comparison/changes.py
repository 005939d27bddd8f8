"""Changes between two models: each part by the name that its user sees.

Pairs of blocks are walked from the root to the leaves. Pairs of equal blocks are not entered.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from tbscope.comparison.block_diff import BlockDiff, Detail, both_sides, renamed, state_details
from tbscope.comparison.matching import Match, alone, is_telling, matched_inputs, only_call
from tbscope.comparison.structure import Block, BlockStep, Outline

__all__ = ["Change", "Comparison", "Fate", "Kind", "Visit"]

Fate: TypeAlias = Literal["added", "removed", "changed"]
"""Whether a part was added, removed or changed."""

Kind: TypeAlias = Literal["module", "operation", "input", "output", "parameter"]
"""Kind of a part: a call of a module (or a module without a call), an operation, an input or output
tensor of the graph, or a tie between parameters."""

_T = TypeVar("_T")

_NEVER = Detail("never called", "", "")
# Details of a module by which the modules inside of it are others.
_OWNING = frozenset({"class", "wrapped in", "moved"})
_BATCH_SIZE = re.compile(r"\([0-9]+")


@dataclass(frozen=True, slots=True)
class Change:
    """Change of one part of a model.

    Attributes:
        kind: Kind of the part.
        before: Name of the part before, or None if it was added.
        after: Name of the part after, or None if it was removed.
        label: Class of the module, or name of the operation.
        details: Differences of a changed part; settings of an added or removed part.
        operations: Number of operations inside of the part.
        parameters: Number of elements of all parameters inside of the part.
    """

    kind: Kind
    before: str | None
    after: str | None
    label: str
    details: tuple[Detail, ...] = ()
    operations: int = 0
    parameters: int = 0

    @property
    def fate(self) -> Fate:
        """The change: "added", "removed" or "changed"."""
        if self.before is None:
            return "added"
        return "removed" if self.after is None else "changed"

    @property
    def name(self) -> str:
        """Name of the part: the new one, or the old one if the part was removed."""
        return (self.before if self.after is None else self.after) or ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data (docs/diff.md)."""
        details = [detail._asdict() for detail in self.details]
        return {"fate": self.fate, **asdict(self), "details": details}


class Visit(NamedTuple):
    """Pair of blocks, and its place in the two models.

    Attributes:
        pair: The pair.
        names: Names of the two blocks; None for the root block, which contains all steps outside of
            calls.
        alone: Name of the call in a block that consists of one wrapped call (see
            `matching.alone`), or None for any other block.
    """

    pair: BlockDiff
    names: tuple[str | None, str | None]
    alone: tuple[str | None, str | None] = (None, None)

    def name(self, step: BlockStep, side: int) -> str:
        """Return the full name of a step, below the root model; empty for the root model itself."""
        alone, parent_name = self.alone[side], self.names[side]
        if alone is not None:
            return alone
        if parent_name is None:
            block = (self.pair.left, self.pair.right)[side]
            at = only_call(block)
            return "" if at >= 0 and block.steps[at] is step else step.label
        return f"{parent_name}.{step.label}" if parent_name else step.label


class Comparison:
    """Comparison of two outlines.

    Args:
        left: The outline before.
        right: The outline after.
        any_batch_size: Whether the first size of an input may differ.

    Attributes:
        left: The outline before.
        right: The outline after.
        inputs: Names of the inputs after, by the names before.
        changes: Added, removed and changed parts, in the order in which they ran.
        follows: Number of operations whose results change type only because their inputs do.
    """

    def __init__(self, left: Outline, right: Outline, *, any_batch_size: bool = False) -> None:
        self.left = left
        self.right = right
        self.follows = 0
        self._any_batch_size = any_batch_size
        self._pairs: dict[tuple[str, str, bool], BlockDiff] = {}
        self._names: dict[str, str] = {}
        # Steps on one side only, by the ids of their changes.
        self._lone: dict[int, BlockStep] = {}
        self._main = self._pair(left.main, right.main)
        self.inputs = matched_inputs(left.main, right.main)
        walked = list(self._walked())
        outputs = list(self._outputs())
        if any(change.fate != "changed" for change in outputs):
            # The form of the results differs with their number: `out` is `out.0` beside `out.1`.
            walked = [*filter(None, map(_without_results, walked))]
            outputs = [change for change in outputs if not _is_form(change)]
        parts = [*self._inputs(), *walked, *outputs, *self._uncalled()]
        self.changes: list[Change] = [*_grown(self._merged(parts)), *self._ties()]

    def _pair(self, left: Block, right: Block, *, bare: bool = False) -> BlockDiff:
        """Return the comparison of two blocks, computed once for equal arguments."""
        key = (left.digest, right.digest, bare)
        if key not in self._pairs:
            self._pairs[key] = BlockDiff(left, right, bare=bare)
        return self._pairs[key]

    # -- calls and operations ------------------------------------------------------------

    def start(self) -> Visit | None:
        """Return the visit of the two root blocks, or None if they are equal."""
        if self.left.main.digest == self.right.main.digest:
            return None
        return Visit(self._main, (None, None))

    def below(self, visit: Visit, match: Match) -> Visit | None:
        """Return the visit of two matched calls, or None if their blocks are not compared.

        Equal blocks, and leaf modules that replace each other (`BlockDiff.replaced`), are not
        compared. Operations have no blocks.
        """
        left_step, right_step = visit.pair.steps_of(match)
        left, right = left_step.block, right_step.block
        if left is None or right is None or match in visit.pair.replaced:
            return None
        names = visit.name(left_step, 0), visit.name(right_step, 1)
        if match.wrapped == "right":
            return Visit(self._pair(alone(left_step), right, bare=True), names, (names[0], None))
        if match.wrapped == "left":
            return Visit(self._pair(left, alone(right_step), bare=True), names, (None, names[1]))
        return None if left.digest == right.digest else Visit(self._pair(left, right), names)

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
        """Yield changes and visits of a pair's steps, in the order of the right block.

        A removed step comes after the step that precedes it in the left block.
        """
        pair = visit.pair
        positions: list[tuple[int, int, Match | None]] = [
            *((match.right, -1, match) for match in pair.matches),
            *((at, -1, None) for at in pair.added),
        ]
        stays = {match.left: match.right for match in pair.matches if not match.moved}
        removed, last = set(pair.removed), -1
        for at in range(len(pair.left.steps)):
            last = stays.get(at, last)
            if at in removed:
                positions.append((last, at, None))
        for right, left, match in sorted(positions, key=lambda position: position[:2]):
            if match is not None:
                yield from self._matched(visit, match)
            elif left < 0:
                yield self._only(visit, pair.right.steps[right], 1)
            else:
                yield self._only(visit, pair.left.steps[left], 0)

    def _only(self, visit: Visit, step: BlockStep, side: int) -> Change:
        """Return the change for a step that is on one side only."""
        if step.block is None:
            texts = [(name or f"argument {n}", it) for n, (name, it) in enumerate(step.arguments)]
            # Arguments that contain tensors (`%0`) are no settings.
            texts = [(name, text) for name, text in texts if "%" not in text]
        else:
            texts = [setting for setting in step.block.settings if setting[0] != "training"]
        details = [Detail(name, *_sided(text, side, "")) for name, text in texts]
        change = _change(_sided(visit.name(step, side), side, None), step, details)
        self._lone[id(change)] = step
        return change

    def _matched(self, visit: Visit, match: Match) -> Iterator[Visit | Change | None]:
        left_step, right_step = visit.pair.steps_of(match)
        before, after = visit.name(left_step, 0), visit.name(right_step, 1)
        self._names[before] = after
        below = self.below(visit, match)
        details = [*visit.pair.steps.get(match, ()), *(below.pair.details if below else ())]
        if details:
            yield _change((before, after), right_step, details)
        yield below

    def _merged(self, changes: list[Change]) -> list[Change]:
        """Return the changes, with one change in place of two for a module that is on both sides.

        A module moved if it is the only removed, and the only added, module with its structure and
        attribute name. A module lost (or got) its calls if it is never called on one side.
        """
        groups: dict[tuple[str, ...], tuple[list[Change], list[Change]]] = {}
        for change in changes:
            if change.kind == "module" and change.fate != "changed":
                step = self._lone.get(id(change))
                keys: list[tuple[str, ...]] = [(change.name,)]
                if step is not None and step.block is not None and is_telling(step.block):
                    keys.append((step.block.structure, step.label.rpartition(".")[2]))
                for key in keys:
                    groups.setdefault(key, ([], []))[change.before is None].append(change)
        merged: dict[int, Change | None] = {}
        # A module that moved is not one that lost its calls, so the longer keys come first.
        for key, (removed, added) in sorted(groups.items(), key=lambda group: -len(group[0])):
            if (
                len(removed) != 1
                or len(added) != 1
                or id(removed[0]) in merged
                or id(added[0]) in merged
            ):
                continue
            pair = removed[0], added[0]
            calls = ["called" if id(change) in self._lone else "never" for change in pair]
            if len(key) > 1:
                details = [Detail("moved", pair[0].name, pair[1].name)]
            elif calls[0] != calls[1]:
                details = [Detail("call", *calls)]
                if pair[0].label != pair[1].label:
                    details.insert(0, Detail("class", pair[0].label, pair[1].label))
            else:
                continue
            ran, other = pair if calls[1] == "never" else pair[::-1]
            merged[id(other)] = None
            merged[id(ran)] = replace(
                ran,
                before=pair[0].name,
                after=pair[1].name,
                label=pair[1].label,
                details=tuple(details),
            )
        return [*filter(None, (merged.get(id(change), change) for change in changes))]

    # -- inputs and outputs ----------------------------------------------------------------

    def _inputs(self) -> Iterator[Change]:
        old_names = {after: before for before, after in self.inputs.items()}
        left = {port.name: port for port in self.left.main.inputs}
        right = {old_names.get(port.name, port.name): port for port in self.right.main.inputs}
        for name, before, after in both_sides(left, right):
            port = after or before
            assert port is not None, "a name is on one side"
            if before is None or after is None:
                if port.kind == "input":
                    yield _end("input", name, port.type, side=before is None)
                continue
            details = []
            if before.kind == "input" and name != port.name:
                details.append(Detail("name", name, port.name))
            types = [before.type, port.type]
            if self._any_batch_size:
                types = [_BATCH_SIZE.sub("(?", text, count=1) for text in types]
            if types[0] != types[1]:
                details.append(Detail("type", *types))
            if details:
                label = "constant" if port.kind == "captured" else "input"
                yield Change("input", name, port.name, label, tuple(details))

    def _outputs(self) -> Iterator[Change]:
        left, right = self.left, self.right
        names = self._output_names()
        for at, name in enumerate(left.outputs):
            new = names.get(name)
            if new is None:
                yield _end("output", name, left.types[at], side=False)
                continue
            refs = left.main.result_refs[at], right.main.result_refs[right.outputs.index(new)]
            if name != new:
                yield Change("output", name, new, "output", (Detail("name", name, new),))
            elif not self._main.same(*refs):
                yield Change("output", name, new, "output", (Detail("is", *map(str, refs)),))
        for name, type_text in zip(right.outputs, right.types, strict=True):
            if name not in names.values():
                yield _end("output", name, type_text, side=True)
        orders = [
            [names[name] for name in left.outputs if name in names],
            [name for name in right.outputs if name in names.values()],
        ]
        if orders[0] != orders[1]:
            reorder = (Detail("order", *map(", ".join, orders)),)
            yield Change("output", "outputs", "outputs", "output", reorder)

    def _output_names(self) -> dict[str, str]:
        """Return the new names of outputs: the same name, or one of the same tensor."""
        names = {name: name for name in self.left.outputs if name in self.right.outputs}
        mains = self.left.main, self.right.main
        blocks = [main.steps[at].block if (at := only_call(main)) >= 0 else main for main in mains]
        if len(names) in map(len, (self.left.outputs, self.right.outputs)):
            return names
        left, right = blocks
        assert left is not None, "a call has a block"
        assert right is not None, "a call has a block"
        refs = [
            [
                ref if ref.output is None or block is main else block.result_refs[ref.output]
                for ref in main.result_refs
            ]
            for main, block in zip(mains, (left, right), strict=True)
        ]
        pair = self._pair(left, right)
        for at, name in enumerate(self.left.outputs):
            for to, new in enumerate(self.right.outputs):
                if (
                    name not in names
                    and new not in names.values()
                    and pair.is_same(refs[0][at], refs[1][to])
                ):
                    names[name] = new
        return names

    # -- modules without a call, and ties -------------------------------------------------

    def _uncalled(self) -> Iterator[Change]:
        left = {self.name_now(module.name): module for module in self.left.uncalled}
        right = {module.name: module for module in self.right.uncalled}
        for _, before, after in both_sides(left, right):
            module = after or before
            assert module is not None, "it is on one side"
            details = [_NEVER]
            numbers = sum(tensor.numbers for tensor in module.state if tensor.kind == "parameter")
            if before is not None and after is not None:
                details, numbers = list(state_details(before.state, after.state)), 0
                if before.class_name != after.class_name and (before.state or after.state):
                    details.insert(0, Detail("class", before.class_name, after.class_name))
            if details:
                yield Change(
                    "module",
                    before and before.name,
                    after and after.name,
                    module.class_name.rpartition(".")[2],
                    tuple(details),
                    parameters=numbers,
                )

    def _ties(self) -> Iterator[Change]:
        left = {frozenset(map(self.name_now, names)): names for names in self.left.ties}
        right = {frozenset(names): names for names in self.right.ties}
        for tie, names in (left | right).items():
            if tie not in right or tie not in left:
                sides = _sided(" = ".join(names), tie in right, None)
                yield Change("parameter", *sides, "tie")

    def name_now(self, name: str) -> str:
        """Return the new name of a module or parameter, with renamed enclosing modules."""
        return renamed(name, self._names)


def _change(
    names: tuple[str | None, str | None], step: BlockStep, details: Iterable[Detail]
) -> Change:
    block = step.block
    return Change(
        "operation" if block is None else "module",
        *names,
        step.op,
        tuple(details),
        1 if block is None else block.operations,
        0 if block is None else block.numbers,
    )


def _end(kind: Kind, name: str, type_text: str, *, side: bool) -> Change:
    """Return the change for an input or output that is on one side only."""
    details = (Detail("type", *_sided(type_text, side, "")),)
    return Change(kind, *_sided(name, side, None), kind, details)


def _sided(text: str, side: int, missing: _T) -> tuple[str | _T, str | _T]:
    """Return a text of one side, and the other side's."""
    return (missing, text) if side else (text, missing)


def _without_results(change: Change) -> Change | None:
    """Return a change; of the root model without its results, which the outputs show."""
    if change.name or change.fate != "changed":
        return change
    details = tuple(detail for detail in change.details if detail.what != "results")
    return replace(change, details=details) if details else None


def _is_form(output: Change) -> bool:
    names = output.before or "", output.after or ""
    return "out" in names and all(name.partition(".")[0] == "out" for name in names)


def _grown(changes: list[Change]) -> Iterator[Change]:
    """Yield the changes; modules without a call are parts of an added module that contains them."""
    owners: dict[tuple[int, str], Change] = {}
    for change in changes:
        other = change.fate != "changed" or any(detail.what in _OWNING for detail in change.details)
        if other and change.kind == "module" and _NEVER not in change.details:
            for side, name in enumerate((change.before, change.after)):
                if name:
                    owners[side, name] = change
    parameters: Counter[int] = Counter()
    kept = []
    for change in changes:
        parts = change.name.split(".") if _NEVER in change.details else ()
        outer = [(change.before is None, ".".join(parts[:at])) for at in range(1, len(parts))]
        found = [id(owners[key]) for key in outer if key in owners]
        if found:
            parameters[found[0]] += change.parameters
        else:
            kept.append(change)
    for change in kept:
        yield replace(change, parameters=change.parameters + parameters[id(change)])
