"""Bodies of operations: the kernels of a finished operation, as nodes.

Some kernels read results of other kernels of the operation; all other tensors have values outside.
"""

from collections.abc import Iterable

import torch

from tbscope.ir.graph import Argument, Body, Constant, Node, Value
from tbscope.sources.eager.record.operation import KernelRun
from tbscope.sources.eager.record.tensors.tensor_table import add_value
from tbscope.sources.eager.record.tensors.values import TensorValues
from tbscope.sources.torch.calling.argument_values import FILLED, ArgumentConverter, collect_tensors
from tbscope.sources.torch.compat.tensors import schema_of
from tbscope.sources.torch.operations import is_random, role_of
from tbscope.sources.torch.subclasses import same_storage

_DATA = Constant("<data>")
# Kernels that read a tensor which torch has just made from Python data.
_LIFTS = frozenset({"lift_fresh", "lift_fresh_copy", "lift"})


class _LostError(Exception):
    """A kernel reads a tensor whose origin was not seen."""


class KernelRuns:
    """The kernels of one operation, as nodes.

    Args:
        node: The operation, before it has outputs.
        runs: Its kernels, in order; empty if the edges between them cannot be seen.
        outer: The values of tensors outside of the operation.
        read: The tensors among the operation's arguments.
    """

    def __init__(
        self, node: Node, runs: list[KernelRun], outer: TensorValues, read: list[torch.Tensor]
    ) -> None:
        self._node = node
        self._outer = outer
        # Tensors that existed before the operation.
        self._before: list[torch.Tensor] = []
        # By identity, which is unique, as the runs keep these tensors alive.
        self._values: dict[int, Value] = {}
        self._known = [(tensor, node.inputs[index]) for index, tensor in enumerate(read)]
        self._writers: list[tuple[torch.Tensor, Node]] = []
        # Kernels that returned numbers; the next kernel makes use of these, and depends on them.
        self._numbers: list[Node] = []
        # The kernels in order, each with its position.
        self._order: dict[Node, int] = {}
        try:
            for run in runs:
                self._add(run)
            self._complete = bool(runs)
        except _LostError:
            self._complete = False

    def body(self, results: Iterable[torch.Tensor]) -> Body:
        """Return the body; it is empty if the origin of a tensor could not be seen.

        Args:
            results: The tensor of each output of the operation.
        """
        if not self._complete:
            return Body([], [])
        try:
            values = [self._result(tensor) for tensor in results]
        except _LostError:
            return Body([], [])
        written = [
            writer
            for tensor, writer in self._writers
            if any(earlier is tensor or same_storage(earlier, tensor) for earlier in self._before)
        ]
        return Body(list(self._order), values, list(dict.fromkeys(written)))

    def value_of(self, tensor: torch.Tensor) -> Value | None:
        """Return the value that a kernel produced as a tensor, or None for any other tensor."""
        return self._values.get(id(tensor)) if self._complete else None

    def _add(self, run: KernelRun) -> None:
        """Append the node of one kernel, and record its results as values."""
        facts, outer = run.facts, self._node
        inputs: list[Value] = []
        read: list[torch.Tensor] = []
        name = f"{outer.name}.{len(self._order)}"
        node = Node(name, facts.label, "op", outer.scope, inputs, kernels=[facts.name])
        node.source = outer.source
        node.flops = run.flops
        if facts.label in _LIFTS and self._seen_value(run.args[0]) is None:
            node.arguments = [Argument(None, _DATA)]
        else:
            to_tree = ArgumentConverter(self._required_value).nest
            schema = schema_of(facts.kernel)
            names = [argument.name for argument in schema.arguments] if schema else []
            for index, arg in enumerate(run.args):
                param = names[index] if index < len(names) else None
                node.arguments.append(Argument(param, to_tree(arg, read, inputs)))
            for key, arg in run.kwargs.items():
                if key in facts.filled and arg is not None:
                    # The tensor is only filled: an edge from it would show a read that never
                    # happens.
                    node.arguments.append(Argument(key, FILLED))
                    self._before += [
                        each for each in collect_tensors(arg, []) if id(each) not in self._values
                    ]
                elif arg is not None:
                    node.arguments.append(Argument(key, to_tree(arg, read, inputs)))
        outside = [at for at, value in enumerate(inputs) if value.producer not in self._order]
        before = [read[at] for at in outside]
        self._before += before
        # Control dependencies: earlier operations that wrote into the memory it reads, then kernels
        # of this operation that did.
        node.control_inputs = self._outer.earlier_writers(before, [inputs[at] for at in outside])
        node.control_inputs += self._earlier_writers(read, inputs)
        written = facts.written(run.args, run.kwargs)
        changed = {id(tensor) for tensor in written}
        node.role = role_of(node.kernels, reads=bool(inputs))
        node.random = is_random(node.kernels, node.arguments, ())
        node.writes = tuple([at for at, tensor in enumerate(read) if id(tensor) in changed])
        # An argument that is returned has no new value, unless the kernel wrote into it.
        same = {id(tensor) for tensor in read} - changed
        produced = {id(tensor): tensor for tensor in (*written, *collect_tensors(run.result, []))}
        for identity, tensor in produced.items():
            if identity not in same:
                self._values[identity] = value = add_value(node, tensor)
                self._known.append((tensor, value))
        self._writers += [(tensor, node) for tensor in written]
        if node.outputs:
            node.control_inputs += self._numbers
            self._numbers = []
        else:
            self._numbers.append(node)
        self._order[node] = len(self._order)

    def _required_value(self, tensor: torch.Tensor) -> Value:
        value = self._seen_value(tensor)
        if value is None:
            raise _LostError
        return value

    def _seen_value(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of a tensor that a kernel reads, or None for an unknown tensor."""
        value = self._values.get(id(tensor)) or self._outer.seen(tensor)
        # The operation's own outputs may be registered by now, but one of its kernels produces
        # them.
        if value is not None and value.producer is not self._node:
            return value
        # The operation may return its argument, and autograd may pass the same memory as another
        # tensor object.
        for known_tensor, known in reversed(self._known):
            if _same_layout(known_tensor, tensor):
                return known
        return None

    def _earlier_writers(self, read: list[torch.Tensor], values: list[Value]) -> list[Node]:
        """Return the kernels that wrote into the memory of these tensors through another tensor."""
        writers: dict[Node, None] = {}
        for tensor, value in zip(read, values, strict=True):
            since = self._order.get(value.producer, -1)
            for written, writer in self._writers:
                if self._order[writer] > since and same_storage(written, tensor):
                    writers[writer] = None
        return list(writers)

    def _result(self, tensor: torch.Tensor) -> Value:
        """Return the value of a result of the operation.

        It is an output of a kernel; or a new output of the last kernel that wrote into the storage
        of the result through another tensor; or a value that the operation read.
        """
        value = self._values.get(id(tensor))
        if value is not None:
            return value
        for written, writer in reversed(self._writers):
            if written is not tensor and same_storage(written, tensor):
                return add_value(writer, tensor)
        return self._required_value(tensor)


def _same_layout(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors are the same view of one storage."""
    try:
        return bool(
            left.shape == right.shape
            and left.dtype == right.dtype
            and same_storage(left, right)
            and left.storage_offset() == right.storage_offset()
            and left.stride() == right.stride()
        )
    except (RuntimeError, NotImplementedError):
        # Sparse and nested tensors have no strides.
        return False
