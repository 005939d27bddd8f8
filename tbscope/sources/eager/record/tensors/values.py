"""Current value of each tensor, and the in-place writes that change it.

An in-place write makes a new value: the writing node gets a further output, which replaces the
value in the record of the written tensor (`TensorValues.add_written_outputs`). Other views of the
storage keep their values; an operation that reads such a view later gets the writing node as a
control dependency (`TensorValues.earlier_writers`).
"""

from collections.abc import Callable, Set
from weakref import ref

import torch

from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Argument, Node, Source, Value
from tbscope.ir.scopes import Scope
from tbscope.sources.eager.record.tensors.tensor_table import TensorRecord, TensorTable, add_value
from tbscope.sources.torch.compat.tensors import (
    innermost_transform,
    storage_key,
    without_functions,
)
from tbscope.sources.torch.subclasses import (
    PLAIN,
    Writes,
    shares_storage_with,
    storage_keys,
)


class TensorValues:
    """Current value of each tensor.

    Args:
        builder: The graph builder, through which all nodes are added.

    Attributes:
        builder: The graph builder.
        writes: The in-place writes so far, by storage.
        table: The records of the tensors.
        from_pass: Returns the value of a tensor that came out of a backward pass recorded as one
            operation, or None for any other tensor; the attribute is None if there was no such
            pass.
        of_passes: The values that were made for tensors of these backward passes.
        names: The qualified names of parameters and buffers, by their nodes.
    """

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        self._nodes = builder.graph.nodes
        self._order: dict[Node, int] = {}
        self.table = TensorTable()
        self.writes = Writes()
        self.from_pass: Callable[[torch.Tensor], Value | None] | None = None
        self.of_passes: set[Value] = set()
        self.names: dict[Node, str] = {}

    def find(self, tensor: torch.Tensor) -> Value | None:
        """Return the value last recorded for a tensor, or None for an unknown tensor.

        A result of a backward pass that is one operation gets its value here, at the first request.
        """
        value = self.seen(tensor)
        return value if value is not None or self.from_pass is None else self.from_pass(tensor)

    def seen(self, tensor: torch.Tensor) -> Value | None:
        """Return the value last recorded for a tensor, or None; unlike `find`, add no output."""
        record = self.table.records.get(id(tensor))
        return record.value if record is not None and record.tensor() is tensor else None

    def append(
        self, op: str, scope: Scope | None, inputs: list[Value], source: Source | None = None
    ) -> Node:
        """Append an operation that no mode has seen; `inputs` are its arguments."""
        arguments = [Argument(None, value) for value in inputs]
        return self.builder.append_op(op, scope, inputs, arguments, [], source, [])

    def give(self, node: Node, tensor: torch.Tensor) -> Value:
        """Append an output to a node, and make it the current value of a tensor."""
        value = add_value(node, tensor)
        if type(tensor) in PLAIN and innermost_transform() is None:
            self.table.records[id(tensor)] = TensorRecord(ref(tensor), value)
        else:
            self.table.set_made(tensor, value)
        return value

    def hold(self, tensor: torch.Tensor, value: Value) -> None:
        """Make an existing value the current value of a tensor."""
        if type(tensor) in PLAIN:
            self.table.set_value(tensor, value)
        else:
            self.table.set_made(tensor, value)

    def value_in_same_storage(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of a live tensor with the storage and the shape of this tensor.

        The tensor made last counts. Return None if there is none.
        """
        key, shape = storage_key(tensor), tensor.shape
        found = [
            value
            for candidate, value in (() if key is None else self.table.alive())
            if candidate.shape == shape and storage_key(candidate) == key
        ]
        return max(found, key=self._position, default=None)

    def make(self, node: Node, tensor: torch.Tensor) -> Value:
        """Append an output to a node for a tensor whose inner tensors have values of their own."""
        value = add_value(node, tensor)
        self.table.set_value(tensor, value)
        return value

    def add_written_outputs(
        self,
        node: Node,
        written: list[torch.Tensor],
        results: list[torch.Tensor],
        candidates: list[torch.Tensor],
    ) -> None:
        """Append an output for each tensor that a node wrote into, and record the writes.

        A kernel may write into a temporary view: the new value then belongs to the first argument
        in the same storage. Later reads of the storage through other tensors find the write by
        `earlier_writers`.

        Args:
            node: The node, recorded already, with its results as outputs.
            written: The tensors that its kernels wrote into, maybe views that only the kernel has.
            results: The tensors that it returned.
            candidates: Its arguments, which are tensors of the user's code.
        """
        with_output, arguments = set(map(id, results)), set(map(id, candidates))
        # Under `vmap` or `grad` a kernel writes into an inner tensor; the value that changes is the
        # value of the wrapper.
        hidden = innermost_transform() is not None
        unknown = {id(tensor) for tensor in written if self.find(tensor) is None}
        positions = _first_in_storages(candidates) if hidden or unknown else {}
        for tensor in written:
            target = tensor
            if hidden or id(tensor) in unknown:
                found = [positions[key] for key in storage_keys([tensor]) if key in positions]
                if found:
                    target = candidates[min(found)]
                elif id(tensor) in unknown and id(tensor) not in arguments:
                    continue
            if id(target) not in with_output:
                with_output.add(id(target))
                self.give(node, target)
            elif id(target) not in arguments:
                # The node made and filled this result itself: it replaces no earlier value.
                continue
            value = self.find(target)
            assert value is not None
            self.writes.add(node, self._order_of(node), value, tensor)

    def written_positions(
        self,
        written: list[torch.Tensor],
        read: list[torch.Tensor],
        values: list[Value],
    ) -> tuple[int, ...]:
        """Return the positions among `read` of the tensors that an operation wrote into.

        Args:
            written: The tensors that its kernels wrote into, maybe views of those in `read`.
            read: The tensors that it reads.
            values: Their values, before the operation has outputs.
        """
        if not (written and read):
            return ()
        # All storages at once: a kernel of a whole list writes into as many tensors as it reads.
        keys = storage_keys(written)
        identities = {id(tensor) for tensor in written}
        replaced = {self.find(tensor) for tensor in written}
        return tuple(
            [
                index
                for index, tensor in enumerate(read)
                if shares_storage_with(tensor, keys)
                or id(tensor) in identities
                or values[index] in replaced
            ]
        )

    def tensors_of(
        self, node: Node, results: list[torch.Tensor], written: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return the tensors whose values are the outputs of a node, in order.

        Outputs without a tensor among `written` are skipped.

        Args:
            node: The node.
            results: The tensors that are its first outputs.
            written: Tensors, among them all that the node wrote into.
        """
        tensors = list(results)
        for value in node.outputs[len(results) :]:
            tensors += [tensor for tensor in written if self.find(tensor) is value][:1]
        return tensors

    def earlier_writers(self, read: list[torch.Tensor], values: list[Value]) -> list[Node]:
        """Return the nodes that wrote into the tensors' memory through another tensor, in order.

        These become the control dependencies of an operation that reads the tensors. A write counts
        if it is later than the producer of the tensor's value, and if it overlaps with the tensor.

        Args:
            read: The tensors that are read.
            values: Their values.
        """
        if not self.writes.any:
            return []
        writers: dict[Node, None] = {}
        # Between operations, the modes would see each look at a storage.
        with without_functions():
            for tensor, value in zip(read, values, strict=True):
                for write in self.writes.touching(tensor, self._order_of(value.producer)):
                    writers[write.node] = None
        for value in values:
            # The data edge from the producer is enough.
            writers.pop(value.producer, None)
        return sorted(writers, key=self._order_of)

    def alive(self) -> list[tuple[torch.Tensor, Value]]:
        """Return the live tensors with their values, ordered by producer and output."""
        return sorted(self.table.alive(), key=lambda pair: self._position(pair[1]))

    def _position(self, value: Value) -> tuple[int, int]:
        return self._order_of(value.producer), value.index

    def unread(self, returned: Set[Value] = frozenset()) -> list[torch.Tensor]:
        """Return the live tensors that operations made and no operation reads.

        A backward pass or an optimizer does not count as a reader of a loss, but as one of a
        gradient that the rank has received.

        Args:
            returned: The values that backward passes returned to callers that asked for gradients.
        """
        read = {
            value
            for node in self._nodes
            for value in (node.inputs if node.outputs else ())
            if node.phase == "forward"
            or value.producer.phase != "forward"
            or _is_received(value.producer)
        }

        def is_left(value: Value) -> bool:
            producer = value.producer
            # Tensors that backward passes and optimizers keep internally are no results of a step.
            of_step = producer.kind == "op" and (producer.phase == "forward" or value in returned)
            return of_step and value not in read and value not in self.of_passes

        alive = self.alive()
        # A result of `vmap` is an inner tensor whose wrapper is gone when `vmap` returns.
        alive += self.table.left(read.union(value for _, value in alive))
        return [tensor for tensor, value in alive if is_left(value)]

    def forget(self) -> None:
        """Release all tensors and values after the run."""
        self.table.records.clear()
        self.from_pass = None
        self._order.clear()

    def _order_of(self, node: Node) -> int:
        """Return the position of a node in the recording, counted from 0.

        The table of positions is extended on demand, as few runs need it.
        """
        if self._nodes[-1] is node:
            return len(self._nodes) - 1
        order = self._order
        if node not in order:
            for at in range(len(order), len(self._nodes)):
                order[self._nodes[at]] = at
        return order[node]


def _first_in_storages(tensors: list[torch.Tensor]) -> dict[int, int]:
    """Return the position of the first of some tensors in each storage."""
    positions: dict[int, int] = {}
    for position, tensor in enumerate(tensors):
        for key in storage_keys([tensor]):
            positions.setdefault(key, position)
    return positions


def _is_received(node: Node) -> bool:
    """Whether a node receives a tensor of another rank, or waits for it."""
    sources = [node, *(value.producer for value in node.inputs)] if node.op == "wait" else [node]
    return any(each.collective is not None and each.collective.kind == "recv" for each in sources)
