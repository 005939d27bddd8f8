"""Rounds: where in a row of events a loop has come round again.

It knows the code of a function by numbers alone: where each event was called, and from where
to where a loop goes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

__all__ = ["Event", "rounds_of"]

_Member = TypeVar("_Member")
_Loop: TypeAlias = tuple[int, int]


@dataclass(slots=True)
class Event(Generic[_Member]):
    """What one place in the code of a function did at one time.

    Attributes:
        step: The place.
        within: What was called there, if that is known.
        members: What it did.
    """

    step: int
    within: object = None
    members: list[_Member] = field(default_factory=list)


def rounds_of(
    events: list[Event[_Member]],
    loops: tuple[_Loop, ...],
    wanted: Callable[[list[list[_Member]]], bool],
) -> Iterator[Event[_Member] | list[list[_Member]]]:
    """Part a row of events in the rounds of the loops in which they are.

    Args:
        events: What the run of a function did, in order.
        loops: The loops in its code: the first and the last step of each.
        wanted: Tells whether the rounds of a loop are worth having; if not, loops in it may be.
    Returns:
        The rounds of each loop that is wanted, outer ones first, and the events beside these.
    """
    outer = [loop for loop in loops if not any(_holds(other, loop) for other in loops)]
    for loop, block in _blocks(events, outer):
        if loop is None:
            yield from block
            continue
        inner = tuple(other for other in loops if _holds(loop, other))
        rounds = _rounds(block, inner)
        members = [[member for event in one for member in event.members] for one in rounds]
        if wanted(members):
            yield members
        else:
            for one in rounds:
                yield from rounds_of(one, inner, wanted)


def _holds(loop: _Loop, other: _Loop) -> bool:
    return loop != other and loop[0] <= other[0] and other[1] <= loop[1]


def _blocks(
    events: list[Event[_Member]], loops: list[_Loop]
) -> Iterator[tuple[_Loop | None, list[Event[_Member]]]]:
    """Yield the events in order, those in one loop together; of these also that loop."""
    block: list[Event[_Member]] = []
    here: _Loop | None = None
    for event in events:
        loop = next((one for one in loops if one[0] <= event.step <= one[1]), None)
        if block and loop != here:
            yield here, block
            block = []
        here = loop
        block.append(event)
    if block:
        yield here, block


def _rounds(events: list[Event[_Member]], inner: tuple[_Loop, ...]) -> list[list[Event[_Member]]]:
    """Part the events of a loop where it has come round again; a loop in it is one place."""
    outer = [loop for loop in inner if not any(_holds(other, loop) for other in inner)]
    rounds: list[list[Event[_Member]]] = []
    last, within = -1, None
    for loop, block in _blocks(events, outer):
        for event in block if loop is None else block[:1]:
            step = event.step if loop is None else loop[0]
            again = step == last and event.within is not None and event.within is not within
            if not rounds or step < last or again:
                rounds.append([])
            last, within = step, event.within
            rounds[-1] += [event] if loop is None else block
    return rounds
