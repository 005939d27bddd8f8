"""Operations while they run, and the kernels inside of them.

An `Operation` collects the kernels of one torch function; the recorder makes a node of it when the
function returns, and drops it if the function raises. `KernelRuns` turns the kernels of a finished
operation into nodes of its body, where they are wanted: some kernels read results of other kernels.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, NamedTuple

import torch

from tbscope.ir.graph import Argument, Body, Constant, Node, Value
from tbscope.sources.eager.record.backward_io import InnerPass
from tbscope.sources.eager.record.values import TensorValues, add_value
from tbscope.sources.torch.calling.argument_values import FILLED, ArgumentConverter, collect_tensors
from tbscope.sources.torch.collectives import Exchange
from tbscope.sources.torch.compat.tensors import schema_of
from tbscope.sources.torch.flops import Copies, Formulas, KernelWork
from tbscope.sources.torch.operations import KernelInfo, is_random, role_of
from tbscope.sources.torch.subclasses import same_storage

__all__ = ["Communication", "KernelRuns", "Operation", "Operations"]

_DATA = Constant("<data>")
# Kernels that read a tensor which torch has just made from Python data.
_LIFTS = frozenset({"lift_fresh", "lift_fresh_copy", "lift"})


class _KernelRun(NamedTuple):
    """One kernel that has run, with its arguments and results; it keeps the tensors alive."""

    facts: KernelInfo
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    flops: int | None


class Communication(NamedTuple):
    """One kernel that has communicated with other ranks.

    Attributes:
        exchange: How the kernel communicates.
        kernel: The kernel.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        result: Its return value.
    """

    exchange: Exchange
    kernel: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


# Shared by all operations; never appended to.
_NOTHING: list[Any] = []


class Operation:
    """One operation while it runs.

    Args:
        operations: The operations of the run.

    Attributes:
        kernels: The names of its ATen kernels so far.
        work: The work of those kernels that have a FLOPs formula.
        runs: The arguments and results of the kernels, or None if they are not recorded.
        copies: The copies that were made inside of it.
        written: The tensors that its kernels wrote into.
        given: The tensors returned by the functions that it called (`cond`, `scan`).
        turns: For each call of these functions the number of nodes before it, and its results.
        told: Whether its work is in the graph already (a backward pass).
        fed: The results of collectives that ran inside of it, and the parameters and buffers of the
            modules that were called inside of it.
        joined: Its communication with other ranks, by kernel.
        passing: The backward pass that it runs; None if it runs none, or if the operations of the
            pass are in the graph.
    """

    # Defaults of the class: few operations need these, and an instance is made even for a query of
    # a size.
    runs: list[_KernelRun] | None = None
    copies: Copies | None = None
    given: Sequence[torch.Tensor] = ()
    turns: Sequence[tuple[int, list[torch.Tensor]]] = ()
    fed: Sequence[torch.Tensor] = ()
    joined: Sequence[Communication] = ()
    passing: InnerPass | None = None
    told = False

    def __init__(self, operations: "Operations") -> None:
        self._operations = operations
        self.kernels: list[str] = []
        # The first entry replaces these by lists of the operation's own.
        self.work: list[KernelWork] = _NOTHING
        self.written: list[torch.Tensor] = _NOTHING
        if operations.keep_runs:
            self.runs = []

    def feed(self, tensors: Iterable[torch.Tensor]) -> None:
        """Add tensors that are read inside of the operation, each of them once."""
        self.fed = [*{id(tensor): tensor for tensor in (*self.fed, *tensors)}.values()]

    def run(self, facts: KernelInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one kernel of the operation, record its effects, and return its result."""
        if facts.writes:
            written, about_to_write = facts.written(args, kwargs), self._operations.about_to_write
            # Before the kernel runs: a snapshot needs the content from before the write.
            if about_to_write is not None:
                for tensor in written:
                    about_to_write(tensor)
            self.written = [*self.written, *written]
        formulas = self._operations.formulas
        formula, copies = formulas[facts], self.copies
        self.kernels.append(facts.name)
        if self.passing is not None:
            self.passing.reads((args, kwargs))
        result = facts.kernel(*args, **kwargs)
        if self.passing is not None:
            self.passing.makes(result)
        if facts.exchange is not None:
            self.joined = (
                *self.joined,
                Communication(facts.exchange, facts.kernel, args, kwargs, result),
            )
        if facts.copies:
            copies = self.copies = copies or Copies()
            copies.add(args[0], result)
        elif copies and facts.makes_tensor:
            copies.forget(result)
        if formula is not None:
            try:
                work = formula(args, kwargs, result)
            except Exception as error:  # noqa: BLE001 (a formula may be the user's code)
                formulas.fail(facts, error)
            else:
                self.work = [*self.work, copies.trace(work) if copies else work]
        if self.runs is not None:
            counted = facts.name not in formulas.uncounted
            flops = (self.work[-1][0] if formula is not None else 0) if counted else None
            self.runs.append(_KernelRun(facts, args, kwargs, result, flops))
        return result


class Operations:
    """The operations of a run: at most one runs, but a function that it calls may run others.

    Args:
        uncounted: Receives each kernel that computes and has no FLOPs formula, with the reason.
        keep_runs: Whether arguments and results of kernels are kept, to make nodes of them.

    Attributes:
        running: The innermost running operation; None between operations, and in a function that an
            operation calls, until that function calls another operation.
        idle: A finished operation without kernels, for reuse; None if there is none.
        formulas: The FLOPs formula of each kernel seen so far.
        about_to_write: Called with each tensor that a kernel is about to write into; None for no
            call.
    """

    def __init__(self, uncounted: dict[str, str], *, keep_runs: bool) -> None:
        self.running: Operation | None = None
        self.idle: Operation | None = None
        self.formulas = Formulas(uncounted)
        self.keep_runs = keep_runs
        self.about_to_write: Callable[[torch.Tensor], None] | None = None

    def branch(self) -> "Operations":
        """Return the operations that another thread runs at the same time."""
        branch = copy(self)
        branch.running = branch.idle = None
        return branch

    def begin(self) -> Operation:
        """Start a new operation, and return it."""
        self.running = operation = Operation(self)
        return operation

    def end(self) -> None:
        """Mark the running operation as finished."""
        self.running = None

    @contextmanager
    def function(self, at: int = 0) -> Iterator[Callable[[Any], None]]:
        """Record the operations of a function that the running operation calls, as separate nodes.

        Args:
            at: The number of nodes in the graph.
        Returns:
            A callable that takes the result of the function.
        """
        caller, self.running = self.running, None

        def take(result: object) -> None:
            if caller is not None:
                results = collect_tensors(result, [])
                caller.given = [*caller.given, *results]
                caller.turns = [*caller.turns, (at, results)]

        try:
            yield take
        finally:
            if caller is not None:
                # Storages of copies may have other contents by now.
                caller.copies = None
            self.running = caller


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
        self, node: Node, runs: list[_KernelRun], outer: TensorValues, read: list[torch.Tensor]
    ) -> None:
        self._node = node
        self._outer = outer
        # Tensors that existed before the operation.
        self._before: list[torch.Tensor] = []
        # By identity, which is unique, as the runs keep these tensors alive.
        self._held: dict[int, Value] = {}
        self._known = [(tensor, node.inputs[place]) for place, tensor in enumerate(read)]
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
            if any(other is tensor or same_storage(other, tensor) for other in self._before)
        ]
        return Body(list(self._order), values, list(dict.fromkeys(written)))

    def given(self, tensor: torch.Tensor) -> Value | None:
        """Return the value that a kernel produced as a tensor, or None for any other tensor."""
        return self._held.get(id(tensor)) if self._complete else None

    def _add(self, run: _KernelRun) -> None:
        """Append the node of one kernel, and record its results as values."""
        facts, outer = run.facts, self._node
        inputs: list[Value] = []
        read: list[torch.Tensor] = []
        name = f"{outer.name}.{len(self._order)}"
        node = Node(name, facts.label, "op", outer.scope, inputs, kernels=[facts.name])
        node.source = outer.source
        node.flops = run.flops
        if facts.label in _LIFTS and self._value_of(run.args[0]) is None:
            node.arguments = [Argument(None, _DATA)]
        else:
            to_tree = ArgumentConverter(self._known_value).nest
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
                        each for each in collect_tensors(arg, []) if id(each) not in self._held
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
                self._held[identity] = value = add_value(node, tensor)
                self._known.append((tensor, value))
        self._writers += [(tensor, node) for tensor in written]
        if node.outputs:
            node.control_inputs += self._numbers
            self._numbers = []
        else:
            self._numbers.append(node)
        self._order[node] = len(self._order)

    def _known_value(self, tensor: torch.Tensor) -> Value:
        value = self._value_of(tensor)
        if value is None:
            raise _LostError
        return value

    def _value_of(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of a tensor that a kernel reads, or None for an unknown tensor."""
        value = self._held.get(id(tensor)) or self._outer.seen(tensor)
        # The operation's own outputs may be registered by now, but one of its kernels produces
        # them.
        if value is not None and value.producer is not self._node:
            return value
        # The operation may return its argument, and autograd may pass the same memory as another
        # tensor object.
        for other, known in reversed(self._known):
            if _same_layout(other, tensor):
                return known
        return None

    def _earlier_writers(self, read: list[torch.Tensor], values: list[Value]) -> list[Node]:
        """Return the kernels that wrote into the memory of these tensors through another tensor."""
        writers: dict[Node, None] = {}
        for tensor, value in zip(read, values, strict=True):
            since = self._order.get(value.producer, -1)
            for other, writer in self._writers:
                if self._order[writer] > since and same_storage(other, tensor):
                    writers[writer] = None
        return list(writers)

    def _result(self, tensor: torch.Tensor) -> Value:
        """Return the value of a result of the operation.

        It is an output of a kernel; or a new output of the last kernel that wrote into the storage
        of the result through another tensor; or a value that the operation read.
        """
        value = self._held.get(id(tensor))
        if value is not None:
            return value
        for other, writer in reversed(self._writers):
            if other is not tensor and same_storage(other, tensor):
                return add_value(writer, tensor)
        return self._known_value(tensor)


def _same_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same view of one storage."""
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
