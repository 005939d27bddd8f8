"""Differences between two blocks: their own settings, and their steps one by one.

Each pair of blocks is compared once, however often it is called. Consequences of an earlier
difference (all readers of a wider tensor have wider results) are counted and not listed.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from tbscope.comparison.matching import (
    Match,
    match_steps,
    matched_inputs,
    plain_arguments,
)
from tbscope.comparison.structure import Block, BlockStep, Held, Ref

__all__ = ["BlockDiff", "Detail", "both_sides", "named_arguments", "renamed", "state_details"]

_T = TypeVar("_T")
_Sides: TypeAlias = tuple[str, _T | None, _T | None]

_NUMBER = re.compile(r"(?<![\w.])[0-9]+(?:\.[0-9]+)?(?:e-[0-9]+)?")


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
        what, before, after = self
        if what == "wrapped in":
            return f"{'' if after else 'no longer '}wrapped in {after or before}"
        if what == "results" and before.count("%") != after.count("%"):
            counts = before.count("%"), after.count("%")
            return "a second result" if counts == (1, 2) else "results {} -> {}".format(*counts)
        if before and after:
            return f"{what} {before} -> {after}"
        return (
            f"{what} {after or before} {'added' if after else 'removed'}" if any(self[1:]) else what
        )


class BlockDiff:
    """Comparison of two blocks.

    Args:
        left: The block before.
        right: The block after.

    Attributes:
        blocks: The block before, and the block after.
        matches: Pairs of steps that correspond to each other.
        details: Differences between the blocks themselves.
        steps: Differences between matched steps within their blocks, without those inside of the
            called blocks.
        replaced: Matches of leaf modules of different classes that have no operation in common.
        follows: Number of operations whose results change type only because their inputs do.
    """

    def __init__(self, left: Block, right: Block) -> None:
        self.blocks = left, right
        # A lone call that the other block wraps has no settings of its own.
        self._bare = not left.label or not right.label
        self.matches = match_steps(left, right)
        self.replaced: set[Match] = set()
        self.follows = 0
        pairs = [*map(self.steps_of, self.matches)]
        # Labels after by labels before.
        self._labels = {before.label: after.label for before, after in pairs}
        self._matched = {*self._labels}, {*self._labels.values()}
        # Labels of steps inside of these calls differ, which the calls' own pair reports.
        self._unlike = {
            step.label
            for pair in pairs
            if len({step.block and step.block.structure for step in pair}) > 1
            for step in pair
        }
        self._inputs = matched_inputs(left, right, bare=self._bare)
        # References are followed through steps that are moved or on one side only, to common steps.
        kept = [self.steps_of(match) for match in self.matches if not match.moved]
        self._passed = [
            {step.label: step for step in block.steps if step.label not in labels}
            for block, labels in zip(
                self.blocks, ({steps[side].label for steps in kept} for side in (0, 1)), strict=True
            )
        ]
        self._measure(pairs)
        self.details = [] if self._bare else list(self._own_details())
        # A leaf module passes its settings on to its operations, so one change explains the other.
        self._set_otherwise = bool(self.details) and _are_leaves(left, right)
        self.steps: dict[Match, list[Detail]] = {}
        for match in self.matches:
            if details := list(self._step(match, *self.steps_of(match))):
                self.steps[match] = details

    def steps_of(self, match: Match) -> tuple[BlockStep, BlockStep]:
        """Return the left and the right step of a match."""
        return self.blocks[0].steps[match.left], self.blocks[1].steps[match.right]

    def _measure(self, pairs: Sequence[tuple[BlockStep, BlockStep]]) -> None:
        """Find the sizes of inputs that differ, and the numbers of heads of an attention.

        The heads are not a setting that modules print: an attention shows them by its shapes alone.
        """
        types = [{port.name: port.type for port in block.inputs} for block in self.blocks]
        self._sizes = _resized(
            (types[0][name], types[1][after]) for name, after in self._inputs.items()
        )
        self._heads = {
            heads
            for before, after in pairs
            if before.op == after.op
            and all(heads := (self._heads_of(before), self._heads_of(after)))
            and heads[0] != heads[1]
        }

    def _heads_of(self, step: BlockStep) -> str:
        """Return the number of heads if a step is, or resembles, an attention."""
        alike = step.op == "softmax" and ("dim", "-1") in step.arguments and not self._sizes
        if alike or step.op == "scaled_dot_product_attention":
            sizes = _NUMBER.findall(step.takes[0])
            return sizes[-3] if len(sizes) > 3 else ""
        return ""

    # -- the blocks themselves --------------------------------------------------------

    def _own_details(self) -> Iterator[Detail]:
        left, right = self.blocks
        both = left.label != right.label
        settings = list(_differing(left.settings, right.settings, both=both))
        yield from settings
        for detail in _differing(left.arguments, right.arguments, "argument ", both=both):
            if not _is_resized(detail, self._sizes):
                yield detail
        if not left.again and not right.again:
            set_otherwise = both or any(setting.what != "training" for setting in settings)
            yield from state_details(left.state, right.state, explained=set_otherwise)
        if not left.class_name and not right.class_name:
            # Inputs and outputs of a graph are compared by name, in `Comparison`.
            return
        yield from (Detail("num_heads", *pair) for pair in self._heads)
        for port in left.inputs:
            if port.kind == "argument" and (name := self._inputs.get(port.name, "")) != port.name:
                yield Detail("argument", port.name, name)
        taken = self._inputs.values()
        for port in right.inputs:
            if port.kind == "argument" and port.name not in taken:
                yield Detail("argument", "", port.name)
        if left.results != right.results:
            yield Detail("results", left.results or "none", right.results or "none")
        elif not all(map(self.same, left.result_refs, right.result_refs)):
            yield _reads("results", left.result_refs, right.result_refs)

    # -- steps ------------------------------------------------------------------------

    def _step(self, match: Match, left: BlockStep, right: BlockStep) -> Iterator[Detail]:
        yield from self._placed(match, left, right)
        for detail in _differing(left.settings, right.settings):
            # These settings of an operation follow from the settings of its leaf module.
            ran = left.block is None and detail.what in ("writes", "random")
            if not (ran and self._set_otherwise):
                yield detail
        sizes = self._sizes | _resized(zip(left.takes, right.takes, strict=False))
        resized, differs = left.takes != right.takes or bool(self._heads), False
        if left.block is None:
            # Different operations have different arguments, so only those on both sides are
            # compared.
            both = left.op != right.op
            for detail in _differing(named_arguments(left), named_arguments(right), both=both):
                # The scale of an attention follows from the size of its heads.
                scaled = bool(self._heads) or (resized and detail.what == "scale")
                if _is_resized(detail, sizes, any_number=scaled):
                    resized = True
                    continue
                differs = True
                if not self._follows(detail):
                    yield detail
        if reads := self._reads(match, left, right):
            differs = True
            yield reads
        if left.block is not None or left.gives == right.gives:
            return
        count = len(left.gives), len(right.gives)
        if not (resized or self._set_otherwise or (differs and count[0] != count[1])):
            yield Detail("gives", ", ".join(left.gives), ", ".join(right.gives))
        elif not differs:
            self.follows += 1

    def _placed(self, match: Match, left: BlockStep, right: BlockStep) -> Iterator[Detail]:
        """Yield the differences in name, container and class of two steps, and a move."""
        if not self._bare:
            if left.block is not None and left.label != right.label:
                # The label of the root model is its class, which is compared below.
                if self.blocks[0].class_name or left.place or right.place:
                    yield Detail("name", left.label, right.label)
            elif left.place != right.place:
                yield Detail("place", left.place or "none", right.place or "none")
        blocks = [block for block in (left.block, right.block) if block is not None]
        before, after = left.op, right.op
        if blocks and before == after:
            before, after = (block.class_name for block in blocks)
        if match.lone is not None:
            yield Detail("wrapped in", *((before, "") if match.lone else ("", after)))
        elif blocks and before != after and _is_replaced(*blocks):
            self.replaced.add(match)
            yield Detail("class", before, after)
        elif left.op != right.op:
            yield Detail("class" if blocks else "op", before, after)
        if match.moved:
            places = map(_behind, self.blocks, (match.left, match.right))
            yield Detail("moved", *places)

    def _follows(self, detail: Detail) -> bool:
        """Whether an argument differs only because its leaf module passes on a changed setting."""
        if not self._set_otherwise:
            return False
        if any(detail.what == own.what or detail[1:] == own[1:] for own in self.details):
            return True
        # A parameter that the module has lost (or got) is passed on as None (or as a tensor).
        names = [{tensor.name for tensor in block.state} for block in self.blocks]
        return names[0] != names[1] and {detail.before, detail.after} == {"%", "None"}

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
        if match.moved or all(self.same(*pair) for pair in pairs):
            return None
        return _reads("reads", left.reads, right.reads)

    def same(self, left: Ref, right: Ref) -> bool:
        """Whether two refs name matched sources, or differ only because of other listed changes."""
        before, after = self._sources(left, 0), self._sources(right, 1)
        if before and after:
            return not before.isdisjoint(after)
        # Unmatched steps without inputs (random tensors) are created where they are read.
        return left.role == right.role == "step"

    def _sources(self, ref: Ref, side: int) -> set[Ref]:
        """Return the matched sources of a ref, found by passing through moved and lone steps."""
        sources, seen, pending = set(), {ref}, [ref]
        while pending:
            source = pending.pop()
            step = self._passed[side].get(source.label) if source.role == "step" else None
            if step is not None:
                new = {*step.reads} - seen
                seen |= new
                pending += new
            if step is None or source.label in self._matched[side]:
                if source.inner and source.label in self._unlike:
                    source = source._replace(inner=(), output=None)
                sources.add(source if side else self._now(source))
        return sources

    def _now(self, ref: Ref) -> Ref:
        """Return a ref of the left block with the label of the right block."""
        role, label = ref.role, ref.label
        if role == "in":
            label = self._inputs.get(label, label)
        else:
            label = self._labels[label] if role == "step" else renamed(label, self._labels)
        return ref._replace(label=label)


def renamed(name: str, names: Mapping[str, str]) -> str:
    """Return a name with its longest renamed prefix replaced."""
    parts = name.split(".")
    for at in range(len(parts), -1, -1):
        now = names.get(".".join(parts[:at]))
        if now is not None:
            return ".".join(filter(None, (now, *parts[at:])))
    return name


def both_sides(left: Mapping[str, _T], right: Mapping[str, _T]) -> Iterator[_Sides[_T]]:
    """Yield each name of two mappings with its value in both, or None."""
    return ((name, left.get(name), right.get(name)) for name in dict.fromkeys([*left, *right]))


def _are_leaves(*blocks: Block) -> bool:
    return not any(step.block for block in blocks for step in block.steps)


def _is_replaced(left: Block, right: Block) -> bool:
    """Whether a leaf module does the work of another by other operations."""
    ran = [{step.op for step in block.steps} for block in (left, right)]
    other = ran[0] != ran[1] if left.label == right.label else ran[0].isdisjoint(ran[1])
    return other and left.digest != right.digest and _are_leaves(left, right)


def _resized(pairs: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the sizes, before and after, that differ between types."""
    return {
        sizes
        for before, after in pairs
        if before != after
        for sizes in zip(_NUMBER.findall(before), _NUMBER.findall(after), strict=False)
        if sizes[0] != sizes[1]
    }


def _is_resized(
    detail: Detail, sizes: Collection[tuple[str, str]], *, any_number: bool = False
) -> bool:
    """Whether two texts differ only in whole numbers, in proportion to sizes, or in any number."""
    what, before, after = detail
    return (
        "dim" not in what
        and _NUMBER.sub("0", before) == _NUMBER.sub("0", after)
        and all(
            any_number or old == new or any(_in_proportion(old, new, *size) for size in sizes)
            for old, new in zip(_NUMBER.findall(before), _NUMBER.findall(after), strict=True)
        )
    )


def _in_proportion(*numbers: str) -> bool:
    if not all(map(str.isdecimal, numbers)):
        return False
    old, new, size, new_size = map(int, numbers)
    return old * new_size == new * size


def _behind(block: Block, index: int) -> str:
    return f"behind {block.steps[index - 1].label}" if index else "first"


def _differing(
    left: Iterable[tuple[str, str]],
    right: Iterable[tuple[str, str]],
    what: str = "",
    *,
    both: bool = False,
) -> Iterator[Detail]:
    """Yield the settings that differ; with `both`, only those that are set on both sides."""
    for name, before, after in both_sides(dict(left), dict(right)):
        if before != after and not (both and None in (before, after)):
            yield Detail(f"{what}{name}", before or "", after or "")


def state_details(
    left: Iterable[Held], right: Iterable[Held], *, explained: bool = False
) -> Iterator[Detail]:
    """Yield the differences between the parameters and buffers of two modules.

    If `trainable` changes in the same way for all parameters, the change is reported once.

    Args:
        left: The tensors before.
        right: The tensors after.
        explained: Whether tensors and shapes follow from the settings of the module.
    """
    tensors = [{tensor.name: tensor for tensor in state} for state in (left, right)]
    trainable: dict[str, tuple[str, str]] = {}
    dtypes: dict[tuple[str, str], None] = {}
    for name, before, after in both_sides(*tensors):
        if before is None or after is None or before.kind != after.kind:
            texts = (f"{tensor.kind} {tensor.type}" if tensor else "" for tensor in (before, after))
            if not explained:
                yield Detail(name, *texts)
            continue
        (old, _, shape), (new, _, new_shape) = (
            tensor.type.partition("(") for tensor in (before, after)
        )
        if old != new and (explained or shape == new_shape):
            dtypes[old, new] = None
        elif before.type != after.type and not explained:
            yield Detail(name, before.type, after.type)
        if before.trainable != after.trainable:
            trainable[name] = str(before.trainable), str(after.trainable)
    yield from (Detail("dtype", *pair) for pair in dtypes)
    count = sum(tensor.kind == "parameter" for tensor in tensors[1].values())
    if len(trainable) == count and len(flags := {*trainable.values()}) == 1:
        yield Detail("trainable", *flags.pop())
    else:
        yield from (Detail(f"{name} trainable", *pair) for name, pair in trainable.items())


def named_arguments(step: BlockStep) -> Iterator[tuple[str, str]]:
    """Yield the arguments of an operation as text, each with a name."""
    for at, (name, text) in enumerate(plain_arguments(step)):
        yield name or f"argument {at}", text


def _reads(what: str, left: Iterable[Ref], right: Iterable[Ref]) -> Detail:
    return Detail(what, *(", ".join(map(str, refs)) or "nothing" for refs in (left, right)))
