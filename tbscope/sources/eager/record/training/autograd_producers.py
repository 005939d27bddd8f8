"""Producers of autograd's nodes: the operation that made each node, and the values that it saved.

Autograd numbers its nodes as they are made, in each thread from 0. The numbers assigned while an
operation ran identify the nodes of that operation. Nodes that other threads make are tagged in
their metadata instead.
"""

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from threading import get_ident
from typing import Any
from weakref import ref

import torch

from tbscope.ir.graph import Node, Value
from tbscope.sources.eager.record.tensors.tensor_table import add_value
from tbscope.sources.eager.record.tensors.values import TensorValues
from tbscope.sources.torch.autograd import (
    accumulates_into,
    producer_of_saved,
    running_node,
    sequence_number,
)

# The offset, the shape and the strides of a tensor in its storage.
_ViewKey = tuple[Any, torch.Size, tuple[int, ...]]


# Autograd's graph may outlive a run: each run has a metadata key of its own.
_runs = itertools.count()


class AutogradProducers:
    """The differentiable operations of a run, and the tensors that autograd saves of them.

    A saved result is another tensor object in the same memory, so it is found by its view of it.

    Args:
        values: The values of tensors.
    """

    def __init__(self, values: TensorValues) -> None:
        self._values = values
        # By identity of the storage: a weak reference to it, as identities are reused, and the
        # values of tensors in it by view. The key None has a value for any other view of the
        # storage.
        self._memory: dict[int, tuple[ref[torch.UntypedStorage], dict[_ViewKey | None, Value]]] = {}
        self._stopped: dict[str, Node] = {}
        self._thread = get_ident()
        # Autograd's sequence number when each operation was over, and the operations.
        self._numbers = [sequence_number()]
        self._nodes: list[Node | None] = [None]
        # Operations that are only seen in autograd's graph, by their number.
        self._unseen: dict[int, Node] = {}
        # Operations of other threads, and the metadata key under which autograd's nodes have their
        # index.
        self._marked: list[Node] = []
        self._key = f"tbscope {next(_runs)}"

    def look_again(self) -> None:
        """Record that the operations since the last recorded one ran unwatched."""
        if get_ident() == self._thread:
            self._add(None)

    def _add(self, node: Node | None) -> None:
        self._numbers.append(sequence_number())
        self._nodes.append(node)

    def add(
        self, node: Node, read: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
    ) -> None:
        """Record an operation that has run.

        Args:
            node: The operation.
            read: The tensors that it read, which autograd may have saved.
            results: Its results, which autograd may have saved, too.
        """
        if get_ident() == self._thread:
            self._add(node)
        else:
            self._mark(node, read, results)
        for tensor, value in (*zip(read, node.inputs), *zip(results, node.outputs)):  # noqa: B905
            located = self._values_at(tensor)
            if located is None:
                continue
            values, view_key = located
            # A result that the operation computed replaces the values of its memory. An argument or
            # a view has its value recorded only if there is none so far.
            if node.role == "view" or not node.kernels or value.producer is not node:
                values.setdefault(view_key, value)
                values.setdefault(None, value)
            else:
                values[view_key] = values[None] = value

    def add_inside(self, node: Node) -> None:
        """Record an operation inside of a function that autograd does not look into.

        A custom `autograd.Function` is represented by its first operation: autograd has numbered
        the function before, and sees nothing inside.
        """
        if get_ident() == self._thread and sequence_number() > self._numbers[-1]:
            self._add(node)

    def add_unseen(self, function: Any, node: Node) -> None:
        """Record an operation of which only the node in autograd's graph is seen."""
        self._unseen[function._sequence_nr()] = node

    def made(self, function: Any) -> Node | None:
        """Return the operation that made a node of autograd's graph, or None if not recorded."""
        if self._marked and (marked := self._mark_of(function)) is not None:
            return marked
        number = function._sequence_nr()
        if number in self._unseen:
            return self._unseen[number]
        # The first operation that ended with a higher number was running when autograd made the
        # node.
        at = bisect_right(self._numbers, number)
        return self._nodes[at] if at < len(self._nodes) else None

    def _mark(
        self, node: Node, read: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
    ) -> None:
        """Tag autograd's nodes of an operation of another thread, which has its own numbers."""
        stops = {each.grad_fn for each in read}
        pending = [each.grad_fn for each in results if each.grad_fn is not None]
        for function in pending:
            if self._mark_of(function) is not None or accumulates_into(function) is not None:
                continue
            marks: Any = function.metadata
            marks[self._key] = len(self._marked)
            # A written tensor has another node than before: the end of the operation's nodes is
            # unclear.
            if not node.writes:
                before = (each for each, _ in function.next_functions)
                pending += [each for each in before if each is not None and each not in stops]
        self._marked.append(node)

    def _mark_of(self, function: Any) -> Node | None:
        mark = function.metadata.get(self._key)
        return None if mark is None else self._marked[mark]

    # -- saved tensors --------------------------------------------------------------------

    def ended_early(self, node: Node) -> None:
        """Record the operation at which a checkpoint has stopped its recomputation."""
        self._stopped[node.op] = node

    def value_of(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of a tensor that autograd has saved, or None for any other tensor.

        A tensor that only the operation itself has (the mean of a norm) becomes a further output of
        it.
        """
        located = self._values_at(tensor)
        if located is None:
            return None
        values, view_key = located
        value = values.get(view_key) or values.get(None)
        if value is not None:
            return value
        running = running_node()
        node = None if running is None else self.made(running)
        if node is None:
            return None
        unseen = "told_by" in node.attributes
        value = self._saved_by_producer(tensor) if unseen else None
        if value is None and unseen:
            # No operation has made the tensor, and others may save it, too: a target of a loss.
            own: _ViewKey = (node, view_key), *view_key[1:]
            return values.get(own) or values.setdefault(own, add_value(node, tensor))
        if value is None:
            node = self._stopped.get(node.op, node)
            if node.writes or node.body is not None:
                # The outputs of this node are complete, and written tensors come last: another node
                # produces the saved tensor.
                saved_node = self._values.append("saved", node.scope, [], node.source)
                saved_node.control_inputs.append(node)
                node = saved_node
            value = self._values.give(node, tensor)
        values[view_key] = values[None] = value
        return value

    def _saved_by_producer(self, tensor: torch.Tensor) -> Value | None:
        """Return the saved value of an unseen operation; None if its producer is not recorded."""
        saved = producer_of_saved(running_node(), tensor)
        producer = None if saved is None else self.made(saved[0])
        if saved is None or producer is None or saved[1] >= len(producer.outputs):
            return None
        return producer.outputs[saved[1]]

    def _values_at(
        self, tensor: torch.Tensor
    ) -> tuple[dict[_ViewKey | None, Value], _ViewKey] | None:
        """Return the values in a tensor's storage by view, and the key of the tensor's view."""
        try:
            storage = tensor.untyped_storage()
            view_key = tensor.storage_offset(), tensor.shape, tensor.stride()
        except (RuntimeError, NotImplementedError):
            # Nested and sparse tensors have no strides, functorch's no storage.
            return None
        entry = self._memory.get(id(storage))
        if entry is None or entry[0]() is not storage:
            entry = self._memory[id(storage)] = ref(storage), {}
        return entry[1], view_key
