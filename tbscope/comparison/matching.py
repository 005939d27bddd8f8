"""Matching of two blocks' steps: the pairs of steps that correspond, and their similarity.

Calls are matched by name and by the called block; operations by name and constant arguments.
A call is wrapped if the call with its name on the other side contains it; then the inner call is
its match.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeAlias

from tbscope.comparison.structure import Block, BlockStep, Port, Ref
from tbscope.utils.alignment import Pairs, align

_Steps: TypeAlias = Sequence[BlockStep]
_Key: TypeAlias = tuple[object, ...]
_Tell: TypeAlias = Callable[[BlockStep], _Key | None]

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
        lone: Side (0 or 1) of the step that the other step wraps, or None if neither does.
    """

    left: int
    right: int
    moved: bool = False
    lone: int | None = None


def match_steps(left: Block, right: Block) -> list[Match]:
    """Return the corresponding steps of two blocks, in the order of the left block.

    The matches are symmetric: exchanging the blocks only exchanges `left` and `right`.
    """
    # Alignment breaks ties by order; blocks in the order of their digests make it symmetric.
    swapped = left.digest < right.digest
    blocks = (right, left) if swapped else (left, right)
    steps = blocks[0].steps, blocks[1].steps
    # Equal layers share a block, so the similarity of each pair of blocks is computed once.
    similarity = cache(_alike)
    root_calls = only_call(blocks[0]), only_call(blocks[1])
    # A lone call is compared with its wrapper.
    lone = not left.label or not right.label

    def score(left_index: int, right_index: int) -> float:
        if (left_index, right_index) == root_calls:
            return 1.0
        pair = steps[0][left_index], steps[1][right_index]
        return _score_inside(*pair) if lone else _score(*pair, similarity)

    kept = align(
        (list(map(_name, steps[0])), list(map(_name, steps[1]))),
        (list(map(_structure, steps[0])), list(map(_structure, steps[1]))),
        score,
    )
    matches = []
    for pairs, moved in ((kept, False), (_moved(*steps, kept), True)):
        for pair in pairs:
            left_index, right_index = pair[::-1] if swapped else pair
            sole = lone or pair == root_calls
            side = _lone_side(left.steps[left_index], right.steps[right_index], sole=sole)
            matches.append(Match(left_index, right_index, moved, side))
    return sorted(matches, key=lambda match: match.left)


def only_call(block: Block) -> int:
    """Return the index of the only call in a root block; -1 for other blocks or several calls."""
    indices = [index for index, step in enumerate(block.steps) if step.block is not None]
    return indices[0] if len(indices) == 1 and not block.class_name else -1


def _name(step: BlockStep) -> tuple[str, str]:
    return (step.label if step.block else _NUMBER.sub("", step.label), step.place)


def _structure(step: BlockStep) -> _Key:
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


def _score(left: BlockStep, right: BlockStep, alike: Callable[[Block, Block], float]) -> float:
    if left.block is None or right.block is None:
        if left.block is not right.block:
            return 0.0
        same = [ref.label for ref in left.reads] == [ref.label for ref in right.reads]
        if left.op == right.op:
            return 0.6 if same else 0.5
        # An operation may replace another operation of the same tensors.
        return 0.1 if same else 0.0
    share = alike(left.block, right.block)
    if left.block.class_name == right.block.class_name:
        return 0.6 if left.label == right.label else 0.1 + 0.4 * share
    worth = 0.5 * share if share >= _LEAST_ALIKE else 0.0
    if left.label == right.label:
        # Equal numbers (`layers.3`) are weak evidence: an inserted layer shifts the numbers behind
        # it.
        is_number = left.label.rpartition(".")[2].isdecimal()
        return max(worth, 0.1) if is_number else 0.3 + 0.25 * share
    return worth


def _score_inside(left: BlockStep, right: BlockStep) -> float:
    if left.block is None or right.block is None:
        return 0.0
    same = left.block.class_name == right.block.class_name
    return 0.6 if same else 0.0 if _lone_side(left, right, sole=True) is None else 0.1


# -- moved ----------------------------------------------------------------------------------


def _moved(left: _Steps, right: _Steps, pairs: Pairs) -> Pairs:
    """Match the remaining steps wherever they are: first by name and class, then by structure.

    Only keys that occur once on each side are matched.
    """
    rest = [dict(enumerate(left)), dict(enumerate(right))]
    for pair in pairs:
        for steps, at in zip(rest, pair, strict=True):
            del steps[at]
    matches: Pairs = []
    for tell in (_known_as, _telling_structure) if all(rest) else ():
        left_indices, right_indices = (_only_once(steps, tell) for steps in rest)
        for key in left_indices:
            if key in right_indices:
                matches.append((left_indices[key], right_indices[key]))
                del rest[0][left_indices[key]], rest[1][right_indices[key]]
    return matches


def _known_as(step: BlockStep) -> _Key | None:
    if step.block is None:
        return (_name(step), _structure(step))
    return (step.label, step.block.class_name)


def _telling_structure(step: BlockStep) -> _Key | None:
    return _structure(step) if step.block is None or is_telling(step.block) else None


def _only_once(steps: Mapping[int, BlockStep], tell: _Tell) -> dict[_Key, int]:
    keys = {at: tell(step) for at, step in steps.items()}
    counts = Counter(keys.values())
    return {key: at for at, key in keys.items() if key is not None and counts[key] == 1}


def is_telling(block: Block) -> bool:
    """Whether a block is identified by its structure, unlike one activation among many."""
    return bool(block.numbers) or block.operations > 2


# -- wrapped --------------------------------------------------------------------------------


def _lone_side(left: BlockStep, right: BlockStep, *, sole: bool) -> int | None:
    if left.block is None or right.block is None or not (sole or left.label == right.label):
        return None
    if left.block.class_name == right.block.class_name:
        return None
    return 0 if _holds(right.block, left.block) else 1 if _holds(left.block, right.block) else None


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
    after = {port.name for port in right.inputs}
    names_after = {port.name: port.name for port in left.inputs if port.name in after}
    common = {*names_after}
    for kind in ("input", "argument", "captured"):
        rest = [
            [port.name for port in block.inputs if port.kind == kind and port.name not in common]
            for block in (left, right)
        ]
        if bare or len(rest[0]) == len(rest[1]):
            names_after.update(zip(*rest, strict=False))
    return names_after
