"""Cycles and orders: which places lead back to themselves along steps, and which come first.

It knows nothing of what the places are: nodes, scopes, or shapes on a page.
"""

import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

__all__ = ["find_cycles", "in_order", "inner_first"]

_Place = TypeVar("_Place", bound=Hashable)


def find_cycles(steps: Iterable[tuple[_Place, _Place]]) -> list[list[_Place]]:
    """Find the places that lead to each other and back.

    Args:
        steps: From where to where. One from a place to itself is none.
    Returns:
        Groups of two or more places, each of which leads to all others of its group.

    Source: R. Tarjan, Depth-first search and linear graph algorithms, 1972
    """
    readers: dict[_Place, list[_Place]] = {}
    for start, end in steps:
        readers.setdefault(start, []).append(end)
    found: list[list[_Place]] = []
    reached: dict[_Place, int] = {}
    # The first place on the way so far to which each one leads; a group ends where it is its own.
    lowest: dict[_Place, int] = {}
    waiting: list[_Place] = []
    done: set[_Place] = set()
    way: list[tuple[_Place, Iterator[_Place]]] = []

    def enter(place: _Place) -> None:
        reached[place] = lowest[place] = len(reached)
        waiting.append(place)
        way.append((place, iter(readers.get(place, ()))))

    for first in readers:
        if first not in reached:
            enter(first)
        while way:
            place, ahead = way[-1]
            for other in ahead:
                if other not in reached:
                    enter(other)
                    break
                if other not in done:
                    lowest[place] = min(lowest[place], reached[other])
            else:
                way.pop()
                if way:
                    above = way[-1][0]
                    lowest[above] = min(lowest[above], lowest[place])
                if lowest[place] == reached[place]:
                    group = [waiting.pop()]
                    while group[-1] != place:
                        group.append(waiting.pop())
                    done.update(group)
                    if len(group) > 1:
                        found.append(group)
    return found


def in_order(count: int, steps: Iterable[tuple[int, int]]) -> list[int]:
    """Return numbers in order, each after those from which a step leads to it.

    Args:
        count: How many numbers there are, from 0 on; of those that can come next, the lowest does.
        steps: From where to where.
    Returns:
        All numbers but those in a cycle, and those after one.
    """
    waiting = [0] * count
    readers: list[list[int]] = [[] for _ in range(count)]
    for start, end in steps:
        waiting[end] += 1
        readers[start].append(end)
    ready = [node for node in range(count) if not waiting[node]]
    done = []
    while ready:
        node = heapq.heappop(ready)
        done.append(node)
        for reader in readers[node]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    return done


def inner_first(whole: _Place, parts: Callable[[_Place], Iterable[_Place]]) -> list[_Place]:
    """Return all that a whole is made of, each once and after its own parts; the whole comes last.

    Args:
        whole: The outermost one.
        parts: Gives what one is made of; nothing is a part of itself.
    """
    found: dict[_Place, None] = {}
    seen = {whole}
    way = [(whole, iter(parts(whole)))]
    while way:
        one, ahead = way[-1]
        part = next((part for part in ahead if part not in seen), None)
        if part is None:
            found[one] = None
            way.pop()
        else:
            seen.add(part)
            way.append((part, iter(parts(part))))
    return list(found)
