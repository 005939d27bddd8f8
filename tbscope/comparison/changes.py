"""Changes between two models: each part by the name that its user sees.

Pairs of blocks are walked from the root to the leaves. Pairs of equal blocks are not entered.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias

from tbscope.comparison.block_diff import BlockDiff, Detail, renamed, state_details
from tbscope.comparison.matching import Match, alone, is_telling, matched_inputs, only_call
from tbscope.comparison.structure import Block, BlockStep, Outline

__all__ = ["Change", "Comparison", "Fate", "Kind", "Visit"]

Fate: TypeAlias = Literal["added", "removed", "changed"]
"""Whether a part was added, removed or changed."""

Kind: TypeAlias = Literal["module", "operation", "input", "output", "parameter"]
"""Kind of a part: a call of a module (or a module without a call), an operation, an input or output
tensor of the graph, or a tie between parameters."""


@dataclass(frozen=True, slots=True)
class Change:
    """Change of one part of a model.

    Attributes:
        fate: "added", "removed" or "changed".
        kind: Kind of the part.
        before: Name of the part before, or None if it was added.
        after: Name of the part after, or None if it was removed.
        label: Class of the module, or name of the operation.
        details: Differences of a changed part; settings of an added or removed part.
        operations: Number of operations inside of the part.
        parameters: Number of elements of all parameters inside of the part.
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
        """Name of the part: the new one, or the old one if the part was removed."""
        return (self.before if self.after is None else self.after) or ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data (docs/diff.md)."""
        return {**asdict(self), "details": [detail._asdict() for detail in self.details]}


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

    Attributes:
        left: The outline before.
        right: The outline after.
        inputs: Names of the inputs after, by the names before.
        changes: Added, removed and changed parts, in the order in which they ran.
        follows: Number of operations whose results change type only because their inputs do.
    """

    def __init__(self, left: Outline, right: Outline) -> None:
        self.left = left
        self.right = right
        self.follows = 0
        self._pairs: dict[tuple[str, str, bool], BlockDiff] = {}
        self._names: dict[str, str] = {}
        # Changes that stem from a step on one side only, each with this step.
        self._lone: list[tuple[Change, BlockStep]] = []
        self._main = self._pair(left.main, right.main)
        self.inputs = matched_inputs(left.main, right.main)
        walked = list(self._walked())
        ran = [*self._inputs(), *self._moved(walked), *self._outputs()]
        self.changes: list[Change] = [*_joined(ran, list(self._uncalled())), *self._ties()]

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
        if left is None or right is None:
            return None
        before, after = visit.name(left_step, 0), visit.name(right_step, 1)
        if match.wrapped == "right":
            pair = self._pair(alone(left_step), right, bare=True)
            return Visit(pair, (before, after), (before, None))
        if match.wrapped == "left":
            pair = self._pair(left, alone(right_step), bare=True)
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
                yield self._only(visit, pair.right.steps[right], "added")
            else:
                yield self._only(visit, pair.left.steps[left], "removed")

    def _only(self, visit: Visit, step: BlockStep, fate: Fate) -> Change:
        """Return the change for a step that is on one side only."""
        if step.block is None:
            texts = [(name or f"argument {n}", it) for n, (name, it) in enumerate(step.arguments)]
            # Arguments that contain tensors (`%0`) are no settings.
            texts = [(name, text) for name, text in texts if "%" not in text]
        else:
            texts = [
                setting for setting in step.block.settings if not setting[0].startswith("training")
            ]
        details = [_told(fate, name, text) for name, text in texts]
        change = _change(fate, visit.name(step, fate == "added"), step, details)
        self._lone.append((change, step))
        return change

    def _matched(self, visit: Visit, match: Match) -> Iterator[Visit | Change | None]:
        left_step, right_step = visit.pair.steps_of(match)
        before, after = visit.name(left_step, 0), visit.name(right_step, 1)
        self._names[before] = after
        details = list(visit.pair.steps.get(match, ()))
        below = self.below(visit, match)
        if below is not None:
            details += below.pair.details
        if details:
            yield replace(_change("changed", after, right_step, details), before=before)
        yield below

    def _moved(self, walked: list[Change]) -> Iterator[Change]:
        """Yield the changes, with one change in place of two for a module that moved.

        A module moved if it is the only removed, and the only added, module with its structure and
        attribute name.
        """
        lone: dict[tuple[str, str], tuple[list[Change], list[Change]]] = {}
        for change, step in self._lone:
            if step.block is not None and is_telling(step.block):
                key = (step.block.structure, step.label.rpartition(".")[2])
                lone.setdefault(key, ([], []))[change.before is None].append(change)
        replacements: dict[int, Change | None] = {}
        for removed, added in lone.values():
            if len(removed) == len(added) == 1:
                before, after = removed[0].name, added[0].name
                move = (Detail("moved", before, after),)
                replacements[id(removed[0])] = None
                replacements[id(added[0])] = replace(
                    added[0], fate="changed", before=before, details=move
                )
        for change in walked:
            replacement = replacements.get(id(change), change)
            if replacement is not None:
                yield replacement

    # -- inputs and outputs ----------------------------------------------------------------

    def _inputs(self) -> Iterator[Change]:
        left = {port.name: port for port in self.left.main.inputs}
        right = {port.name: port for port in self.right.main.inputs}
        for name, old_port in left.items():
            if name not in self.inputs:
                if old_port.kind == "input":
                    yield _end("input", "removed", name, old_port.type)
                continue
            new_port = right[self.inputs[name]]
            details = []
            if old_port.kind == "input" and name != new_port.name:
                details.append(Detail("name", name, new_port.name))
            if old_port.type != new_port.type:
                details.append(Detail("type", old_port.type, new_port.type))
            if details:
                label = "constant" if new_port.kind == "captured" else "input"
                yield Change("changed", "input", name, new_port.name, label, tuple(details))
        taken = set(self.inputs.values())
        for name, new_port in right.items():
            if new_port.kind == "input" and name not in taken:
                yield _end("input", "added", name, new_port.type)

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
            reorder = (Detail("order", *map(", ".join, orders)),)
            yield Change("changed", "output", "outputs", "outputs", "output", reorder)

    # -- modules without a call, and ties -------------------------------------------------

    def _uncalled(self) -> Iterator[Change]:
        left = {self.name_now(module.name): module for module in self.left.uncalled}
        right = {module.name: module for module in self.right.uncalled}
        for name in dict.fromkeys([*left, *right]):
            before, after = left.get(name), right.get(name)
            module = after or before
            assert module is not None, "it stands on one side"
            fate: Fate = "added" if before is None else "removed"
            details = [Detail("never called", "", "")]
            numbers = sum(tensor.numbers for tensor in module.state if tensor.kind == "parameter")
            if before is not None and after is not None:
                fate, numbers = "changed", 0
                details = list(state_details(before.state, after.state))
                if before.class_name != after.class_name and (before.state or after.state):
                    details.insert(0, Detail("class", before.class_name, after.class_name))
                if not details:
                    continue
            yield Change(
                fate,
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
            if tie not in right:
                yield Change("removed", "parameter", " = ".join(names), None, "tie")
            elif tie not in left:
                yield Change("added", "parameter", None, " = ".join(names), "tie")

    def name_now(self, name: str) -> str:
        """Return the new name of a module or parameter, with renamed enclosing modules."""
        return renamed(name, self._names)


def _change(fate: Fate, name: str, step: BlockStep, details: Iterable[Detail]) -> Change:
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
    """Return the change for an input or output that is on one side only."""
    before, after = (None, name) if fate == "added" else (name, None)
    return Change(fate, kind, before, after, kind, (_told(fate, "type", of),))


def _told(fate: Fate, what: str, text: str) -> Detail:
    return Detail(what, "", text) if fate == "added" else Detail(what, text, "")


def _joined(ran: list[Change], uncalled: list[Change]) -> Iterator[Change]:
    """Yield the changes; a module that lost (or got) its calls becomes one "changed" change."""
    uncalled_by_key = {(module.name, module.fate): module for module in uncalled}
    for change in ran:
        gone = change.fate == "removed"
        key: tuple[str, Fate] = (change.name, "added" if gone else "removed")
        alone = change.kind == "module" and change.fate != "changed"
        never_called = uncalled_by_key.pop(key, None) if alone else None
        if never_called is None:
            yield change
            continue
        details = [Detail("call", *(("called", "never") if gone else ("never", "called")))]
        labels = (change.label, never_called.label) if gone else (never_called.label, change.label)
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
    yield from uncalled_by_key.values()
