"""What autograd's own graph leads to: which operation made a node, and which value it has saved.

Autograd numbers its nodes as they are made, each thread from 0. Who knows which numbers were given
while an operation ran knows its nodes. Those that other threads make are marked instead.
"""

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from threading import get_ident
from typing import Any
from weakref import ref

import torch

from tbscope.ir.graph import Node, Value
from tbscope.sources.eager.record.values import TensorValues
from tbscope.sources.torch.autograd import (
    accumulates_into,
    maker_of_saved,
    running_node,
    sequence_number,
)

__all__ = ["Makers"]

# The offset, the shape and the strides of a tensor in its storage.
_Place = tuple[Any, torch.Size, tuple[int, ...]]


# Autograd's graph may outlive a run: each has marks of its own.
_runs = itertools.count()


class Makers:
    """Knows the operations of a run that can be differentiated, and what autograd saves of them.

    Of a result that is another tensor in the same memory.

    Args:
        values: The values that tensors hold.
    """

    def __init__(self, values: TensorValues) -> None:
        self._values = values
        # By its identity each storage, held weakly as another one may come to stand where it stood,
        # the value that was first seen in it, and those of the tensors in it by place.
        self._memory: dict[int, tuple[ref[torch.UntypedStorage], dict[_Place | None, Value]]] = {}
        self._stopped: dict[str, Node] = {}
        self._thread = get_ident()
        # What autograd had numbered when each operation was over, and the operations.
        self._numbers = [sequence_number()]
        self._nodes: list[Node | None] = [None]
        # Operations of which autograd alone tells, by its number.
        self._unseen: dict[int, Node] = {}
        # Operations of other threads, and by what autograd's nodes of them are known.
        self._marked: list[Node] = []
        self._key = f"tbscope {next(_runs)}"

    def look_again(self) -> None:
        """Take note that nobody has watched until now: what ran meanwhile is not known."""
        if get_ident() == self._thread:
            self._add(None)

    def _add(self, node: Node | None) -> None:
        self._numbers.append(sequence_number())
        self._nodes.append(node)

    def add(
        self, node: Node, read: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
    ) -> None:
        """Take note of an operation that has run.

        Args:
            node: The operation.
            read: What it read, which autograd may have saved.
            results: What it gave, too.
        """
        if get_ident() == self._thread:
            self._add(node)
        else:
            self._mark(node, read, results)
        for tensor, value in (*zip(read, node.inputs), *zip(results, node.outputs)):  # noqa: B905
            found = self._values_at(tensor)
            if found is None:
                continue
            values, place = found
            if node.role == "view" or not node.kernels or value.producer is not node:
                values.setdefault(place, value)
                values.setdefault(None, value)
            else:
                values[place] = values[None] = value

    def add_inside(self, node: Node) -> None:
        """Take note of an operation that autograd does not look into.

        The first one of a function of the user's own (`autograd.Function`) stands for it: autograd
        has numbered the function before, and knows of nothing inside.
        """
        if get_ident() == self._thread and sequence_number() > self._numbers[-1]:
            self._add(node)

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
        return self._nodes[at] if at < len(self._nodes) else None

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

    # -- what it saves --------------------------------------------------------------------

    def ended_early(self, node: Node) -> None:
        """Take note of an operation after which a checkpoint has stopped to run the model again."""
        self._stopped[node.op] = node

    def value_of(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of a tensor that autograd has saved; None for any other.

        What the operation alone knows (the mean of a norm) becomes a further result of it.
        """
        found = self._values_at(tensor)
        if found is None:
            return None
        values, place = found
        value = values.get(place) or values.get(None)
        if value is not None:
            return value
        running = running_node()
        node = None if running is None else self.made(running)
        if node is None:
            return None
        value = self._told(node, tensor)
        if value is None:
            node = self._stopped.get(node.op, node)
            if node.writes or node.body is not None:
                # Its own results come last: another node gives what it has saved.
                keeper = self._values.append("saved", node.scope, [], node.source)
                keeper.control_inputs.append(node)
                node = keeper
            value = self._values.give(node, tensor)
        values[place] = values[None] = value
        return value

    def _told(self, node: Node, tensor: torch.Tensor) -> Value | None:
        """Return what an operation has saved which nobody saw; None where that is not known."""
        found = maker_of_saved(running_node(), tensor) if "told_by" in node.attributes else None
        maker = None if found is None else self.made(found[0])
        if found is None or maker is None or found[1] >= len(maker.outputs):
            return None
        return maker.outputs[found[1]]

    def _values_at(self, tensor: torch.Tensor) -> tuple[dict[_Place | None, Value], _Place] | None:
        """Return the values that are known in the storage of a tensor, and its place in it."""
        try:
            storage = tensor.untyped_storage()
            place = tensor.storage_offset(), tensor.shape, tensor.stride()
        except (RuntimeError, NotImplementedError):
            # Nested and sparse tensors have no strides, functorch's no storage.
            return None
        known = self._memory.get(id(storage))
        if known is None or known[0]() is not storage:
            known = self._memory[id(storage)] = ref(storage), {}
        return known[1], place
