"""Matching: which steps of one block stand for which of another one, and how well.

A call is known by its name and by what it calls; an operation by what it is and by its constants.
A call that stands in another one under its old name is wrapped: then the inner one is its match.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from tbscope.comparing.alignment import align
from tbscope.comparing.outline import Block, Port, Ref, Step

__all__ = [
    "Match",
    "alone",
    "is_telling",
    "match_steps",
    "matched_inputs",
    "only_call",
    "plain_arguments",
]

_NUMBER = re.compile(r"~[0-9]+\Z")
_PLACE = re.compile(r"%[0-9]+")
# How deep in a wrapper that is looked for which is wrapped.
_DEEPEST = 4
# Less alike, two modules of other names and other classes have nothing to do with each other.
_LEAST_ALIKE = 0.5
_TURNED = {"": "", "left": "right", "right": "left"}


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
    if left.digest <= right.digest:
        return _matches(left, right)
    turned = [
        Match(one.right, one.left, one.moved, _TURNED[one.wrapped]) for one in _matches(right, left)
    ]
    return sorted(turned, key=lambda match: match.left)


def _matches(left: Block, right: Block) -> list[Match]:
    if not left.label or not right.label:
        return _wrapped_steps(left, right)
    one, other = left.steps, right.steps
    # Equal layers are the same block: each pair is asked once.
    alike = cache(_alike)
    whole = only_call(left), only_call(right)

    def score(at: int, place: int) -> float:
        if (at, place) == whole:
            return 1.0
        return _score(one[at], other[place], alike)

    pairs = align(
        (list(map(_name, one)), list(map(_name, other))),
        (list(map(_structure, one)), list(map(_structure, other))),
        score,
    )
    kept = _without_chance(pairs, left, right)
    found = [
        Match(at, place, wrapped=_wrapped(one[at], other[place], sole=(at, place) == whole))
        for at, place in kept
    ]
    found += _moved(left, right, kept)
    return sorted(found, key=lambda match: match.left)


def only_call(block: Block) -> int:
    """Return the place of the model in what stands outside of all calls; -1 where it is not so."""
    places = [at for at, step in enumerate(block.steps) if step.block is not None]
    return places[0] if len(places) == 1 and not block.class_name else -1


def _name(step: Step) -> tuple[str, str]:
    return (step.label if step.block else _NUMBER.sub("", step.label), step.place)


def _structure(step: Step) -> tuple[object, ...]:
    if step.block is not None:
        return ("call", step.block.structure, step.facts)
    return (step.op, plain_arguments(step), step.facts, len(step.reads), len(step.gives))


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
            return 0.6 if _reads_alike(one, other) else 0.5
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


def _reads_alike(one: Step, other: Step) -> bool:
    return [ref.label for ref in one.reads] == [ref.label for ref in other.reads]


def _without_chance(
    pairs: list[tuple[int, int]], left: Block, right: Block
) -> list[tuple[int, int]]:
    """Leave out pairs of different operations that do not read the same."""
    labels: dict[str, str] = {}
    kept: list[tuple[int, int]] = []
    for at, place in pairs:
        one, other = left.steps[at], right.steps[place]
        if one.block is None and other.block is None and one.op != other.op:
            mapped = [(labels.get(ref.label, ref.label), ref.output) for ref in one.reads]
            if mapped != [(ref.label, ref.output) for ref in other.reads]:
                continue
        labels[one.label] = other.label
        kept.append((at, place))
    return kept


# -- moved ----------------------------------------------------------------------------------


def _moved(left: Block, right: Block, pairs: list[tuple[int, int]]) -> list[Match]:
    """Match what is left by what it is, wherever it stands: first by its name, too."""
    gone = dict.fromkeys(set(range(len(left.steps))).difference(at for at, _ in pairs))
    come = dict.fromkeys(set(range(len(right.steps))).difference(place for _, place in pairs))
    found: list[Match] = []
    if not gone or not come:
        return found
    for tell in (_named, _of_class, _structure):
        one = _only_once({at: tell(left.steps[at]) for at in gone})
        other = _only_once({place: tell(right.steps[place]) for place in come})
        for key, at in one.items():
            place = other.get(key)
            if place is None:
                continue
            step = left.steps[at]
            if tell is _structure and step.block is not None and not is_telling(step.block):
                continue
            del gone[at], come[place]
            found.append(Match(at, place, moved=True))
    return found


def _named(step: Step) -> tuple[object, ...]:
    return (_name(step), _structure(step))


def _of_class(step: Step) -> tuple[object, ...]:
    if step.block is None:
        return (*_named(step), "of no class")
    return (step.label, step.block.class_name)


def _only_once(keys: dict[int, tuple[object, ...]]) -> dict[tuple[object, ...], int]:
    counts = Counter(keys.values())
    return {key: at for at, key in sorted(keys.items()) if counts[key] == 1}


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
    """Match a call that stands alone with the one like it in what wraps it."""
    lone, wrapper, side = (left, right, "right") if not left.label else (right, left, "left")
    step = lone.steps[0]
    assert step.block is not None, "an operation is not wrapped"
    for tell in (_is_equal, _is_of_class, _holds):
        for at, other in enumerate(wrapper.steps):
            if other.block is not None and tell(other.block, step.block):
                wrapped = side if tell is _holds else ""
                pair = (0, at) if side == "right" else (at, 0)
                return [Match(*pair, wrapped=wrapped)]
    return []


def _is_equal(one: Block, other: Block) -> bool:
    return one.structure == other.structure


def _is_of_class(one: Block, other: Block) -> bool:
    return one.class_name == other.class_name


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
        Port(name, "argument", kind) for name, kind in zip(step.ports, step.took, strict=True)
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
