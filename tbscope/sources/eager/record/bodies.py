"""The inside of an operation: its kernels, and which of them read the results of others."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from tbscope.ir.graph import Argument, Body, Constant, Node, Value
from tbscope.sources.eager.record.wrappers import add_value
from tbscope.sources.torch.internals import schema_of
from tbscope.sources.torch.literals import FILLED, Literals, collect_tensors
from tbscope.sources.torch.operations import KernelFacts, is_random, role_of
from tbscope.sources.torch.wrapping import same_storage

__all__ = ["KernelRun", "KernelRuns"]

_DATA = Constant("<data>")
# What reads data that torch has just made of Python's.
_LIFTS = frozenset({"lift_fresh", "lift_fresh_copy", "lift"})


class KernelRun(NamedTuple):
    """One kernel that has run, with its arguments and results; it keeps the tensors alive."""

    facts: KernelFacts
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    flops: int | None = None


class _LostError(Exception):
    """A kernel reads a tensor whose origin was not seen."""


class KernelRuns:
    """The kernels of one operation, as nodes.

    Args:
        node: The operation, before it has outputs.
        runs: Its kernels, in order; empty where what flows between them is not seen.
        outer: Returns the value that a tensor holds outside; None for an unknown tensor.
        read: The tensors among the operation's arguments.
        writers: Returns the operations that have written into the memory of the tensors that
            hold these values; None if no operation has written.
    """

    def __init__(
        self,
        node: Node,
        runs: list[KernelRun],
        *,
        outer: Callable[[torch.Tensor], Value | None],
        read: list[torch.Tensor],
        writers: Callable[[list[torch.Tensor], list[Value]], list[Node]] | None = None,
    ) -> None:
        self._node = node
        self._runs = runs
        self._outer = outer
        self._outer_writers = writers
        # What was there before the operation.
        self._before: list[torch.Tensor] = []
        # By identity: the runs keep these tensors alive.
        self._held: dict[int, Value] = {}
        self._known = [(tensor, node.inputs[place]) for place, tensor in enumerate(read)]
        self._writers: list[tuple[torch.Tensor, Node]] = []
        # Kernels that have given numbers, of which the next one makes use.
        self._numbers: list[Node] = []
        self._nodes: list[Node] = []
        self._order: dict[Node, int] = {}
        try:
            for run in runs:
                self._add(run)
            self._complete = bool(runs)
        except _LostError:
            self._complete = False

    def body(self, results: Iterable[torch.Tensor]) -> Body:
        """Return the body; an empty one where the origin of a tensor could not be seen.

        Args:
            results: The tensor of each output of the operation.
        """
        if not self._complete:
            return Body([], [])
        found = [self._result(tensor) for tensor in results]
        known = [value for value in found if value is not None]
        if len(known) < len(found):
            return Body([], [])
        written = [
            writer
            for tensor, writer in self._writers
            if any(other is tensor or same_storage(other, tensor) for other in self._before)
        ]
        return Body(self._nodes, known, list(dict.fromkeys(written)))

    def given(self, tensor: torch.Tensor) -> Value | None:
        """Return the value that a kernel gave; None for any other tensor."""
        return self._held.get(id(tensor)) if self._complete else None

    def _add(self, run: KernelRun) -> None:
        facts, outer = run.facts, self._node
        inputs: list[Value] = []
        read: list[torch.Tensor] = []
        name = f"{outer.name}.{len(self._nodes)}"
        node = Node(name, facts.label, "op", outer.scope, inputs, kernels=[facts.name])
        node.source = outer.source
        node.flops = run.flops
        if facts.label in _LIFTS and self._value_of(run.args[0]) is None:
            node.arguments = [Argument(None, _DATA)]
        else:
            nest = Literals(self._known_value).nest
            names = _argument_names(facts)
            for place, given in enumerate(run.args):
                named = names[place] if place < len(names) else None
                node.arguments.append(Argument(named, nest(given, read, inputs)))
            for key, given in run.kwargs.items():
                if key in facts.filled and given is not None:
                    # Not read: an edge from it would be invented.
                    node.arguments.append(Argument(key, FILLED))
                    self._before += [
                        one for one in collect_tensors(given, []) if id(one) not in self._held
                    ]
                elif given is not None:
                    node.arguments.append(Argument(key, nest(given, read, inputs)))
        node.control_inputs = self._earlier_writers(read, inputs)
        self._meet(node, read, inputs)
        written = facts.written(run.args, run.kwargs)
        node.role = role_of(node.kernels, reads=bool(inputs))
        node.random = is_random(node.kernels, node.arguments, ())
        node.writes = tuple(
            [at for at, tensor in enumerate(read) if any(tensor is other for other in written)]
        )
        given = {id(tensor) for tensor in read}
        made = [*written, *collect_tensors(run.result, [])]
        told: set[int] = set()
        for tensor in made:
            # What comes out as it went in is no new value, unless it was written into.
            fresh = id(tensor) not in given or any(tensor is other for other in written)
            if fresh and id(tensor) not in told:
                told.add(id(tensor))
                value = add_value(node, tensor)
                self._held[id(tensor)] = value
                self._known.append((tensor, value))
        self._writers += [(tensor, node) for tensor in written]
        if node.outputs:
            node.control_inputs += self._numbers
            self._numbers = []
        else:
            self._numbers.append(node)
        self._order[node] = len(self._nodes)
        self._nodes.append(node)

    def _meet(self, node: Node, read: list[torch.Tensor], values: list[Value]) -> None:
        """Make a kernel wait for the earlier operations that wrote into the tensors it reads."""
        before = [
            (tensor, value)
            for tensor, value in zip(read, values, strict=True)
            if value.producer not in self._order
        ]
        self._before += [tensor for tensor, _ in before]
        if before and self._outer_writers is not None:
            tensors, held = map(list, zip(*before, strict=True))
            node.control_inputs = [*self._outer_writers(tensors, held), *node.control_inputs]

    def _known_value(self, tensor: torch.Tensor) -> Value:
        value = self._value_of(tensor)
        if value is None:
            raise _LostError
        return value

    def _value_of(self, tensor: torch.Tensor) -> Value | None:
        value = self._held.get(id(tensor)) or self._outer(tensor)
        # The operation's own results are known outside by now, and made by a kernel.
        if value is not None and value.producer is not self._node:
            return value
        # It may give back what it read, and autograd may show the same data by another face.
        for other, known in reversed(self._known):
            if _same_layout(other, tensor):
                return known
        return None

    def _earlier_writers(self, read: list[torch.Tensor], values: list[Value]) -> list[Node]:
        """Return the kernels that wrote into the memory of these tensors through another tensor."""
        found: dict[Node, None] = {}
        for tensor, value in zip(read, values, strict=True):
            since = self._order.get(value.producer, -1)
            for other, writer in self._writers:
                if self._order[writer] > since and same_storage(other, tensor):
                    found[writer] = None
        return list(found)

    def _result(self, tensor: torch.Tensor) -> Value | None:
        value = self._held.get(id(tensor))
        if value is not None:
            return value
        for other, writer in reversed(self._writers):
            if other is not tensor and same_storage(other, tensor):
                return add_value(writer, tensor)
        return self._value_of(tensor)


def _argument_names(facts: KernelFacts) -> tuple[str, ...]:
    schema = schema_of(facts.kernel)
    return () if schema is None else tuple(argument.name for argument in schema.arguments)


def _same_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    try:
        return bool(
            one.shape == other.shape
            and one.dtype == other.dtype
            and same_storage(one, other)
            and one.storage_offset() == other.storage_offset()
            and one.stride() == other.stride()
        )
    except (RuntimeError, NotImplementedError):
        # Sparse and nested tensors have no strides.
        return False
