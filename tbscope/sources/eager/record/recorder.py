"""The recorder, which turns the events of a run into a graph.

Modes report operations and kernels, the watched call of `torch.nn.Module` reports module calls, and
`tbscope.scope` reports scopes of the user. The recorder changes nothing that it sees.

`Recorder.add_operation` makes the node of an operation that has run, in this order: the values of
the tensor arguments (`TensorSources.value_of`), the scope and the call site
(`StepRecorder._place`), control dependencies on earlier in-place writes
(`TensorValues.earlier_writers`), the node, its results as outputs, and new values for the tensors
that it wrote into (`TensorValues.add_written_outputs`). The arguments come first because a write
replaces the value of its tensor.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import partial
from types import CoroutineType, FrameType
from typing import Any

import torch

from tbscope.analysis.notes import DataRead, find_notes
from tbscope.ir.graph import Argument, Call, Graph, Node, Note, Source, Value
from tbscope.sources.eager.record.backward_io import without_ancestors
from tbscope.sources.eager.record.collectives import is_bookkeeping, move_to_modules
from tbscope.sources.eager.record.operation import KernelRuns, Operation
from tbscope.sources.eager.record.scope_stack import RESUMED, Frame, Resumed, is_empty
from tbscope.sources.eager.record.training.step_recorder import StepRecorder, ignore_event
from tbscope.sources.torch.calling.argument_values import FILLED, all_among, collect_tensors
from tbscope.sources.torch.calling.signatures import bound_arguments
from tbscope.sources.torch.collectives import ASYNC_WRAPPERS, exchange_of
from tbscope.sources.torch.compat.compiler import differs_when_compiled
from tbscope.sources.torch.compat.modules import ScriptModule, has_stale_call, prepares_lazily
from tbscope.sources.torch.compat.tensors import STOP_RECOMPUTATION, in_forward_mode
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
from tbscope.sources.torch.subclasses import PLAIN
from tbscope.utils.warning import warn

__all__ = ["Recorder"]


_OTHER_NUMBERS = (
    "tbscope records compiled code, which runs as it was written for that: its random operations "
    "(dropout) draw other numbers than compiled ones, so that the losses from here on are others "
    "than without the recording; to keep them, draw the model by writer.add_graph(model, input, "
    "training=True, loss=..., backward=True), which puts random numbers back, or record before "
    "torch.compile; with inductor, or set torch._inductor.config.fallback_random = True before it"
)

_SHARES_MEMORY = frozenset({"numpy", "array", "dlpack"})

# Same as `Argument(name, nest)`, in a third of the time.
_argument = partial(tuple.__new__, Argument)


class Recorder(StepRecorder):
    """The recorder of one run, which builds its graph."""

    def branch(self, source: Source | None) -> "Recorder":
        """Return a recorder for work that another thread does: it adds to the same graph.

        Args:
            source: The line that has handed the work over.
        """
        branch = copy(self)
        branch.scopes = scopes = self.scopes.branch(source)
        branch.operations = self.operations.branch()
        branch.where = self.where.branch(scopes)
        branch._find_by(self._discovery.branch(scopes))
        if self.backward is not None:
            branch.backward = self.backward.branch(branch._discovery)
        return branch

    def source_at(self, frame: FrameType | None) -> Source | None:
        """Return the place in the user's code that led to this frame."""
        return self.where.source_at(frame)

    def close(self) -> Graph:
        """Release everything but the graph after the run; return the graph."""
        graph = self.graph
        if self.before_closing is not None:
            self.before_closing()
            self.before_closing = None
        graph.notes += find_notes(
            graph, reads=self._reads, whole=not self.ended, stood_in=self._replaced_parameters()
        )
        # The recorder refers to itself: without this, all tensors would live until the next garbage
        # collection.
        self._values.forget()
        self._discovery.forget()
        self.passed.given.clear()
        self._reads.clear()
        if self.distributed:
            graph.mesh = self.collectives.groups.mesh()
            move_to_modules(graph)
        self.collectives.begun.clear()
        self.modules_called.clear()
        self.scopes.forget()
        self.backward = self.functions = None
        self.about_to_step = ignore_event
        return graph

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
        joined = operation.joined
        # The operations of a recorded backward pass are in the graph already; torch's own
        # bookkeeping between ranks is no part of the model.
        if operation.told or (self.distributed and not joined and is_bookkeeping(frame)):
            return None
        backward = self.backward
        if backward is not None and backward.passes:
            backward.begin(frame)
        written, kernels = operation.written, operation.kernels
        if not written:
            if not results and result is not None and not joined:
                if args:
                    self.add_read(name, args[0], frame)
                return None
            wraps = (
                self.distributed and kernels == ASYNC_WRAPPERS and isinstance(result, torch.Tensor)
            )
            if wraps or not kernels:
                found = self._kernels_of_alias(name, args, kwargs, operation, results)
                if found is None:
                    return None
                kernels = found
        unseen: list[torch.Tensor] = []
        if joined:
            # A buffer that a collective only fills is no input.
            args, kwargs = self._discovery.without_filled(joined, (args, kwargs), unseen)
        tensor_values = self._values
        arguments, read, values = self._arguments(args, kwargs, fills=bool(written))
        out = collect_tensors(kwargs["out"], []) if written and "out" in kwargs else []
        if operation.given or operation.fed:
            self._read_inner(name, operation, read, values)
        passing = operation.passing
        if passing is not None:
            # The sums with gradients from before are recorded by `InnerPassResults.add`.
            written = [tensor for tensor in written if id(tensor) not in passing.earlier]
        scope, source, run, step = self._place(frame, read, values)
        writers = tensor_values.earlier_writers(read, values) if tensor_values.writes.any else []
        node = self.builder.append_op(name, scope, values, arguments, writers, source, kernels)
        if passing is not None:
            # The tensors that the backward pass read become inputs, too, unless an argument was
            # made from them.
            node.inputs += without_ancestors(passing.read, values)
        if run is not None:
            node.run, node.step = run, step
        node.role = role_of(kernels, reads=bool(values))
        if not RANDOM.isdisjoint(kernels):
            self._mark_random(node, frame)
        if written:
            node.writes = tensor_values.written_positions(written, read, values)
            node.attributes.update(self._discovery.filled_by(out))
        if kernels:
            self.operations.formulas.describe(node, operation.work, read, results)
        if joined:
            self.collectives.join(node, joined, written)
        filled = [*read, *unseen, *out] if unseen or out else read
        kernel_runs = self._add_results(node, operation, read, results, written, filled)
        if passing is not None:
            self.passed.add(node, passing, None if kernel_runs is None else kernel_runs.given)
        if tensor_values.writes.any:
            # A result may be in memory that was freed: earlier writes at its address no longer
            # count.
            tensor_values.writes.forget_fresh(results, filled)
        if backward is not None:
            backward.ran(node, read, results)
            backward.optimizers.ran(node, read)
        return node

    def _mark_random(self, node: Node, frame: FrameType | None) -> None:
        """Mark a node that drew random numbers; warn once if compiled code draws other ones."""
        names = self.graph.signatures.get(node.op, ())
        node.random = is_random(node.kernels, node.arguments, names)
        may_differ = node.random and self._discovery.open_ended and "torch._dynamo" in sys.modules
        if may_differ and not self._told_of_numbers and differs_when_compiled(frame):
            self._told_of_numbers = True
            warn(_OTHER_NUMBERS)

    def _add_results(
        self,
        node: Node,
        operation: Operation,
        read: list[torch.Tensor],
        results: list[torch.Tensor],
        written: list[torch.Tensor],
        args: list[torch.Tensor],
    ) -> KernelRuns | None:
        """Add the outputs of a node: its results, and new values of tensors that it wrote into.

        Args:
            node: The node, without outputs.
            operation: The record of its kernels, which become the body of the node.
            read: The tensors that it reads.
            results: The tensors that the operation returned.
            written: The tensors that its kernels wrote into.
            args: The tensors among its arguments, those that it only fills too.
        Returns:
            The runs of its kernels, or None if it has no body.
        """
        tensor_values, kernel_runs, runs = self._values, None, operation.runs
        if runs and len(runs) == len(node.kernels) > 1:
            # The kernels are linked before the node has outputs, as they read the values from
            # before it. In forward mode, tensors carry tangents that no recorded kernel reads:
            # there is no body.
            kernel_runs = KernelRuns(node, [] if in_forward_mode() else runs, tensor_values, read)
        for tensor in results:
            tensor_values.give(node, tensor)
        if written:
            for tensor in written:
                # A written parameter or buffer gets a node, even if no operation reads it.
                if self.registry.tensor(tensor) is not None:
                    self.value_of(tensor)
            tensor_values.add_written_outputs(node, written, results, args)
        if kernel_runs is not None:
            outputs = tensor_values.tensors_of(node, results, [*args, *written])
            node.body = kernel_runs.body(outputs)
            for kernel in node.body.nodes:
                # The kernel that communicates shows the collective, too.
                if any(map(exchange_of, kernel.kernels)):
                    kernel.collective = node.collective
        return kernel_runs

    def _kernels_of_alias(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        operation: Operation,
        results: list[torch.Tensor],
    ) -> list[str] | None:
        """Return the kernels of an operation that may return its argument, or None for no node.

        Args:
            name: Its name in the graph.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            operation: The record of its kernels: none, or one that wraps its argument.
            results: The tensors that it returned.
        """
        if operation.kernels:
            # The result wraps the argument, and has the same value.
            self._values.hold(results[0], self.value_of(args[0]))
            return None
        if name == "grad":
            reads_grad = self.backward is None and len(args) == len(results) == 1
            if reads_grad and not self.passed.has_given(results[0]):
                # A gradient from before the run becomes an input once an operation reads it.
                leaf = self._discovery.name_of_leaf(args[0])[0]
                self.add_hidden_input(f"{leaf}.grad", results[0])
            return None
        if not all_among(results, (args, kwargs)):
            return []
        # No kernel ran, and each result is an argument: `contiguous()` of a contiguous tensor.
        if name in UNSEEN_DETACH and any(map(self._values.find, results)):
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
        arguments = []
        for arg in args:
            kind = type(arg)
            # Most arguments are tensors; any other argument may be a pytree of tensors.
            if kind is torch.Tensor or kind is torch.nn.Parameter:
                value = self.value_of(arg)
                read.append(arg)
                values.append(value)
                arguments.append(_argument((None, value)))
            else:
                arguments.append(_argument((None, self.nest(arg, read, values))))
        for key, arg in kwargs.items():
            filled = fills and key == "out" and arg is not None
            tree = FILLED if filled else self.nest(arg, read, values)
            arguments.append(_argument((key, tree)))
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
        if not operation.given:
            return
        taken = {value for node in self.graph.nodes for value in node.inputs}
        if name in LOOP_OPERATORS:
            taken.update(self._deciding(operation, taken))
        for tensor in operation.given:
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
        conditions, iterations = operation.turns[::2], operation.turns[1::2]
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

    def note_fork(self) -> None:
        """Add a note, once, that a scripted module runs operations in TorchScript's own threads."""
        if not self._forked:
            self._forked = True
            running = self.scopes.running
            text = (
                f"{running.scope} runs operations in threads of TorchScript's own "
                "(torch.jit.fork): which of them comes first may differ from run to run"
            )
            self.graph.notes.append(Note(text, running.source))

    def fail_operation(
        self,
        name: str,
        args: tuple[object, ...],
        kwargs: dict[str, Any],
        error: BaseException,
        frame: FrameType | None,
    ) -> None:
        """Remember an operation that raised, in case that its error ends the run."""
        if self.failed_operations.of(error) is not None:
            return
        backward = self.backward if self.backward is not None and self.backward.passes else None
        if backward is not None:
            backward.begin(frame)
        arguments, read, values = self._arguments(args, kwargs, fills=True)
        scope, source, run, step = self._place(frame, read, values)
        node = Node("", name, "op", scope, values, arguments=arguments, source=source)
        node.run, node.step = run, step
        if backward is not None and isinstance(error, STOP_RECOMPUTATION):
            # A checkpoint raises this error after the operation has run and its result is saved.
            running = self.operations.running
            node.kernels = [] if running is None else running.kernels
            self.builder.append(node)
            node.phase = "backward"
            backward.ended_early(node)
            return
        self.failed_operations.add(error, node)

    def end_with(self, error: BaseException, text: str) -> None:
        """Complete the graph of a run that an error ended, with the operation that raised it.

        Args:
            error: The error.
            text: Its message, on one line.
        """
        node = self.failed_operations.of(error)
        if node is not None:
            node.attributes["error"] = text
            self.builder.append(node)
        source = node.source if node is not None else None
        self.graph.notes.insert(0, Note(f"the run ended here: {text}", source, node))
        self.ended = True

    def add_read(self, name: str, tensor: object, frame: FrameType | None) -> None:
        """Record that Python read the content of a tensor (`item`, `bool`, `tolist`)."""
        if name not in READS or not isinstance(tensor, torch.Tensor):
            return
        if self.distributed and is_bookkeeping(frame):
            return
        if name in _SHARES_MEMORY:
            # The array shares the memory: a later write through the array is no operation that a
            # mode sees.
            self.about_to_write(tensor)
        value, source = self.value_of(tensor), self.where.source_at(frame)
        value.producer.attributes["read_by_python"] = f"{name} at {source}" if source else name
        self._reads.append(DataRead(value, name, source))

    def about_to_write(self, tensor: torch.Tensor) -> None:
        """Report a tensor before code that is no operation writes into it."""
        if self.operations.about_to_write is not None:
            self.operations.about_to_write(tensor)

    # -- calls ----------------------------------------------------------------------------

    def open_scope(self, name: str) -> None:
        """Open a scope of the user in the running call."""
        if not self.paused:
            self.scopes.open_block(name, by_script=True)

    def close_scope(self, name: str | None, *, failed: bool = False) -> None:
        """Close the innermost scope of the user; after a failure also scopes left open in it."""
        if not self.paused:
            self.scopes.close_block(name, failed=failed)

    def enter_call(
        self,
        module: torch.nn.Module,
        args: tuple[object, ...],
        kwargs: dict[str, Any],
        caller: FrameType,
    ) -> Frame | None:
        """Open the scope of a module call; return the frame that `leave_call` closes.

        Return None for a wrapper that has no scope of its own, and for a call inside of an
        operation (a hook in `torch.autograd.grad`, a custom operator): that call is part of the
        operation.
        """
        scopes = self.scopes
        if self.operations.running is not None:
            place_of_tensor = scopes.registry.tensor
            tensors = *module.parameters(recurse=False), *module.buffers(recurse=False)
            self.operations.running.feed(
                tensor for tensor in tensors if place_of_tensor(tensor) is not None
            )
            return None
        place = scopes.place_of(module)
        if place.wrapper is module:
            if not has_stale_call(module):
                return None
            module = place.module
        if place.lazy:
            self._look_away(module)
        source, run, step = self.where.of_call(caller)
        calling, path = self.where.caller_of(place, caller)
        forward = module.forward
        names, bound = bound_arguments(forward, args, kwargs)
        if self._discovery.open_ended and scopes.at_top:
            self._discovery.add_unknown(list(zip(names, bound, strict=True)))
        nest = self.nest
        scope = scopes.call_scope(place)
        arguments = [
            _argument((name, nest(value))) for name, value in zip(names, bound, strict=True)
        ]
        call = Call(
            scope=scope,
            class_name=place.label,
            qualified_name=place.qualified_name,
            arguments=arguments,
            # A frozen scripted module has no mode, and behaves as in evaluation.
            training=getattr(module, "training", False),
            source=source,
            run=run,
            step=step,
            caller=calling,
            called_as=path,
        )
        self.graph.calls.append(call)
        self.modules_called.append(module)
        begun, first = self.builder.operations, len(self.graph.nodes)
        code = getattr(forward, "__code__", None)
        frame = Frame(scope, scope, place, call, source, begun, first, code)
        if isinstance(module, ScriptModule):
            self.scripted = True
        scopes.open_call(frame)
        return frame

    def _look_away(self, module: torch.nn.Module) -> None:
        """Suspend recording while a lazy module makes its parameters: this computes nothing."""
        hooks = module._forward_pre_hooks
        for key, hook in hooks.items():
            if prepares_lazily(hook):
                # Once it has run, the hook removes its entry, and with it this replacement.
                hooks[key] = partial(self._unseen, hook)

    def _unseen(self, function: Callable[..., Any], *args: object) -> Any:
        """Call a function while recording is suspended."""
        paused, self.paused = self.paused, True
        try:
            return function(*args)
        finally:
            self.paused = paused

    def leave_call(
        self, frame: Frame, args: tuple[object, ...], kwargs: dict[str, Any], result: object
    ) -> Any:
        """Close a module call that returned; return the object that its caller receives.

        If the result is a lazy iterator or a coroutine, code of forward has yet to run: the call
        then continues at each step of the result (`Resumed`).
        """
        given, call = (args, kwargs), frame.call
        assert call is not None
        if type(result) not in RESUMED:
            try:
                self._check_end(frame, given, result)
            finally:
                self.scopes.close_call(frame)
            call.results = self.nest(result)
            return result
        self.scopes.close_call(frame)
        call.results = entries = []

        def ends(value: object) -> None:
            self._check_end(frame, given, value)
            if type(result) is CoroutineType:
                call.results = self.nest(value)

        return Resumed(
            self.scopes,
            frame,
            failed=self.failed_calls.add,
            yields=lambda entry: entries.append(self.nest(entry)),
            ends=ends,
        ).wrap(result)

    def _check_end(self, frame: Frame, given: object, result: object) -> None:
        """Complete a module call that is about to end: a call without nodes gets a node.

        Args:
            frame: The call.
            given: A pytree of its arguments.
            result: Its return value.
        Raises:
            ScopeError: A scope of the user is still open in the call.
        """
        if frame.blocks:
            self.scopes.check_closed(frame)
        self.know(result)
        if self.builder.operations != frame.begun and not is_empty(self.graph, frame):
            return
        # The call was an identity, whose inputs are its outputs, or it returned no tensor.
        read, returned = collect_tensors(given, []), collect_tensors(result, [])
        tensors = returned or read
        values = [self.value_of(tensor) for tensor in tensors]
        assert frame.place is not None
        inputs = [*dict.fromkeys(values)]
        node = self._values.append(frame.place.label, frame.scope, inputs, frame.source)
        node.control_inputs = self._values.earlier_writers(tensors, values)
        for tensor in {id(tensor): tensor for tensor in returned}.values():
            self._values.give(node, self._discovery.replaced_by_fake(tensor))

    def fail_call(self, frame: Frame, error: BaseException) -> None:
        """Close a module call that raised; remember the innermost call of each error."""
        self.failed_calls.add(error, frame)
        self.scopes.close_call(frame)

    @contextmanager
    def function(self, name: str) -> Iterator[Callable[[Any], None]]:
        """Record the run of a function that is an operation's argument, in a scope of its own.

        Args:
            name: The name of the function.
        Returns:
            A callable that takes the result of the function.
        """
        with self.operations.function(len(self.graph.nodes)) as gave:
            self.scopes.open_block(name)
            failed = True
            try:
                yield gave
                failed = False
            finally:
                self.scopes.close_block(name, failed=failed)
