"""Matching of two blocks' steps: the pairs of steps that correspond, and their similarity.

Calls are matched by name and by the called block; operations by name and constant arguments.
A call is wrapped if the call with its name on the other side contains it; then the inner call is
its match.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeAlias

from tbscope.comparison.alignment import Pairs, align
from tbscope.comparison.structure import Block, BlockStep, Port, Ref

__all__ = [
    "Match",
    "alone",
    "is_telling",
    "match_steps",
    "matched_inputs",
    "only_call",
    "plain_arguments",
]

_Steps: TypeAlias = Sequence[BlockStep]

_NUMBER = re.compile(r"~[0-9]+\Z")
_PLACE = re.compile(r"%[0-9]+")
# Levels of calls inside of a wrapper that are searched for the wrapped call.
_DEEPEST = 4
# Modules of different names and classes do not match if they have less than this share in common.
_LEAST_ALIKE = 0.5


@dataclass(frozen=True, slots=True)
class Match:
    """Two steps that correspond to each other.

    Attributes:
        left: Index of the step in the left block.
        right: Index of the step in the right block.
        moved: Whether the step changed its place among the other steps.
        wrapped: "right" if the right step contains a call like the left one, "left" for the
            reverse; empty if neither does.
    """

    left: int
    right: int
    moved: bool = False
    wrapped: str = ""


def match_steps(left: Block, right: Block) -> list[Match]:
    """Return the corresponding steps of two blocks, in the order of the left block.

    The matches are symmetric: exchanging the blocks only exchanges `left` and `right`.
    """
    if not left.label or not right.label:
        return _wrapped_steps(left, right)
    # Alignment breaks ties by order; blocks in the order of their digests make it symmetric.
    swapped = left.digest > right.digest
    blocks = (right, left) if swapped else (left, right)
    left_steps, right_steps = blocks[0].steps, blocks[1].steps
    # Equal layers share a block, so the similarity of each pair of blocks is computed once.
    similarity = cache(_alike)
    root_calls = only_call(blocks[0]), only_call(blocks[1])

    def score(at: int, place: int) -> float:
        return (
            1.0
            if (at, place) == root_calls
            else _score(left_steps[at], right_steps[place], similarity)
        )

    pairs = align(
        (list(map(_name, left_steps)), list(map(_name, right_steps))),
        (list(map(_structure, left_steps)), list(map(_structure, right_steps))),
        score,
    )
    kept = _without_chance(pairs, left_steps, right_steps)
    matches = []
    for pairs, moved in ((kept, False), (_moved(left_steps, right_steps, kept), True)):
        for pair in pairs:
            at, place = pair[::-1] if swapped else pair
            wrapped = _wrapped(left.steps[at], right.steps[place], sole=pair == root_calls)
            matches.append(Match(at, place, moved, wrapped))
    return sorted(matches, key=lambda match: match.left)


def only_call(block: Block) -> int:
    """Return the index of the only call in a root block; -1 for other blocks or several calls."""
    places = [at for at, step in enumerate(block.steps) if step.block is not None]
    return places[0] if len(places) == 1 and not block.class_name else -1


def _name(step: BlockStep) -> tuple[str, str]:
    return (step.label if step.block else _NUMBER.sub("", step.label), step.place)


def _structure(step: BlockStep) -> tuple[object, ...]:
    if step.block is not None:
        return ("call", step.block.structure, step.settings)
    return (step.op, plain_arguments(step), step.settings, len(step.reads), len(step.gives))


def plain_arguments(step: BlockStep) -> tuple[tuple[str, str], ...]:
    """Return the arguments of an operation without the indices of the tensors in them."""
    return tuple((name, _PLACE.sub("%", text)) for name, text in step.arguments)


def _alike(left: Block, right: Block) -> float:
    """Return the share of operations and leaf classes that two blocks have in common, 0 to 1."""
    left_counts, right_counts = left.bag, right.bag
    # Shares instead of counts, so that six layers of a kind equal twelve.
    rows, columns = left_counts.total(), right_counts.total()
    return sum(
        min(left_counts[name] / rows, right_counts[name] / columns)
        for name in left_counts & right_counts
    )


def _score(one: BlockStep, other: BlockStep, alike: Callable[[Block, Block], float]) -> float:
    if one.block is None or other.block is None:
        if one.block is not None or other.block is not None:
            return 0.0
        if one.op == other.op:
            reads = [[ref.label for ref in step.reads] for step in (one, other)]
            return 0.6 if reads[0] == reads[1] else 0.5
        # An operation may replace an operation with equally many inputs.
        return 0.1 if len(one.reads) == len(other.reads) else 0.0
    same_class = one.block.class_name == other.block.class_name
    share = alike(one.block, other.block)
    if same_class:
        return 0.6 if one.label == other.label else 0.1 + 0.4 * share
    worth = 0.5 * share if share >= _LEAST_ALIKE else 0.0
    if one.label == other.label:
        # Equal numbers (`layers.3`) are weak evidence: an inserted layer shifts the numbers behind
        # it.
        is_number = one.label.rpartition(".")[2].isdecimal()
        return max(worth, 0.1) if is_number else 0.3 + 0.25 * share
    return worth


def _without_chance(pairs: Pairs, left: _Steps, right: _Steps) -> Pairs:
    """Leave out pairs of different operations that do not read the same sources."""
    labels: dict[str, str] = {}
    kept: Pairs = []
    for at, place in pairs:
        left_step, right_step = left[at], right[place]
        if left_step.block is None and right_step.block is None and left_step.op != right_step.op:
            mapped = [(labels.get(ref.label, ref.label), ref.output) for ref in left_step.reads]
            if mapped != [(ref.label, ref.output) for ref in right_step.reads]:
                continue
        labels[left_step.label] = right_step.label
        kept.append((at, place))
    return kept


# -- moved ----------------------------------------------------------------------------------


def _moved(left: _Steps, right: _Steps, pairs: Pairs) -> Pairs:
    """Match the remaining steps wherever they are: first by name and class, then by structure.

    Only keys that occur once on each side are matched.
    """
    unmatched_left = set(range(len(left))).difference(at for at, _ in pairs)
    unmatched_right = set(range(len(right))).difference(place for _, place in pairs)
    matches: Pairs = []
    for tell in (_known_as, _telling_structure) if unmatched_left and unmatched_right else ():
        places = _only_once({place: tell(right[place]) for place in unmatched_right})
        for key, at in _only_once({at: tell(left[at]) for at in unmatched_left}).items():
            if key in places:
                unmatched_left.remove(at)
                unmatched_right.remove(places[key])
                matches.append((at, places[key]))
    return matches


def _known_as(step: BlockStep) -> tuple[object, ...] | None:
    if step.block is None:
        return (_name(step), _structure(step))
    return (step.label, step.block.class_name)


def _telling_structure(step: BlockStep) -> tuple[object, ...] | None:
    return _structure(step) if step.block is None or is_telling(step.block) else None


def _only_once(keys: dict[int, tuple[object, ...] | None]) -> dict[tuple[object, ...], int]:
    counts = Counter(keys.values())
    return {key: at for at, key in sorted(keys.items()) if key is not None and counts[key] == 1}


def is_telling(block: Block) -> bool:
    """Whether a block is identified by its structure, unlike one activation among many."""
    return bool(block.numbers) or block.operations > 2


# -- wrapped --------------------------------------------------------------------------------


def _wrapped(one: BlockStep, other: BlockStep, *, sole: bool) -> str:
    if one.block is None or other.block is None:
        return ""
    if one.block.class_name == other.block.class_name or not (sole or one.label == other.label):
        return ""
    if _holds(other.block, one.block):
        return "right"
    return "left" if _holds(one.block, other.block) else ""


def _wrapped_steps(left: Block, right: Block) -> list[Match]:
    """Match a lone call with the most similar call in its wrapper."""
    lone, wrapper = (right, left) if left.label else (left, right)
    sought = lone.steps[0].block
    assert sought is not None, "an operation is not wrapped"
    ranks: list[tuple[int, int]] = []
    for at, step in enumerate(wrapper.steps):
        if step.block is not None:
            if step.block.class_name == sought.class_name:
                ranks.append((int(step.block.structure != sought.structure), at))
            elif _holds(step.block, sought):
                ranks.append((2, at))
    if not ranks:
        return []
    rank, at = min(ranks)
    if lone is left:
        return [Match(0, at, wrapped="right" if rank == 2 else "")]
    return [Match(at, 0, wrapped="left" if rank == 2 else "")]


def _holds(outer: Block, inner: Block) -> bool:
    """Whether a block calls a module of another block's class, at most `_DEEPEST` levels inside."""
    level = [outer]
    for _ in range(_DEEPEST):
        level = [below for block in level for below in block.below()]
        if any(block.class_name == inner.class_name for block in level):
            return True
    return False


def alone(step: BlockStep) -> Block:
    """Return a block that consists of one call, to be compared with a block that wraps the call."""
    assert step.block is not None, "an operation is not wrapped"
    refs = tuple(Ref(step.label, output=at) for at in range(len(step.gives)))
    inner = replace(step, reads=tuple(Ref(name, role="in") for name in step.ports), place="")
    ports = tuple(
        Port(name, "argument", kind) for name, kind in zip(step.ports, step.takes, strict=True)
    )
    return Block("", steps=(inner,), inputs=ports, result_refs=refs)


def matched_inputs(left: Block, right: Block, *, bare: bool = False) -> dict[str, str]:
    """Map the left block's input names to the right block's: by name, then by order.

    Args:
        left: The block before.
        right: The block after.
        bare: Whether inputs of a kind are matched by order even if their numbers differ.
    """
    names = {port.name for port in right.inputs}
    names_after = {port.name: port.name for port in left.inputs if port.name in names}
    for kind in ("input", "argument", "captured"):
        unmatched = [
            port.name for port in left.inputs if port.kind == kind and port.name not in names_after
        ]
        taken = set(names_after.values())
        candidates = [
            port.name for port in right.inputs if port.kind == kind and port.name not in taken
        ]
        if bare or len(unmatched) == len(candidates):
            names_after.update(zip(unmatched, candidates, strict=False))
    return names_after
