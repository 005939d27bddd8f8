"""What autograd has saved: which value it is, and what an operation alone knows."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import ref

import torch

from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Node, Value
from tbscope.sources.eager.record.values import TensorValues
from tbscope.sources.torch.autograd import maker_of_saved, running_node

__all__ = ["Saved"]

# The offset, the shape and the strides of a tensor in its storage.
_Place = tuple[Any, torch.Size, tuple[int, ...]]


class _Memory(NamedTuple):
    """What is known of a storage.

    Attributes:
        storage: The storage, held weakly: another one may come to stand where it stood.
        values: The value that was first seen in it, and those of the tensors in it by place.
    """

    storage: ref[torch.UntypedStorage]
    values: dict[_Place | None, Value]


class Saved:
    """Knows the values of what autograd saves: of a result it is another tensor in the same memory.

    Args:
        builder: The door to the graph.
        values: The values that tensors hold.
        made: Returns the operation that made a node of autograd's graph; None for none known.
    """

    def __init__(
        self, builder: GraphBuilder, values: TensorValues, made: Callable[[Any], Node | None]
    ) -> None:
        self._builder = builder
        self._give = values.give
        self._made = made
        self._memory: dict[int, _Memory] = {}
        self._stopped: dict[str, Node] = {}

    def hold(
        self, node: Node, read: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
    ) -> None:
        """Take note of what an operation has read and given, which autograd may have saved."""
        for tensor, value in (*zip(read, node.inputs), *zip(results, node.outputs)):  # noqa: B905
            found = _storage_of(tensor)
            if found is None:
                continue
            storage, place = found
            values = self._values_in(storage)
            if node.role == "view" or not node.kernels or value.producer is not node:
                values.setdefault(place, value)
                values.setdefault(None, value)
            else:
                values[place] = values[None] = value

    def ended_early(self, node: Node) -> None:
        """Take note of an operation after which a checkpoint has stopped to run the model again."""
        self._stopped[node.op] = node

    def value_of(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of a tensor that autograd has saved; None for any other.

        What the operation alone knows (the mean of a norm) becomes a further result of it.
        """
        found = _storage_of(tensor)
        if found is None:
            return None
        storage, place = found
        values = self._values_in(storage)
        value = values.get(place) or values.get(None)
        if value is None:
            node = self._maker_of_running()
            if node is not None:
                value = self._told(node, tensor)
                if value is None:
                    node = self._stopped.get(node.op, node)
                    value = self._give(self._keeper(node), tensor)
                values[place] = values[None] = value
        return value

    def _told(self, node: Node, tensor: torch.Tensor) -> Value | None:
        """Return what an operation has saved which nobody saw; None where that is not known."""
        found = maker_of_saved(running_node(), tensor) if "told_by" in node.attributes else None
        maker = None if found is None else self._made(found[0])
        if found is None or maker is None or found[1] >= len(maker.outputs):
            return None
        return maker.outputs[found[1]]

    def _values_in(self, storage: torch.UntypedStorage) -> dict[_Place | None, Value]:
        """Return the values that are known to be in a storage."""
        known = self._memory.get(id(storage))
        if known is None or known.storage() is not storage:
            known = self._memory[id(storage)] = _Memory(ref(storage), {})
        return known.values

    def _keeper(self, node: Node) -> Node:
        """Return who gives what an operation has saved: it, where its results come last."""
        if not node.writes and node.body is None:
            return node
        return self._builder.append_op("saved", node.scope, [], [], [node], node.source, [])

    def _maker_of_running(self) -> Node | None:
        """Return the operation whose gradient is computed now; None for none known."""
        running = running_node()
        return None if running is None else self._made(running)


def _storage_of(tensor: torch.Tensor) -> tuple[torch.UntypedStorage, _Place] | None:
    try:
        storage = tensor.untyped_storage()
        return storage, (tensor.storage_offset(), tensor.shape, tensor.stride())
    except (RuntimeError, NotImplementedError):
        # Nested and sparse tensors have no strides, functorch's no storage.
        return None
