"""Changes between two models: each part by the name that its user sees.

Pairs of blocks are walked from the root to the leaves. Pairs of equal blocks are not entered.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from tbscope.comparison.block_diff import (
    BlockDiff,
    Detail,
    both_sides,
    named_arguments,
    renamed,
    state_details,
)
from tbscope.comparison.matching import Match, alone, is_telling, matched_inputs, only_call
from tbscope.comparison.structure import Block, BlockStep, Outline

__all__ = ["Change", "Comparison", "Fate", "Kind", "Visit"]

Fate: TypeAlias = Literal["added", "removed", "changed"]
"""Whether a part was added, removed or changed."""

Kind: TypeAlias = Literal["module", "operation", "input", "output", "parameter"]
"""Kind of a part: a call of a module (or a module without a call), an operation, an input or output
tensor of the graph, or a tie between parameters."""

_T = TypeVar("_T")

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
            calls. For a block of one wrapped call (see `matching.alone`), that of its caller.
    """

    pair: BlockDiff
    names: tuple[str | None, str | None]

    def name(self, step: BlockStep, side: int) -> str:
        """Return the full name of a step, below the root model; empty for the root model itself."""
        parent_name = self.names[side]
        if parent_name is None:
            block = self.pair.blocks[side]
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
        self._pairs: dict[tuple[str, str], BlockDiff] = {}
        self._names: dict[str, str] = {}
        # Changes of modules on one side only, by structure and attribute name.
        self._lone: dict[tuple[str, str], tuple[list[Change], list[Change]]] = {}
        # Modules without a call that belong to no other change.
        self._idle = [{module.name: module for module in side.uncalled} for side in (left, right)]
        self._main = self._ends = self._pair(left.main, right.main)
        self.inputs = matched_inputs(left.main, right.main)
        walked = list(self._walked())
        ran = [*self._inputs(), *self._moved(walked), *self._outputs()]
        self.changes: list[Change] = [*ran, *self._uncalled(), *self._ties()]

    def _pair(self, left: Block, right: Block) -> BlockDiff:
        """Return the comparison of two blocks, computed once for equal arguments."""
        key = (left.digest, right.digest)
        if key not in self._pairs:
            self._pairs[key] = BlockDiff(left, right)
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
        steps = visit.pair.steps_of(match)
        blocks = [step.block for step in steps]
        names: list[str | None] = [visit.name(step, side) for side, step in enumerate(steps)]
        if (side := match.lone) is not None:
            blocks[side] = alone(steps[side])
            names[side] = (visit.names[side] or "") if names[side] else None
        left, right = blocks
        if left is None or right is None or match in visit.pair.replaced:
            return None
        same = left.digest == right.digest
        return None if same else Visit(self._pair(left, right), (names[0], names[1]))

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
        left, right = visit.pair.blocks
        matches = {match.right: match for match in visit.pair.matches}
        stays = {match.left: match for match in visit.pair.matches}
        removed: dict[int, list[BlockStep]] = {}
        last = -1
        for at, step in enumerate(left.steps):
            if at not in stays:
                removed.setdefault(last, []).append(step)
            elif not stays[at].moved:
                last = stays[at].right
        for at in range(-1, len(right.steps)):
            if at in matches:
                yield from self._matched(visit, matches[at])
            elif at >= 0:
                yield self._only(visit, right.steps[at], 1)
            for step in removed.get(at, ()):
                yield self._only(visit, step, 0)

    def _only(self, visit: Visit, step: BlockStep, side: int) -> Change:
        """Return the change for a step that is on one side only."""
        name, block = visit.name(step, side), step.block
        if block is None:
            # Arguments that contain tensors are no settings.
            texts = [argument for argument in named_arguments(step) if "%" not in argument[1]]
        else:
            texts = [setting for setting in block.settings if setting[0] != "training"]
            if twin := self._idle[1 - side].pop(name, None):
                details = [Detail("call", *_sided("called", side, "never"))]
                if step.op != twin.label:
                    details.insert(0, Detail("class", *_sided(step.op, side, twin.label)))
                return _change((name, name), step, details)
        details = [Detail(key, *_sided(text, side, "")) for key, text in texts]
        change = _change(_sided(name, side, None), step, details, self._take_idle(name, side))
        if block is not None and is_telling(block):
            key = (block.structure, step.label.rpartition(".")[2])
            self._lone.setdefault(key, ([], []))[side].append(change)
        return change

    def _take_idle(self, name: str, side: int) -> int:
        """Count modules without a call as parts of an outer module; return their parameters."""
        idle = self._idle[side]
        names = [inner for inner in idle if inner.startswith(f"{name}.")]
        return sum(idle.pop(inner).numbers for inner in names)

    def _matched(self, visit: Visit, match: Match) -> Iterator[Visit | Change | None]:
        steps = visit.pair.steps_of(match)
        names = visit.name(steps[0], 0), visit.name(steps[1], 1)
        self._names[names[0]] = names[1]
        details = [*visit.pair.steps.get(match, ())]
        if any(detail.what in ("class", "wrapped in") for detail in details):
            for side, name in enumerate(names):
                self._take_idle(name, side)
        below = self.below(visit, match)
        if below is not None:
            other_outputs = names == ("", "") and self.left.outputs != self.right.outputs
            if names == ("", ""):
                self._ends = below.pair
            for detail in below.pair.details:
                # The flag is that of the caller, and outputs show the results of the root model.
                inherited = detail.what == "training" and detail in visit.pair.details
                if not (inherited or (detail.what == "results" and other_outputs)):
                    details.append(detail)
        if details:
            yield _change(names, steps[1], details)
        yield below

    def _moved(self, walked: list[Change]) -> list[Change]:
        """Return the changes, with one change in place of two for a module that moved.

        A module moved if it is the only removed, and the only added, module with its structure and
        attribute name.
        """
        moved: dict[int, Change | None] = {}
        for removed, added in self._lone.values():
            if len(removed) == len(added) == 1:
                old, new = removed[0], added[0]
                details = (Detail("moved", old.name, new.name),)
                moved |= {id(old): None, id(new): replace(new, before=old.name, details=details)}
        return [*filter(None, (moved.get(id(change), change) for change in walked))]

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
        outputs = dict(zip(right.outputs, right.main.result_refs, strict=True))
        # An output has the name of before, or a name of the same tensor.
        names = {name: name for name in left.outputs if name in outputs}
        before, after = (block.result_refs for block in self._ends.blocks)
        for name, ref in zip(left.outputs, before, strict=False):
            for now, ref_now in zip(right.outputs, after, strict=False):
                taken = name in names or now in names.values()
                if not taken and self._ends.same(ref, ref_now):
                    names[name] = now
        for name, ref, type_text in zip(
            left.outputs, left.main.result_refs, left.types, strict=True
        ):
            if (new := names.get(name)) is None:
                yield _end("output", name, type_text, side=False)
            elif name == new and not self._main.same(ref, outputs[new]):
                yield _changed_output(name, new, Detail("is", str(ref), str(outputs[new])))
            # Beside further outputs, `out` is `out.0`.
            elif name != new and (len(outputs) == len(left.outputs) or "out" not in (name, new)):
                yield _changed_output(name, new, Detail("name", name, new))
        for name, type_text in zip(outputs, right.types, strict=True):
            if name not in names.values():
                yield _end("output", name, type_text, side=True)
        orders = [
            [names[name] for name in left.outputs if name in names],
            [name for name in outputs if name in names.values()],
        ]
        if orders[0] != orders[1]:
            yield _changed_output("outputs", "outputs", Detail("order", *map(", ".join, orders)))

    # -- modules without a call, and ties -------------------------------------------------

    def _uncalled(self) -> Iterator[Change]:
        left = {self.name_now(name): module for name, module in self._idle[0].items()}
        for _, before, after in both_sides(left, self._idle[1]):
            module = after or before
            assert module is not None, "it is on one side"
            details, numbers = [Detail("never called", "", "")], module.numbers
            if before is not None and after is not None:
                details, numbers = list(state_details(before.state, after.state)), 0
                if before.class_name != after.class_name and (before.state or after.state):
                    details.insert(0, Detail("class", before.class_name, after.class_name))
            if details:
                names = before and before.name, after and after.name
                label = module.label
                yield Change("module", *names, label, tuple(details), parameters=numbers)

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
    names: tuple[str | None, str | None],
    step: BlockStep,
    details: Iterable[Detail],
    further_numbers: int = 0,
) -> Change:
    block = step.block
    kind: Kind = "operation" if block is None else "module"
    operations, numbers = (1, 0) if block is None else (block.operations, block.numbers)
    numbers += further_numbers
    return Change(kind, *names, step.op, tuple(details), operations, numbers)


def _end(kind: Kind, name: str, type_text: str, *, side: bool) -> Change:
    """Return the change for an input or output that is on one side only."""
    details = (Detail("type", *_sided(type_text, side, "")),)
    return Change(kind, *_sided(name, side, None), kind, details)


def _changed_output(name: str, new: str, detail: Detail) -> Change:
    return Change("output", name, new, "output", (detail,))


def _sided(text: str, side: int, missing: _T) -> tuple[str | _T, str | _T]:
    """Return a text of one side, and the other side's."""
    return (missing, text) if side else (text, missing)
