"""Strongly connected components and topological orders, of any hashable objects.

The objects are nodes, scopes, or shapes on a page; an edge is a pair of them. Deep graphs are
walked with stacks of their own, as recursion would exceed Python's limit.
"""

import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

__all__ = ["find_cycles", "in_order", "inner_first"]

_Place = TypeVar("_Place", bound=Hashable)


def find_cycles(steps: Iterable[tuple[_Place, _Place]]) -> list[list[_Place]]:
    """Return the strongly connected components of two or more places, by Tarjan's algorithm.

    Args:
        steps: The edges, as (start, end). An edge from a place to itself makes no component.
    Returns:
        The components: each place leads to all others of its component.

    Source: R. Tarjan, Depth-first search and linear graph algorithms, 1972
    """
    readers: dict[_Place, list[_Place]] = {}
    for start, end in steps:
        readers.setdefault(start, []).append(end)
    cycles: list[list[_Place]] = []
    reached: dict[_Place, int] = {}
    # The lowest number on the current path that each place reaches; a place that reaches no lower
    # number than its own is the root of a component.
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
                        cycles.append(group)
    return cycles


def in_order(count: int, steps: Iterable[tuple[int, int]]) -> list[int]:
    """Return the numbers below `count` in topological order, the lowest possible one first.

    Args:
        count: The count of numbers, which begin at 0.
        steps: The edges, as (start, end): `start` comes before `end`.
    Returns:
        All numbers except those in a cycle or reachable from a cycle.
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
    """Return a whole and its parts at any depth in postorder, each object once.

    Args:
        whole: The root; it comes last.
        parts: Returns the direct parts of an object. The parts have no cycles.
    """
    ordered: dict[_Place, None] = {}
    seen = {whole}
    way = [(whole, iter(parts(whole)))]
    while way:
        parent, ahead = way[-1]
        part = next((part for part in ahead if part not in seen), None)
        if part is None:
            ordered[parent] = None
            way.pop()
        else:
            seen.add(part)
            way.append((part, iter(parts(part))))
    return list(ordered)
