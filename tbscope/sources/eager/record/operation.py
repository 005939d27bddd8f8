"""Operations in flight: what their kernels did, until each is over and becomes a node.

An operation that fails is gone with all that was noted of it. The kernels of one that is over are
nodes themselves where they are asked for: of these, some read the results of others.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, NamedTuple

import torch

from tbscope.ir.graph import Argument, Body, Constant, Node, Value
from tbscope.sources.eager.record.backward_io import Passing
from tbscope.sources.eager.record.values import TensorValues, add_value
from tbscope.sources.torch.calling.argument_values import FILLED, Literals, collect_tensors
from tbscope.sources.torch.collectives import Exchange
from tbscope.sources.torch.compat.tensors import schema_of
from tbscope.sources.torch.flops import Copies, Formulas, KernelWork
from tbscope.sources.torch.operations import KernelFacts, is_random, role_of
from tbscope.sources.torch.subclasses import same_storage

__all__ = ["Joined", "KernelRuns", "Operation", "Operations"]

_DATA = Constant("<data>")
# What reads data that torch has just made of Python's.
_LIFTS = frozenset({"lift_fresh", "lift_fresh_copy", "lift"})


class _KernelRun(NamedTuple):
    """One kernel that has run, with its arguments and results; it keeps the tensors alive."""

    facts: KernelFacts
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    flops: int | None


class Joined(NamedTuple):
    """One kernel that has communicated with other ranks.

    Attributes:
        exchange: How it does.
        kernel: The kernel.
        args: What it was given by position.
        kwargs: What it was given by name.
        result: What it gave.
    """

    exchange: Exchange
    kernel: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


# Nobody adds to this one.
_NOTHING: list[Any] = []


class Operation:
    """One operation while it runs.

    Args:
        operations: All that run.

    Attributes:
        kernels: Its ATen kernels so far, by name.
        work: The work of those kernels that have a FLOPs formula.
        runs: The arguments and results of the kernels; None where they are not recorded.
        copies: The copies that were made inside of it.
        written: The tensors that its kernels wrote into.
        given: The tensors returned by the functions that it ran (`cond`, `scan`).
        turns: For each of these functions how many nodes there were before, and what it gave.
        told: Whether what it did is in the graph already (a backward pass).
        fed: What collectives gave that ran inside of it, and what the modules hold that did.
        joined: What it did together with other ranks: how, and the kernel that did it.
        passing: The backward pass that it runs; None where that is in the graph already, or none.
    """

    # Few operations have these; one is made for every question for a size, too.
    runs: list[_KernelRun] | None = None
    copies: Copies | None = None
    given: Sequence[torch.Tensor] = ()
    turns: Sequence[tuple[int, list[torch.Tensor]]] = ()
    fed: Sequence[torch.Tensor] = ()
    joined: Sequence[Joined] = ()
    passing: Passing | None = None
    told = False

    def __init__(self, operations: "Operations") -> None:
        self._operations = operations
        self.kernels: list[str] = []
        # Lists of its own only once they hold something.
        self.work: list[KernelWork] = _NOTHING
        self.written: list[torch.Tensor] = _NOTHING
        if operations.keep_runs:
            self.runs = []

    def feed(self, tensors: Iterable[torch.Tensor]) -> None:
        """Take note of tensors that are read inside of it, each of them once."""
        self.fed = [*{id(tensor): tensor for tensor in (*self.fed, *tensors)}.values()]

    def run(self, facts: KernelFacts, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one of its kernels, note what it did, and return its result."""
        if facts.writes:
            written, about_to_write = facts.written(args, kwargs), self._operations.about_to_write
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
            self.joined = (*self.joined, Joined(facts.exchange, facts.kernel, args, kwargs, result))
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
    """The operations of a run: at most one runs, but inside of it may run functions with others.

    Args:
        uncounted: Where each kernel is told that computes and has no FLOPs formula.
        keep_runs: Whether what kernels were given and gave is kept, to make nodes of them.

    Attributes:
        running: The innermost one that runs; None between operations, and in a function that
            one of them runs, until that calls another.
        idle: One that is over and in which no kernel ran, to be used again; None for none.
        formulas: The FLOPs formula of each kernel that was met.
        about_to_write: Told of each tensor that a kernel is about to write into.
    """

    def __init__(self, uncounted: dict[str, str], *, keep_runs: bool) -> None:
        self.running: Operation | None = None
        self.idle: Operation | None = None
        self.formulas = Formulas(uncounted)
        self.keep_runs = keep_runs
        self.about_to_write: Callable[[torch.Tensor], None] | None = None

    def branch(self) -> "Operations":
        """Return those that another thread runs at the same time."""
        branch = copy(self)
        branch.running = branch.idle = None
        return branch

    def begin(self) -> Operation:
        """Return a new operation, which runs from now on."""
        self.running = operation = Operation(self)
        return operation

    def end(self) -> None:
        """Have no operation run: the one that did is over."""
        self.running = None

    @contextmanager
    def function(self, at: int = 0) -> Iterator[Callable[[Any], None]]:
        """Watch a function that the running operation was given: its operations are their own.

        Args:
            at: How many nodes the graph has.
        Returns:
            Takes what the function gave.
        """
        outer, self.running = self.running, None

        def take(result: Any) -> None:
            if outer is not None:
                results = collect_tensors(result, [])
                outer.given = [*outer.given, *results]
                outer.turns = [*outer.turns, (at, results)]

        try:
            yield take
        finally:
            if outer is not None:
                # Storages that held copies may hold something else by now.
                outer.copies = None
            self.running = outer


class _LostError(Exception):
    """A kernel reads a tensor whose origin was not seen."""


class KernelRuns:
    """The kernels of one operation, as nodes.

    Args:
        node: The operation, before it has outputs.
        runs: Its kernels, in order; empty where what flows between them is not seen.
        outer: The values that tensors hold outside.
        read: The tensors among the operation's arguments.
    """

    def __init__(
        self, node: Node, runs: list[_KernelRun], outer: TensorValues, read: list[torch.Tensor]
    ) -> None:
        self._node = node
        self._outer = outer
        # What was there before the operation.
        self._before: list[torch.Tensor] = []
        # By identity: the runs keep these tensors alive.
        self._held: dict[int, Value] = {}
        self._known = [(tensor, node.inputs[place]) for place, tensor in enumerate(read)]
        self._writers: list[tuple[torch.Tensor, Node]] = []
        # Kernels that have given numbers, of which the next one makes use.
        self._numbers: list[Node] = []
        # The kernels in order, each with its number.
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
        try:
            found = [self._result(tensor) for tensor in results]
        except _LostError:
            return Body([], [])
        written = [
            writer
            for tensor, writer in self._writers
            if any(other is tensor or same_storage(other, tensor) for other in self._before)
        ]
        return Body(list(self._order), found, list(dict.fromkeys(written)))

    def given(self, tensor: torch.Tensor) -> Value | None:
        """Return the value that a kernel gave; None for any other tensor."""
        return self._held.get(id(tensor)) if self._complete else None

    def _add(self, run: _KernelRun) -> None:
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
            nest = Literals(self._known_value).nest
            schema = schema_of(facts.kernel)
            names = [argument.name for argument in schema.arguments] if schema else []
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
        met = [at for at, value in enumerate(inputs) if value.producer not in self._order]
        before = [read[at] for at in met]
        self._before += before
        # It waits for the earlier operations that wrote into what it reads, and for such kernels.
        node.control_inputs = self._outer.earlier_writers(before, [inputs[at] for at in met])
        node.control_inputs += self._earlier_writers(read, inputs)
        written = facts.written(run.args, run.kwargs)
        changed = {id(tensor) for tensor in written}
        node.role = role_of(node.kernels, reads=bool(inputs))
        node.random = is_random(node.kernels, node.arguments, ())
        node.writes = tuple([at for at, tensor in enumerate(read) if id(tensor) in changed])
        # What comes out as it went in is no new value, unless it was written into.
        same = {id(tensor) for tensor in read} - changed
        made = {id(tensor): tensor for tensor in (*written, *collect_tensors(run.result, []))}
        for identity, tensor in made.items():
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
        value = self._held.get(id(tensor)) or self._outer.seen(tensor)
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

    def _result(self, tensor: torch.Tensor) -> Value:
        value = self._held.get(id(tensor))
        if value is not None:
            return value
        for other, writer in reversed(self._writers):
            if other is not tensor and same_storage(other, tensor):
                return add_value(writer, tensor)
        return self._known_value(tensor)


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
