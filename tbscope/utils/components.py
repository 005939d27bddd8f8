"""Strongly connected components and topological orders, of any hashable objects.

The objects are nodes, scopes, or shapes on a page; an edge is a pair of them. Deep graphs are
walked with stacks of their own, as recursion would exceed Python's limit.
"""

import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

_Node = TypeVar("_Node", bound=Hashable)


def find_cycles(steps: Iterable[tuple[_Node, _Node]]) -> list[list[_Node]]:
    """Return the strongly connected components of two or more nodes, by Tarjan's algorithm.

    Args:
        steps: The edges, as (start, end). An edge from a node to itself makes no component.
    Returns:
        The components: each node leads to all others of its component.

    Source: R. Tarjan, Depth-first search and linear graph algorithms, 1972
    """
    readers: dict[_Node, list[_Node]] = {}
    for start, end in steps:
        readers.setdefault(start, []).append(end)
    cycles: list[list[_Node]] = []
    reached: dict[_Node, int] = {}
    # The lowest number on the current path that each node reaches; a node that reaches no lower
    # number than its own is the root of a component.
    lowest: dict[_Node, int] = {}
    waiting: list[_Node] = []
    done: set[_Node] = set()
    way: list[tuple[_Node, Iterator[_Node]]] = []

    def enter(node: _Node) -> None:
        reached[node] = lowest[node] = len(reached)
        waiting.append(node)
        way.append((node, iter(readers.get(node, ()))))

    for first in readers:
        if first not in reached:
            enter(first)
        while way:
            node, ahead = way[-1]
            for reader in ahead:
                if reader not in reached:
                    enter(reader)
                    break
                if reader not in done:
                    lowest[node] = min(lowest[node], reached[reader])
            else:
                way.pop()
                if way:
                    above = way[-1][0]
                    lowest[above] = min(lowest[above], lowest[node])
                if lowest[node] == reached[node]:
                    group = [waiting.pop()]
                    while group[-1] != node:
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


def inner_first(whole: _Node, parts: Callable[[_Node], Iterable[_Node]]) -> list[_Node]:
    """Return a whole and its parts at any depth in postorder, each object once.

    Args:
        whole: The root; it comes last.
        parts: Returns the direct parts of an object. The parts have no cycles.
    """
    ordered: dict[_Node, None] = {}
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
