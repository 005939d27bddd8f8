"""Which operation made a node of autograd's graph.

Autograd numbers its nodes as they are made, each thread from 0. Who knows which numbers were given
while an operation ran knows its nodes. Those that other threads make are marked instead.
"""

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from threading import get_ident
from typing import Any

import torch

from tbscope.ir.graph import Node
from tbscope.sources.torch.autograd import accumulates_into, sequence_number

__all__ = ["Makers"]

# Autograd's graph may outlive a run: each has marks of its own.
_runs = itertools.count()


class Makers:
    """Knows the operations of a run that can be differentiated."""

    def __init__(self) -> None:
        self._thread = get_ident()
        # What autograd had numbered when each operation was over, and the operations.
        self._numbers: list[int] = []
        self._nodes: list[Node | None] = []
        self._first = sequence_number()
        # Operations of which autograd alone tells, by its number.
        self._unseen: dict[int, Node] = {}
        # Operations of other threads, and by what autograd's nodes of them are known.
        self._marked: list[Node] = []
        self._key = f"tbscope {next(_runs)}"

    def look_again(self) -> None:
        """Take note that nobody has watched until now: what ran meanwhile is not known."""
        if get_ident() == self._thread:
            self._numbers.append(sequence_number())
            self._nodes.append(None)

    def add(
        self, node: Node, read: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
    ) -> None:
        """Take note of an operation that has run.

        Args:
            node: The operation.
            read: What it read.
            results: What it gave.
        """
        if get_ident() == self._thread:
            self._numbers.append(sequence_number())
            self._nodes.append(node)
        else:
            self._mark(node, read, results)

    def add_inside(self, node: Node) -> None:
        """Take note of an operation that autograd does not look into.

        The first one of a function of the user's own (`autograd.Function`) stands for it: autograd
        has numbered the function before, and knows of nothing inside.
        """
        if get_ident() == self._thread:
            number = sequence_number()
            if number > (self._numbers[-1] if self._numbers else self._first):
                self._numbers.append(number)
                self._nodes.append(node)

    def add_unseen(self, function: Any, node: Node) -> None:
        """Take note of an operation of which nothing is known but its node of autograd's."""
        self._unseen[function._sequence_nr()] = node

    def made(self, function: Any) -> Node | None:
        """Return the operation that made a node of autograd's graph; None for none known."""
        if self._marked and (marked := self._mark_of(function)) is not None:
            return marked
        number = function._sequence_nr()
        if number in self._unseen:
            return self._unseen[number]
        at = bisect_right(self._numbers, number)
        if number < self._first or at == len(self._nodes):
            return None
        return self._nodes[at]

    def _mark(
        self, node: Node, read: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
    ) -> None:
        """Mark autograd's nodes of an operation of another thread, which numbers its own."""
        ends = {each.grad_fn for each in read}
        pending = [each.grad_fn for each in results if each.grad_fn is not None]
        for function in pending:
            if self._mark_of(function) is not None or accumulates_into(function) is not None:
                continue
            marks: Any = function.metadata
            marks[self._key] = len(self._marked)
            # What is written into has another node than before: where that ends is not known.
            if not node.writes:
                before = (each for each, _ in function.next_functions)
                pending += [each for each in before if each is not None and each not in ends]
        self._marked.append(node)

    def _mark_of(self, function: Any) -> Node | None:
        mark = function.metadata.get(self._key)
        return None if mark is None else self._marked[mark]
