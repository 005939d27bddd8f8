"""Differences between two blocks: their own settings, and their steps one by one.

Each pair of blocks is compared once, however often it is called. Consequences of an earlier
difference (all readers of a wider tensor have wider results) are counted and not listed.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tbscope.comparison.matching import (
    Match,
    match_steps,
    matched_inputs,
    plain_arguments,
)
from tbscope.comparison.structure import Block, BlockStep, Held, Ref

__all__ = ["BlockDiff", "Detail", "renamed", "state_details"]


class Detail(NamedTuple):
    """One difference between two parts.

    Attributes:
        what: Name of the property: `p`, `weight`, `training`, `name`, `reads`, `op`.
        before: Text of the old value; empty if there was none.
        after: Text of the new value; empty if there is none.
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


class BlockDiff:
    """Comparison of two blocks.

    Args:
        left: The block before.
        right: The block after.
        bare: Whether one block is a lone call that the other block wraps; the lone call's block has
            no settings of its own.

    Attributes:
        left: The block before.
        right: The block after.
        matches: Pairs of steps that correspond to each other.
        removed: Indices of the steps that only the left block has.
        added: Indices of the steps that only the right block has.
        details: Differences between the blocks themselves.
        steps: Differences between matched steps within their blocks, without those inside of the
            called blocks.
        replaced: Matches of leaf modules of different classes that have no operation in common.
        follows: Number of operations whose results change type only because their inputs do.
    """

    def __init__(self, left: Block, right: Block, *, bare: bool = False) -> None:
        self.left = left
        self.right = right
        self._bare = bare
        self.matches = match_steps(left, right)
        matched = {match.left for match in self.matches}, {match.right for match in self.matches}
        self.removed = [at for at in range(len(left.steps)) if at not in matched[0]]
        self.added = [at for at in range(len(right.steps)) if at not in matched[1]]
        self.replaced: set[Match] = set()
        self.follows = 0
        step_pairs = [(match, *self.steps_of(match)) for match in self.matches]
        # Labels after by labels before, and whether the called blocks have equal structures.
        self._labels = {
            left_step.label: right_step.label for _, left_step, right_step in step_pairs
        }
        self._alike = {
            left_step.label: not (left_step.block and right_step.block)
            or left_step.block.structure == right_step.block.structure
            for _, left_step, right_step in step_pairs
        }
        self._inputs = matched_inputs(left, right, bare=bare)
        # References are followed through steps that are moved or on one side only, to common steps.
        moved = [match for match in self.matches if match.moved]
        passed = (
            [left.steps[at] for at in (*self.removed, *(match.left for match in moved))],
            [right.steps[at] for at in (*self.added, *(match.right for match in moved))],
        )
        self._passed = [{step.label: step for step in steps} for steps in passed]
        self.details = [] if bare else list(self._own_details())
        # A leaf module passes its settings on to its operations, so one change explains the other.
        self._set_otherwise = bool(self.details) and _are_leaves(left, right)
        self.steps: dict[Match, list[Detail]] = {}
        for match, left_step, right_step in step_pairs:
            if details := list(self._step(match, left_step, right_step)):
                self.steps[match] = details

    def steps_of(self, match: Match) -> tuple[BlockStep, BlockStep]:
        """Return the left and the right step of a match."""
        return self.left.steps[match.left], self.right.steps[match.right]

    # -- the blocks themselves --------------------------------------------------------

    def _own_details(self) -> Iterator[Detail]:
        left, right = self.left, self.right
        both = left.label != right.label
        yield from _differing(left.settings, right.settings, both=both)
        yield from _differing(left.arguments, right.arguments, "argument ", both=both)
        if not left.again and not right.again:
            yield from state_details(left.state, right.state)
        if not left.class_name and not right.class_name:
            # Inputs and outputs of a graph are compared by name, in `Comparison`.
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
        elif not all(map(self._same, left.result_refs, right.result_refs)):
            yield _reads("results", left.result_refs, right.result_refs)

    def output_details(self, left: int, right: int) -> Iterator[Detail]:
        """Yield the differences between two outputs of the graphs, by their indices."""
        left_ref, right_ref = self.left.result_refs[left], self.right.result_refs[right]
        if not self._same(left_ref, right_ref):
            yield Detail("is", str(left_ref), str(right_ref))

    # -- steps ------------------------------------------------------------------------

    def _step(self, match: Match, left: BlockStep, right: BlockStep) -> Iterator[Detail]:
        yield from self._placed(match, left, right)
        for detail in _differing(left.settings, right.settings):
            # These settings of an operation follow from the settings of its leaf module.
            ran = left.block is None and detail.what in ("writes", "random")
            if not (ran and self._set_otherwise):
                yield detail
        differs = False
        if left.block is None:
            # Different operations have different arguments, so only those on both sides are
            # compared.
            both = left.op != right.op
            for detail in _differing(_named_arguments(left), _named_arguments(right), both=both):
                differs = True
                if not self._follows(detail):
                    yield detail
        if reads := self._reads(match, left, right):
            differs = True
            yield reads
        if left.block is not None or left.gives == right.gives:
            return
        if left.takes == right.takes and not (differs and len(left.gives) != len(right.gives)):
            yield Detail("gives", ", ".join(left.gives), ", ".join(right.gives))
        elif not differs:
            self.follows += 1

    def _placed(self, match: Match, left: BlockStep, right: BlockStep) -> Iterator[Detail]:
        """Yield the differences in name, container and class of two steps, and a move."""
        if not self._bare:
            if left.block is not None and left.label != right.label:
                # The label of the root model is its class, which is compared below.
                if self.left.class_name or left.place or right.place:
                    yield Detail("name", left.label, right.label)
            elif left.place != right.place:
                yield Detail("place", left.place or "none", right.place or "none")
        if left.block is None or right.block is None:
            if left.op != right.op:
                yield Detail("op", left.op, right.op)
        elif match.wrapped:
            names = left.op, right.op
            if left.op == right.op:
                names = left.block.class_name, right.block.class_name
            before, after = ("", names[1]) if match.wrapped == "right" else (names[0], "")
            yield Detail("wrapped in", before, after)
        elif left.op != right.op:
            yield Detail("class", left.op, right.op)
            ran = [{step.op for step in block.steps} for block in (left.block, right.block)]
            if _are_leaves(left.block, right.block) and ran[0].isdisjoint(ran[1]):
                self.replaced.add(match)
                yield from state_details(left.block.state, right.block.state)
        if match.moved:
            places = _behind(self.left, match.left), _behind(self.right, match.right)
            yield Detail("moved", *places)

    def _follows(self, detail: Detail) -> bool:
        """Whether an argument differs only because its leaf module passes on a changed setting."""
        if not self._set_otherwise:
            return False
        if any(detail.what == own.what or detail[1:] == own[1:] for own in self.details):
            return True
        # A parameter that the module has lost (or got) is passed on as None (or as a tensor).
        owned = any(not (own.before and own.after) for own in self.details)
        return owned and {detail.before, detail.after} == {"%", "None"}

    # -- inputs of steps -----------------------------------------------------------------

    def _reads(self, match: Match, left: BlockStep, right: BlockStep) -> Detail | None:
        """Return the difference between the inputs of two steps, or None if none is reported."""
        pairs: Iterable[tuple[Ref, Ref]] = []
        if left.block is not None and right.block is not None:
            bare = left.block.class_name != right.block.class_name
            matched = matched_inputs(left.block, right.block, bare=bare)
            reads = dict(zip(right.ports, right.reads, strict=True))
            pairs = [
                (ref, reads[matched[name]])
                for name, ref in zip(left.ports, left.reads, strict=True)
                if matched.get(name) in reads
            ]
        elif len(left.reads) == len(right.reads):
            pairs = zip(left.reads, right.reads, strict=True)
        elif plain_arguments(left) == plain_arguments(right):
            return _reads("reads", left.reads, right.reads)
        # A moved step reads the tensors at its new place.
        if match.moved or all(self._same(*pair) for pair in pairs):
            return None
        return _reads("reads", left.reads, right.reads)

    def _same(self, left: Ref, right: Ref) -> bool:
        """Whether two refs name matched sources, or differ only because of other listed changes."""
        if self._is_same(left, right):
            return True
        if left.label not in self._passed[0] and right.label not in self._passed[1]:
            return False
        before, after = self._sources(left, 0), self._sources(right, 1)
        if not before or not after:
            # Unmatched steps without inputs (random tensors) are created where they are read.
            return left.role == right.role == "step"
        return any(
            self._is_same(left_source, right_source)
            for left_source in before
            for right_source in after
        )

    def _is_same(self, left: Ref, right: Ref) -> bool:
        if left.role != right.role:
            return False
        if left.role == "in":
            return self._inputs.get(left.label, left.label) == right.label
        if left.role == "state":
            return right.label in (left.label, renamed(left.label, self._labels))
        if self._labels.get(left.label) != right.label:
            return False
        # Labels inside of calls with different structures differ; the calls' own pair reports
        # these.
        inside = not self._alike[left.label] and (left.inner or right.inner)
        return bool(inside) or left[1:] == right[1:]

    def _sources(self, ref: Ref, side: int) -> set[Ref]:
        """Return the sources of a ref, found by passing through steps without a counterpart."""
        passed, sources, seen, pending = self._passed[side], set(), {ref}, [ref]
        while pending:
            source = pending.pop()
            step = passed.get(source.label) if source.role == "step" else None
            if step is None:
                sources.add(source)
                continue
            new = [inner for inner in step.reads if inner not in seen]
            seen.update(new)
            pending += new
        return sources


def renamed(name: str, names: Mapping[str, str]) -> str:
    """Return a name with its longest renamed prefix replaced."""
    parts = name.split(".")
    for at in range(len(parts), -1, -1):
        now = names.get(".".join(parts[:at]))
        if now is not None:
            return ".".join([*([now] if now else []), *parts[at:]])
    return name


def _are_leaves(*blocks: Block) -> bool:
    return not any(step.block for block in blocks for step in block.steps)


def _behind(block: Block, index: int) -> str:
    return f"behind {block.steps[index - 1].label}" if index else "first"


def _differing(
    left_items: Iterable[tuple[str, str]],
    right_items: Iterable[tuple[str, str]],
    what: str = "",
    *,
    both: bool = False,
) -> Iterator[Detail]:
    """Yield the settings that differ; with `both`, only those that are set on both sides."""
    left, right = dict(left_items), dict(right_items)
    for name in dict.fromkeys([*left, *right]):
        before, after = left.get(name), right.get(name)
        if before != after and not (both and (before is None or after is None)):
            yield Detail(f"{what}{name}", before or "", after or "")


def state_details(left_tensors: Iterable[Held], right_tensors: Iterable[Held]) -> Iterator[Detail]:
    """Yield the differences between the parameters and buffers of two modules.

    If `trainable` changes in the same way for all parameters, the change is reported once.
    """
    left, right = (
        {tensor.name: tensor for tensor in left_tensors},
        {tensor.name: tensor for tensor in right_tensors},
    )
    trainable: dict[str, tuple[str, str]] = {}
    for name in dict.fromkeys([*left, *right]):
        before, after = left.get(name), right.get(name)
        if before is None or after is None or before.kind != after.kind:
            texts = [f"{tensor.kind} {tensor.type}" if tensor else "" for tensor in (before, after)]
            yield Detail(name, *texts)
            continue
        if before.type != after.type:
            yield Detail(name, before.type, after.type)
        if before.trainable != after.trainable:
            trainable[name] = str(before.trainable), str(after.trainable)
    parameters = [tensor for tensor in right.values() if tensor.kind == "parameter"]
    if len(set(trainable.values())) == 1 and len(trainable) == len(parameters):
        yield Detail("trainable", *next(iter(trainable.values())))
    else:
        for name, flags in trainable.items():
            yield Detail(f"{name} trainable", *flags)


def _named_arguments(step: BlockStep) -> Iterator[tuple[str, str]]:
    for at, (name, text) in enumerate(plain_arguments(step)):
        yield name or f"argument {at}", text


def _reads(what: str, left: Iterable[Ref], right: Iterable[Ref]) -> Detail:
    return Detail(what, *(", ".join(map(str, refs)) or "nothing" for refs in (left, right)))
