"""Matching: which steps of one block stand for which of another one, and how well.

A call is known by its name and by what it calls; an operation by what it is and by its constants.
A call that stands in another one under its old name is wrapped: then the inner one is its match.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeAlias

from tbscope.comparison.alignment import Pairs, align
from tbscope.comparison.structure import Block, Port, Ref, Step

__all__ = [
    "Match",
    "alone",
    "is_telling",
    "match_steps",
    "matched_inputs",
    "only_call",
    "plain_arguments",
]

_Steps: TypeAlias = Sequence[Step]

_NUMBER = re.compile(r"~[0-9]+\Z")
_PLACE = re.compile(r"%[0-9]+")
# How deep in a wrapper that is looked for which is wrapped.
_DEEPEST = 4
# Less alike, two modules of other names and other classes have nothing to do with each other.
_LEAST_ALIKE = 0.5


@dataclass(frozen=True, slots=True)
class Match:
    """Two steps that stand for each other.

    Attributes:
        left: The place of the one in its block.
        right: The place of the other.
        moved: Whether it stands at another place among the others.
        wrapped: "right" where the right one holds a call like the left one, "left" for the
            other way round; empty where neither does.
    """

    left: int
    right: int
    moved: bool = False
    wrapped: str = ""


def match_steps(left: Block, right: Block) -> list[Match]:
    """Return which steps of two blocks stand for each other, in the order of the left ones.

    The same do, whichever of the blocks is the left one.
    """
    if not left.label or not right.label:
        return _wrapped_steps(left, right)
    turned = left.digest > right.digest
    blocks = (right, left) if turned else (left, right)
    one, other = blocks[0].steps, blocks[1].steps
    # Equal layers are the same block: each pair is asked once.
    alike = cache(_alike)
    whole = only_call(blocks[0]), only_call(blocks[1])

    def score(at: int, place: int) -> float:
        return 1.0 if (at, place) == whole else _score(one[at], other[place], alike)

    pairs = align(
        (list(map(_name, one)), list(map(_name, other))),
        (list(map(_structure, one)), list(map(_structure, other))),
        score,
    )
    kept = _without_chance(pairs, one, other)
    found = []
    for pairs, moved in ((kept, False), (_moved(one, other, kept), True)):
        for pair in pairs:
            at, place = pair[::-1] if turned else pair
            wrapped = _wrapped(left.steps[at], right.steps[place], sole=pair == whole)
            found.append(Match(at, place, moved, wrapped))
    return sorted(found, key=lambda match: match.left)


def only_call(block: Block) -> int:
    """Return the place of the model in what stands outside of all calls; -1 where it is not so."""
    places = [at for at, step in enumerate(block.steps) if step.block is not None]
    return places[0] if len(places) == 1 and not block.class_name else -1


def _name(step: Step) -> tuple[str, str]:
    return (step.label if step.block else _NUMBER.sub("", step.label), step.place)


def _structure(step: Step) -> tuple[object, ...]:
    if step.block is not None:
        return ("call", step.block.structure, step.settings)
    return (step.op, plain_arguments(step), step.settings, len(step.reads), len(step.gives))


def plain_arguments(step: Step) -> tuple[tuple[str, str], ...]:
    """Return the arguments of an operation without the numbers of the tensors in them."""
    return tuple((name, _PLACE.sub("%", text)) for name, text in step.arguments)


def _alike(left: Block, right: Block) -> float:
    """Return how much of what two blocks do is the same, from 0 to 1."""
    one, other = left.bag, right.bag
    # By shares, so that six layers of a kind are like twelve.
    rows, columns = one.total(), other.total()
    return sum(min(one[name] / rows, other[name] / columns) for name in one & other)


def _score(one: Step, other: Step, alike: Callable[[Block, Block], float]) -> float:
    if one.block is None or other.block is None:
        if one.block is not None or other.block is not None:
            return 0.0
        if one.op == other.op:
            reads = [[ref.label for ref in step.reads] for step in (one, other)]
            return 0.6 if reads[0] == reads[1] else 0.5
        # Told as one operation in the place of another one, if it reads the same.
        return 0.1 if len(one.reads) == len(other.reads) else 0.0
    same_class = one.block.class_name == other.block.class_name
    share = alike(one.block, other.block)
    if same_class:
        return 0.6 if one.label == other.label else 0.1 + 0.4 * share
    worth = 0.5 * share if share >= _LEAST_ALIKE else 0.0
    if one.label == other.label:
        # A number tells little: behind what was inserted, all have others.
        is_number = one.label.rpartition(".")[2].isdecimal()
        return max(worth, 0.1) if is_number else 0.3 + 0.25 * share
    return worth


def _without_chance(pairs: Pairs, left: _Steps, right: _Steps) -> Pairs:
    """Leave out pairs of different operations that do not read the same."""
    labels: dict[str, str] = {}
    kept: Pairs = []
    for at, place in pairs:
        one, other = left[at], right[place]
        if one.block is None and other.block is None and one.op != other.op:
            mapped = [(labels.get(ref.label, ref.label), ref.output) for ref in one.reads]
            if mapped != [(ref.label, ref.output) for ref in other.reads]:
                continue
        labels[one.label] = other.label
        kept.append((at, place))
    return kept


# -- moved ----------------------------------------------------------------------------------


def _moved(left: _Steps, right: _Steps, pairs: Pairs) -> Pairs:
    """Match what is left by what it is, wherever it stands: first by its name, too."""
    gone = set(range(len(left))).difference(at for at, _ in pairs)
    come = set(range(len(right))).difference(place for _, place in pairs)
    found: Pairs = []
    for tell in (_known_as, _telling_structure) if gone and come else ():
        places = _only_once({place: tell(right[place]) for place in come})
        for key, at in _only_once({at: tell(left[at]) for at in gone}).items():
            if key in places:
                gone.remove(at)
                come.remove(places[key])
                found.append((at, places[key]))
    return found


def _known_as(step: Step) -> tuple[object, ...] | None:
    if step.block is None:
        return (_name(step), _structure(step))
    return (step.label, step.block.class_name)


def _telling_structure(step: Step) -> tuple[object, ...] | None:
    return _structure(step) if step.block is None or is_telling(step.block) else None


def _only_once(keys: dict[int, tuple[object, ...] | None]) -> dict[tuple[object, ...], int]:
    counts = Counter(keys.values())
    return {key: at for at, key in sorted(keys.items()) if key is not None and counts[key] == 1}


def is_telling(block: Block) -> bool:
    """Tell whether a block is known by its structure: not one activation among many."""
    return bool(block.numbers) or block.operations > 2


# -- wrapped --------------------------------------------------------------------------------


def _wrapped(one: Step, other: Step, *, sole: bool) -> str:
    if one.block is None or other.block is None:
        return ""
    if one.block.class_name == other.block.class_name or not (sole or one.label == other.label):
        return ""
    if _holds(other.block, one.block):
        return "right"
    return "left" if _holds(one.block, other.block) else ""


def _wrapped_steps(left: Block, right: Block) -> list[Match]:
    """Match a call that stands alone with the one most like it in what wraps it."""
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
    """Tell whether a block calls a module of the class of another one, not too deep in it."""
    level = [outer]
    for _ in range(_DEEPEST):
        level = [below for block in level for below in block.below()]
        if any(block.class_name == inner.class_name for block in level):
            return True
    return False


def alone(step: Step) -> Block:
    """Return a block in which a call stands alone, to be compared with one that wraps it."""
    assert step.block is not None, "an operation is not wrapped"
    given = tuple(Ref(step.label, output=at) for at in range(len(step.gives)))
    inner = replace(step, reads=tuple(Ref(name, role="in") for name in step.ports), place="")
    ports = tuple(
        Port(name, "argument", kind) for name, kind in zip(step.ports, step.takes, strict=True)
    )
    return Block("", steps=(inner,), inputs=ports, given=given)


def matched_inputs(left: Block, right: Block, *, bare: bool = False) -> dict[str, str]:
    """Return which inputs of two blocks stand for each other: by name, and then by order.

    Args:
        left: The one before.
        right: The one after.
        bare: Whether also those are matched by order of which there are not as many.
    """
    names = {port.name for port in right.inputs}
    found = {port.name: port.name for port in left.inputs if port.name in names}
    for kind in ("input", "argument", "captured"):
        rest = [port.name for port in left.inputs if port.kind == kind and port.name not in found]
        taken = set(found.values())
        other = [port.name for port in right.inputs if port.kind == kind and port.name not in taken]
        if bare or len(rest) == len(other):
            found.update(zip(rest, other, strict=False))
    return found
