"""Dataflow: the nodes of operations, the values that they read, and those that they produce.

`Dataflow.add_operation` makes the node of an operation that has run, in this order: the values of
the tensor arguments (`TensorSources.value_of`), the scope and the call site
(`CallSites.of_operation`), control dependencies on earlier in-place writes
(`TensorValues.earlier_writers`), the node, its results as outputs, and new values for the tensors
that it wrote into (`TensorValues.add_written_outputs`). The arguments come first because a write
replaces the value of its tensor.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from tbscope.analysis.notes import DataRead
from tbscope.ir.graph import Argument, Node, Value
from tbscope.sources.eager.record.call_site import CallSites
from tbscope.sources.eager.record.kernel_bodies import KernelRuns
from tbscope.sources.eager.record.operation import Operation, Operations
from tbscope.sources.eager.record.ranks import Ranks, is_bookkeeping
from tbscope.sources.eager.record.scope_stack import Failures, ScopeStack
from tbscope.sources.eager.record.tensor_sources import TensorSources
from tbscope.sources.eager.record.tensors.backward_io import (
    InnerPass,
    InnerPassResults,
    without_ancestors,
)
from tbscope.sources.eager.record.tensors.values import TensorValues
from tbscope.sources.torch.calling.argument_values import (
    FILLED,
    ArgumentConverter,
    all_among,
    collect_tensors,
)
from tbscope.sources.torch.compat.compiler import differs_when_compiled
from tbscope.sources.torch.compat.tensors import in_forward_mode, without_functions
from tbscope.sources.torch.distributed import ASYNC_WRAPPERS, exchange_of, is_of_c10d
from tbscope.sources.torch.operations import (
    LOOP_OPERATORS,
    RANDOM,
    READS,
    UNSEEN_DETACH,
    KernelInfo,
    add_signature,
    is_random,
    role_of,
)
from tbscope.sources.torch.subclasses import PLAIN, same_storage
from tbscope.utils.warning import warn

if TYPE_CHECKING:
    from tbscope.sources.eager.record.training.training import Training


_OTHER_NUMBERS = (
    "tbscope records compiled code, which runs as it was written for that: its random operations "
    "(dropout) draw other numbers than compiled ones, so that the losses from here on are others "
    "than without the recording; to keep them, draw the model by writer.add_graph(model, input, "
    "training=True, loss=..., backward=True), which puts random numbers back, or record before "
    "torch.compile; with inductor, or set torch._inductor.config.fallback_random = True before it"
)

_SHARES_MEMORY = frozenset({"numpy", "array", "dlpack"})

argument = partial(tuple.__new__, Argument)
"""Returns `Argument(name, nest)`, in a third of the time."""


class Dataflow:
    """The operations of one run, as nodes of its graph.

    Args:
        scopes: The open scopes.
        where: The search for call sites.
        values: The values of tensors.
        sources: The search for the value of any tensor.
        operations: The running operation, and its enclosing operations.

    Attributes:
        builder: The graph builder.
        graph: The graph recorded so far.
        scopes: As the argument.
        where: As the argument.
        values: As the argument.
        sources: As the argument.
        operations: As the argument.
        value_of: Returns the current value of a tensor; a new value for a tensor not seen before.
        nest: Returns a pytree with values in place of its tensors.
        nests: The same for each of several pytrees.
        passes: The results of backward passes that are one operation each.
        reads: The reads of contents by Python.
        failed: The operations that raised the latest errors.
        training: The backward passes and optimizer steps; None if they are no part of the graph.
        ranks: The communication with other ranks; None if the process has none.
    """

    def __init__(
        self,
        scopes: ScopeStack,
        where: CallSites,
        values: TensorValues,
        sources: TensorSources,
        operations: Operations,
    ) -> None:
        self.builder = values.builder
        self.graph = self.builder.graph
        self.scopes, self.where, self.values = scopes, where, values
        self.operations = operations
        self.passes = InnerPassResults(values, sources.name_of_leaf)
        self.reads = list[DataRead]()
        self.failed = Failures[Node]()
        self.training: Training | None = None
        self.find_by(sources)
        self.ranks = Ranks(values, scopes.registry) if sources.distributed else None
        self._warned_of_numbers = False

    def find_by(self, sources: TensorSources) -> None:
        """Find the values of tensors by this search."""
        self.sources = sources
        self.value_of = sources.value_of
        converter = ArgumentConverter(sources.value_of, sources.lying_in)
        self.nest, self.nests = converter.nest, converter.nests

    def forget(self) -> None:
        """Release all tensors and modules after the run."""
        self.values.forget()
        self.sources.forget()
        self.passes.pending.clear()
        self.reads.clear()
        self.scopes.forget()
        self.training = self.ranks = None

    # -- operations ---------------------------------------------------------------------

    def add_operation(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        operation: Operation,
        frame: FrameType | None,
    ) -> Node | None:
        """Record one operation that has run; return its node, or None if it has no node.

        Args:
            name: Its name in the graph.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            result: Its return value.
            operation: The record of its kernels.
            frame: The Python frame that called it; None if no Python frame did.
        """
        results = [result] if type(result) in PLAIN else collect_tensors(result, [])
        ranks, training = self.ranks, self.training
        # The operations of a recorded backward pass are in the graph already, and those that torch
        # runs for its bookkeeping between ranks are not the model's.
        if operation.recorded or (
            ranks is not None and not operation.joined and is_bookkeeping(frame)
        ):
            return None
        if training is not None:
            training.operation_begins(frame)
        written, kernels = operation.written, operation.kernels
        # Most operations compute a tensor.
        if not written and not (kernels and results and ranks is None):
            seen = self._kernels_without_write(name, args, kwargs, result, operation, results)
            if seen is None:
                if not results and args:
                    self.add_read(name, args[0], frame)
                return None
            kernels = seen
        unseen: list[torch.Tensor] = []
        if operation.joined:
            # A buffer that a collective only fills is no input.
            args, kwargs = self.sources.without_filled(operation.joined, (args, kwargs), unseen)
        arguments, read, values = self._arguments(args, kwargs, fills=bool(written))
        out = collect_tensors(kwargs["out"], []) if written and "out" in kwargs else []
        if operation.returned or operation.fed:
            self._read_inner(name, operation, read, values)
        site, tensor_values = self.where.of_operation(frame), self.values
        if training is not None:
            site = training.site_of(site, frame, read, values)
        scope, source, run, step = site
        writers = tensor_values.earlier_writers(read, values) if tensor_values.writes.any else []
        node = self.builder.append_op(name, scope, values, arguments, writers, source, kernels)
        passing = operation.passing
        if passing is not None:
            # The tensors that the backward pass read become inputs, too, unless an argument was
            # made from them.
            node.inputs += without_ancestors(passing.read, values)
        node.run, node.step = run, step
        node.role = role_of(kernels, reads=bool(values))
        if not RANDOM.isdisjoint(kernels):
            self._mark_random(node, frame)
        if written:
            if passing is not None:
                # The sums with gradients from before are recorded by `InnerPassResults.add`.
                written = [tensor for tensor in written if id(tensor) not in passing.earlier]
            node.writes = tensor_values.written_positions(written, read, values)
            node.attributes.update(self.sources.filled_by(out))
        if kernels:
            self.operations.formulas.describe(node, operation.work, read, results)
        if operation.joined:
            self.ranks = ranks = ranks or Ranks(tensor_values, self.scopes.registry)
            ranks.join(node, operation.joined, written)
        filled = [*read, *unseen, *out] if unseen or out else read
        kernel_runs = None if operation.runs is None else self._link_kernels(node, operation, read)
        for tensor in results:
            tensor_values.give(node, tensor)
        if written:
            self._add_written(node, written, results, filled)
        if kernel_runs is not None:
            self._add_body(node, kernel_runs, results, [*filled, *written])
        if passing is not None:
            self.passes.add(node, passing, None if kernel_runs is None else kernel_runs.value_of)
        if tensor_values.writes.any:
            # A result may be in memory that was freed: earlier writes at its address no longer
            # count.
            tensor_values.writes.forget_fresh(results, filled)
        if training is not None:
            training.operation_ended(node, read, results)
        return node

    def _mark_random(self, node: Node, frame: FrameType | None) -> None:
        """Mark a node that drew random numbers; warn once if compiled code draws other ones."""
        names = self.graph.signatures.get(node.op, ())
        node.random = is_random(node.kernels, node.arguments, names)
        may_differ = node.random and self.sources.open_ended and "torch._dynamo" in sys.modules
        if may_differ and not self._warned_of_numbers and differs_when_compiled(frame):
            self._warned_of_numbers = True
            warn(_OTHER_NUMBERS)

    def _link_kernels(
        self, node: Node, operation: Operation, read: list[torch.Tensor]
    ) -> KernelRuns | None:
        """Return the linked kernels of an operation that ran several, or None for no body.

        Args:
            node: The node, without outputs: its kernels read the values from before it.
            operation: The record of its kernels.
            read: The tensors that it reads.
        """
        runs = operation.runs
        if not runs or not len(runs) == len(node.kernels) > 1:
            return None
        # In forward mode, tensors carry tangents that no recorded kernel reads: there is no body.
        return KernelRuns(node, [] if in_forward_mode() else runs, self.values, read)

    def _add_body(
        self, node: Node, kernel_runs: KernelRuns, results: list[torch.Tensor], args: list[Any]
    ) -> None:
        """Add the body of a node that has its outputs.

        Args:
            node: The node.
            kernel_runs: Its linked kernels.
            results: The tensors that the operation returned.
            args: The tensors among its arguments, and those that it wrote into.
        """
        node.body = kernel_runs.body(self.values.tensors_of(node, results, args))
        for kernel in node.body.nodes:
            # The kernel that communicates shows the collective, too.
            if any(map(exchange_of, kernel.kernels)):
                kernel.collective = node.collective

    def _add_written(
        self,
        node: Node,
        written: list[torch.Tensor],
        results: list[torch.Tensor],
        args: list[torch.Tensor],
    ) -> None:
        """Add new values of the tensors that a node wrote into as its outputs."""
        for tensor in written:
            # A written parameter or buffer gets a node, even if no operation reads it.
            if self.scopes.registry.tensor(tensor) is not None:
                self.value_of(tensor)
        self.values.add_written_outputs(node, written, results, args)

    def _kernels_without_write(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        operation: Operation,
        results: list[torch.Tensor],
    ) -> list[str] | None:
        """Return the kernels of an operation that wrote into no tensor, or None for no node.

        Args:
            name: Its name in the graph.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            result: Its return value.
            operation: The record of its kernels.
            results: The tensors that it returned.
        """
        if not results and result is not None and not operation.joined:
            return None
        if (
            self.ranks is not None
            and operation.kernels == ASYNC_WRAPPERS
            and isinstance(result, torch.Tensor)
        ):
            # The result only wraps the argument, to wait for it later: it has the same value.
            self.values.hold(result, self.value_of(args[0]))
            return None
        if operation.kernels:
            return operation.kernels
        if name == "grad":
            reads_grad = self.training is None and len(args) == len(results) == 1
            if reads_grad and not self.passes.is_pending(results[0]):
                # A gradient from before the run becomes an input once an operation reads it.
                leaf = self.sources.name_of_leaf(args[0])[0]
                self.sources.add_hidden_input(f"{leaf}.grad", results[0])
            return None
        if not all_among(results, (args, kwargs)):
            return []
        # No kernel ran, and each result is an argument: `contiguous()` of a contiguous tensor.
        if name in UNSEEN_DETACH and any(map(self.values.find, results)):
            return [f"aten::{name}"]
        return None

    def _arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, fills: bool
    ) -> tuple[list[Argument], list[torch.Tensor], list[Value]]:
        """Return the arguments of an operation, the tensors among them that it reads, their values.

        Args:
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            fills: Whether it fills `out` without a read of it: an edge from `out` would be wrong.
        """
        read: list[torch.Tensor] = []
        values: list[Value] = []
        arguments = [argument((None, tree)) for tree in self.nests(args, read, values)]
        if kwargs:
            if fills and kwargs.get("out") is not None:
                kwargs = {**kwargs, "out": FILLED}
            trees = self.nests(kwargs.values(), read, values)
            arguments += map(argument, zip(kwargs, trees, strict=True))
        return arguments, read, values

    def _read_inner(
        self, name: str, operation: Operation, read: list[torch.Tensor], values: list[Value]
    ) -> None:
        """Add inputs to an operation for tensors that are used inside of it.

        These are results of its functions that no node reads, results of collectives inside of it,
        and the parameters and buffers of modules that it has called.
        """
        read += operation.fed
        values += map(self.value_of, operation.fed)
        if not operation.returned:
            return
        taken = {value for node in self.graph.nodes for value in node.inputs}
        if name in LOOP_OPERATORS:
            taken.update(self._deciding(operation, taken))
        for tensor in operation.returned:
            value = self.value_of(tensor)
            if value not in taken:
                taken.add(value)
                read.append(tensor)
                values.append(value)

    def _deciding(self, operation: Operation, taken: set[Value]) -> Iterator[Value]:
        """Make each loop iteration depend on the condition that started it; yield the conditions.

        Args:
            operation: The loop.
            taken: The values that nodes read: a condition among them needs no control dependency.
        """
        # The function of the condition runs first, and then alternates with the function of the
        # body.
        conditions, iterations = operation.function_calls[::2], operation.function_calls[1::2]
        for (_, results), (first, _) in zip(conditions, iterations, strict=False):
            first_node = next(
                (node for node in self.graph.nodes[first:] if node.kind == "op"), None
            )
            for value in map(self.value_of, results):
                if first_node is not None and value not in taken:
                    first_node.control_inputs.append(value.producer)
                    yield value

    def add_kernel(
        self,
        facts: KernelInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        operation: Operation,
        frame: FrameType | None,
    ) -> Node | None:
        """Record a kernel that ran outside of every operation (in a ScriptModule, in C++)."""
        if facts.label == "detach" and not collect_tensors(result, []):
            return None
        label = facts.label
        if facts.exchange is not None:
            label, args = facts.exchange.kind, facts.exchange.tensors(facts.kernel, args, kwargs)
            kwargs = {}
        elif label not in self.graph.signatures:
            add_signature(self.graph.signatures, label, facts.kernel)
        return self.add_operation(label, args, kwargs, result, operation, frame)

    def fail_operation(
        self,
        name: str,
        args: tuple[object, ...],
        kwargs: dict[str, Any],
        error: BaseException,
        frame: FrameType | None,
    ) -> None:
        """Remember an operation that raised, in case that its error ends the run."""
        if self.failed.of(error) is not None:
            return
        training = self.training
        if training is not None:
            training.operation_begins(frame)
        arguments, read, values = self._arguments(args, kwargs, fills=True)
        site = self.where.of_operation(frame)
        if training is not None:
            site = training.site_of(site, frame, read, values)
        node = Node("", name, "op", site[0], values, arguments=arguments, source=site[1])
        node.run, node.step = site[2:]
        if training is None or not training.stopped_early(node, error):
            self.failed.add(error, node)

    def add_read(self, name: str, tensor: object, frame: FrameType | None) -> None:
        """Record that Python read the content of a tensor (`item`, `bool`, `tolist`)."""
        if name not in READS or not isinstance(tensor, torch.Tensor):
            return
        if self.ranks is not None and is_bookkeeping(frame):
            return
        if name in _SHARES_MEMORY:
            # The array shares the memory: a later write through the array is no operation that a
            # mode sees.
            self.operations.about_to_write(tensor)
        value, source = self.value_of(tensor), self.where.source_at(frame)
        value.producer.attributes["read_by_python"] = f"{name} at {source}" if source else name
        self.reads.append(DataRead(value, name, source))

    # -- tensors that change without an operation -----------------------------------------

    def add_alias(self, alias: torch.Tensor, tensor: torch.Tensor) -> None:
        """Record that a tensor is an alias of a tensor, by another class (`Parameter(tensor)`)."""
        if alias is not tensor and self.sources.is_known(tensor):
            self.values.table.set_alias(alias, self.value_of(tensor))

    @contextmanager
    def swapping(
        self, first: torch.Tensor, second: torch.Tensor, *, recorded: bool
    ) -> Iterator[None]:
        """Swap the values of two tensors that a block swaps.

        torch refuses to swap a tensor with weak references, so the values drop theirs before.

        Args:
            first: A tensor.
            second: The tensor that swaps values with it.
            recorded: Whether a tensor without a value gets one.
        """
        value_of = self.value_of if recorded else self.values.find
        values = value_of(first), value_of(second)
        for tensor in (first, second):
            self.values.table.let_go(tensor)
        swapped = False
        try:
            yield
            swapped = True
        finally:
            tensors = (second, first) if swapped else (first, second)
            for tensor, value in zip(tensors, values, strict=True):
                if value is not None:
                    self.values.table.set_value(tensor, value)

    def take_out(self, result: object) -> None:
        """Take inner tensors out of their wrappers, before the scope of a function is closed."""
        if self.values.table.any_composed:
            for tensor in collect_tensors(result, []):
                if self.values.table.inside(tensor) is not None:
                    self.value_of(tensor)

    def add_slices(self, operands: list[torch.Tensor], arguments: object) -> None:
        """Add nodes for the parts of its operands that an operator passes to a function.

        Args:
            operands: The tensors among the operator's arguments.
            arguments: The arguments of the function; the slices among them were cut unseen.
        """
        for tensor in collect_tensors(arguments, []):
            if not self.sources.is_known(tensor):
                with without_functions():
                    whole = [
                        operand for operand in operands if same_storage(operand, tensor)
                    ] or operands
                inputs = [self.value_of(operand) for operand in whole]
                node = self.values.append("slice", self.scopes.running.inner, inputs)
                self.values.give(node, tensor)

    def add_output(self, name: str, tensor: torch.Tensor) -> None:
        """Make the current value of a tensor an output of the graph under this path."""
        tensor = self.sources.stand_in(tensor)
        value = self.value_of(tensor)
        writers = self.values.earlier_writers([tensor], [value])
        self.builder.add_output(name, value, control_inputs=writers)

    def add_wait(self, work: object, frame: FrameType) -> None:
        """Record that a Python frame has waited for an asynchronous collective."""
        outer = frame.f_back
        if (
            outer is not None
            and frame.f_code.co_name == "wait"
            and is_of_c10d(frame.f_code.co_filename)
        ):
            # An object for several `Work` objects (a coalescing manager) waits for each of them:
            # the frame that counts is that of its caller.
            frame = outer
        with without_functions():
            read = [] if self.ranks is None else self.ranks.awaited(work, frame)
            if not read:
                return
            values = list(map(self.value_of, read))
            site = self.where.of_operation(frame)
            if self.training is not None:
                self.training.operation_begins(frame)
                site = self.training.site_of(site, frame, read, values)
            scope, source, run, step = site
            node = self.values.append("wait", scope, values, source)
            node.run, node.step = run, step
            if scope is not None:
                node.phase = scope.phase
            node.writes = tuple(range(len(values)))
            self.values.add_written_outputs(node, read, [], read)

    # -- backward passes that are a part of an operation ------------------------------------

    def begin_inner_pass(self, gradients: list[Any]) -> None:
        """Collect the inputs and results of a backward pass that the running operation runs.

        Args:
            gradients: The gradients with which autograd begins, as far as it has made them.
        """
        operation = self.operations.running
        if operation is not None and operation.passing is None:
            operation.passing = InnerPass(self._known_value)
            operation.passing.makes(gradients)

    def _known_value(self, tensor: torch.Tensor) -> Value | None:
        return self.value_of(tensor) if self.sources.is_known(tensor) else None
