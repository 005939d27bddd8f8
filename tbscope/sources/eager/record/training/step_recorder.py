"""Base of the recorder: tensors that change without an operation, and training steps.

Tensors are replaced by other tensors, become aliases, are swapped, or go through a module as they
are. Backward passes and optimizers report their own work.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import FrameType
from typing import Any

import torch

from tbscope.analysis.notes import DataRead
from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Node, Value
from tbscope.ir.scopes import Scope, self_and_ancestors
from tbscope.sources.eager.record.backward_io import InnerPass, InnerPassResults
from tbscope.sources.eager.record.call_site import CallSite, CallSites
from tbscope.sources.eager.record.collectives import Collectives
from tbscope.sources.eager.record.operation import Operations
from tbscope.sources.eager.record.scope_stack import Failures, Frame, ScopeStack
from tbscope.sources.eager.record.tensor_sources import TensorSources
from tbscope.sources.eager.record.training.backward import Backward
from tbscope.sources.eager.record.values import TensorValues
from tbscope.sources.torch.calling.argument_values import ArgumentConverter, collect_tensors
from tbscope.sources.torch.collectives import is_wait
from tbscope.sources.torch.compat.tensors import outside_modes, without_functions
from tbscope.sources.torch.distributed import is_of_c10d, process_rank, world_size
from tbscope.sources.torch.fake import FakeTensors
from tbscope.sources.torch.operations import KernelInfo
from tbscope.sources.torch.subclasses import inner_tensors, same_storage

__all__ = ["StepRecorder", "ignore_event"]


def ignore_event(*_: object) -> None:
    """Ignore an event."""


class StepRecorder:
    """The tensors, the backward passes and the optimizer steps of one run.

    Args:
        name: The name of the graph.
        boundary: The function that wraps each module call (see `CallSiteFinder`).
        open_ended: Whether the run is a region of code rather than one call, so that an unknown
            tensor is an input while no module runs.
        bodies: Whether the kernels of each operation are recorded as nodes.

    Attributes:
        builder: The graph builder.
        graph: The graph recorded so far.
        operations: The running operation, and its enclosing operations.
        scopes: The open scopes.
        registry: The places of the modules and their tensors.
        paused: Whether recording is suspended.
        left: Whether recording is suspended for good, as its thread did not end the watch.
        turn: The lock of the thread that records, if several threads do.
        value_of: Returns the current value of a tensor; a new value for a tensor not seen before.
        nest: Returns a pytree with values in place of its tensors.
        add_input: Makes a tensor an input of the graph under a path.
        add_hidden_input: Makes it an input as soon as an operation reads it.
        live_results: Returns the live tensors that operations made and no operation reads.
        about_to_set: Called with a tensor before code that is no operation sets it.
        about_to_accumulate: Called before a backward pass adds to gradients.
        about_to_step: Called with an optimizer before it makes a step.
        backward: The backward passes, and the optimizer steps; None if they are no part of the
            graph.
        passed: The results of backward passes that are one operation each.
        ended: Whether an error ended the run.
        strands: The work of several threads for the run; None if only one thread has worked.
        before_closing: Called at the end of the run, before anything is released; None for no call.
        failed_calls: The module calls that the latest errors left.
        failed_operations: The operations that raised them.
        modules_called: The module of each call of the graph.
        scripted: Whether a scripted module was called, which may run in several threads.
        collectives: The communication with other ranks.
        distributed: Whether this is a process of a distributed run.
        where: The search for call sites.
        functions: Returns a mode that sees torch's functions again, inside of a torch function.
    """

    def __init__(
        self,
        name: str,
        *,
        boundary: Callable[..., Any],
        open_ended: bool = False,
        bodies: bool = False,
    ) -> None:
        self.builder = GraphBuilder(name, rank=process_rank())
        self.graph = self.builder.graph
        self.operations = Operations(self.graph.uncounted, keep_runs=bodies)
        self.scopes = ScopeStack(self.builder)
        self.registry = self.scopes.registry
        self.paused = self.left = self.ended = self.scripted = False
        self._forked = self._told_of_numbers = False
        self.strands: Any = None
        self.before_closing: Callable[[], None] | None = None
        self.failed_calls = Failures[Frame]()
        self.failed_operations = Failures[Node]()
        self.modules_called: list[torch.nn.Module] = []
        self._reads = list[DataRead]()
        self.turn = threading.RLock()
        self.where = CallSites(self.scopes, boundary.__code__)
        self._values = TensorValues(self.builder)
        # Without a reference to the recorder: a reference cycle would be left to the garbage
        # collector.
        self.collectives = Collectives(self._values, self.registry)
        self.graph.world_size = world_size()
        self._find_by(TensorSources(self.scopes, self._values, open_ended=open_ended))
        self.distributed = self._discovery.distributed
        self.add_hidden_input = self._discovery.add_hidden_input
        self.live_results = self._values.unread
        # Called before a tensor changes without an operation; they do nothing unless the run
        # restores tensors.
        self.about_to_set: Callable[[torch.Tensor], None] = ignore_event
        self.about_to_accumulate: Callable[[], None] = ignore_event
        self.about_to_step: Callable[[torch.optim.Optimizer], None] = ignore_event
        self._replaced: set[int] = set()
        self.backward: Backward | None = None
        self.passed = InnerPassResults(self._values, self._discovery.name_of_leaf)
        self.functions: Callable[[], AbstractContextManager[Any]] | None = None

    def _find_by(self, discovery: TensorSources) -> None:
        """Look up tensors by this `TensorSources` from now on."""
        self._discovery = discovery
        self.value_of, self.add_input = discovery.value_of, discovery.add_input
        self.nest = ArgumentConverter(discovery.value_of, discovery.lying_in).nest

    # -- fake tensors -------------------------------------------------------------------

    def use(self, stand_ins: FakeTensors) -> None:
        """Use fake tensors in the place of the tensors of all modules."""
        self._discovery.stand_in = stand_ins.of
        for module in self.registry.modules():
            self.add_stand_ins(module, stand_ins)

    def add_stand_ins(self, module: torch.nn.Module, stand_ins: FakeTensors) -> None:
        """Make fake tensors for the tensors of one module, and register them."""
        for tensor, fake in stand_ins.add(module):
            self.registry.add_stand_in(tensor, fake)

    @contextmanager
    def replaced_tensors(self, module: torch.nn.Module, names: Iterable[str]) -> Iterator[None]:
        """Replace tensors of a module and its parts by other tensors, for a block.

        The module is registered now, with its own tensors, though it is called in the block.

        Args:
            module: The module.
            names: The names of the replaced parameters and buffers, as in `named_parameters()`.
        """
        with self.turn:
            place = self.scopes.place_of(module)
            self._discovery.replaced.append(place)
            tensors = dict(module.named_parameters(remove_duplicate=False))
            for name in tensors.keys() & set(names):
                tensor_place = self.registry.tensor(tensors[name])
                if tensor_place is not None:
                    self._replaced.add(tensor_place.number)
        try:
            yield
        finally:
            self._discovery.replaced.remove(place)

    def _replaced_parameters(self) -> set[int]:
        """Return the numbers of the parameters in whose place other tensors were used."""
        tensors = self.registry.tensors() if self._values.wrappers.any else ()
        used = [self.registry.tensor(each) for each in tensors if self._values.find(each)]
        return self._replaced.union(place.number for place in used if place is not None)

    # -- changes without an operation -----------------------------------------------------

    def add_face(self, face: torch.Tensor, tensor: torch.Tensor) -> None:
        """Record that a tensor is an alias of a tensor, by another class (`Parameter(tensor)`)."""
        if face is not tensor and self.is_known(tensor):
            self._values.wrappers.show(face, self.value_of(tensor))

    @contextmanager
    def swapping(self, one: torch.Tensor, other: torch.Tensor) -> Iterator[None]:
        """Swap the values of two tensors that a block swaps.

        torch refuses to swap a tensor with weak references, so the recorder drops its own before.
        """
        with self.turn:
            value_of = self._values.find if self.paused else self.value_of
            values = value_of(one), value_of(other)
            for tensor in (one, other):
                self._values.wrappers.let_go(tensor)
        swapped = False
        try:
            yield
            swapped = True
        finally:
            tensors = (other, one) if swapped else (one, other)
            for tensor, value in zip(tensors, values, strict=True):
                if value is not None:
                    self._values.wrappers.keep(tensor, value)

    def know(self, result: object) -> None:
        """Take inner tensors out of their wrappers, before the scope of a function is closed."""
        if self._values.wrappers.any:
            for tensor in collect_tensors(result, []):
                if self._values.wrappers.inside(tensor) is not None:
                    self.value_of(tensor)

    def add_slices(self, operands: list[torch.Tensor], given: object) -> None:
        """Add nodes for the parts of its operands that an operation passes to a function.

        Args:
            operands: The tensors among the operation's arguments.
            given: The arguments of the function; the slices among them were cut unseen.
        """
        for tensor in collect_tensors(given, []):
            if not self.is_known(tensor):
                with without_functions():
                    whole = [
                        operand for operand in operands if same_storage(operand, tensor)
                    ] or operands
                values = [self.value_of(operand) for operand in whole]
                self._values.give(
                    self._values.append("slice", self.scopes.running.inner, values), tensor
                )

    def add_output(self, name: str, tensor: torch.Tensor) -> None:
        """Make the current value of a tensor an output of the graph under this path."""
        tensor = self._discovery.replaced_by_fake(tensor)
        value = self.value_of(tensor)
        writers = self._values.earlier_writers([tensor], [value])
        self.builder.add_output(name, value, control_inputs=writers)

    # -- training steps -------------------------------------------------------------------

    def record_backward(self) -> None:
        """Make backward passes a part of the graph, from now on."""
        self.backward = Backward(self._discovery)

    @property
    def gradients_recorded(self) -> bool:
        """Whether passes are recorded and none runs, so that every gradient has a value."""
        return self.backward is not None and not self.backward.passes

    @contextmanager
    def backward_pass(
        self,
        roots: Sequence[Any],
        gradients: Sequence[tuple[Any, bool]],
        *,
        creates_graph: bool,
        caller: FrameType,
    ) -> Iterator[None]:
        """Record the operations that autograd's engine runs in a block.

        If passes are no part of the graph, or recording is suspended, a running operation collects
        the inputs and results of the pass instead (`InnerPass`).

        Args:
            roots: The tensors, or nodes of autograd's graph, at which the pass begins.
            gradients: The gradient of each root, None if it needs none, and whether the caller
                passed it to autograd; otherwise autograd has made it.
            creates_graph: Whether the operations of the pass can be differentiated themselves.
            caller: The Python frame that calls the engine.
        """
        operation = self.operations.running
        if self.backward is None or self.paused:
            if operation is not None and operation.passing is None:
                operation.passing = InnerPass(self._known_value)
                operation.passing.makes([one for one, was_passed in gradients if not was_passed])
            yield
            return
        called = self.where.of_call(caller)[1:]
        self.backward.optimizers.helpers.clear()
        for root in roots:
            if isinstance(root, torch.Tensor):
                self.backward.tell_unseen(root, self.value_of)
        in_region = self._discovery.open_ended and self.scopes.at_top
        for gradient, was_passed in gradients:
            if was_passed and in_region and not self.is_known(gradient):
                self.add_input("gradient", gradient)
            elif was_passed:
                self.value_of(gradient)
        with ExitStack() as stack:
            stack.enter_context(
                self.backward.run(creates_graph=creates_graph, caller=id(caller), called=called)
            )
            for root, (gradient, _) in zip(roots, gradients, strict=False):
                tensors = isinstance(root, torch.Tensor) and isinstance(gradient, torch.Tensor)
                if tensors and not self.is_known(gradient):
                    # The ones that autograd makes if the caller passes no gradient.
                    scope = self.scopes.running.inner
                    node = self._values.append("ones_like", scope, [self.value_of(root)])
                    node.phase = "backward"
                    self._values.give(node, gradient)
            if operation is not None:
                # The operations of the pass are nodes, so that the operation around them is none.
                # torch has put the function mode aside in it: another mode sees the functions of
                # the pass.
                operation.told = True
                stack.enter_context(self.operations.function())
                if self.functions is not None:
                    stack.enter_context(self.functions())
            yield

    def gave_gradients(self, gradients: object) -> None:
        """Record the gradients that a backward pass has returned to its caller."""
        if self.backward is not None and not self.paused:
            values = map(self._values.find, collect_tensors(gradients, []))
            self.backward.gave.update(value for value in values if value is not None)

    def _known_value(self, tensor: torch.Tensor) -> Value | None:
        return self.value_of(tensor) if self.is_known(tensor) else None

    def gradient_was_set(self, leaf: torch.Tensor) -> None:
        """Record that a script has set a tensor's gradient, which a pass may have made."""
        if self.backward is not None and not self.paused:
            self.backward.was_set(leaf)

    def _place(
        self, frame: FrameType | None, read: list[torch.Tensor], values: list[Value]
    ) -> CallSite:
        """Return the call site of an operation, in the box of its pass, phase or optimizer step.

        Args:
            frame: The Python frame that called it.
            read: The tensors that it reads.
            values: Their values.
        """
        called = self.where.of_operation(frame)
        scope, source, run, step = called
        backward = self.backward
        if backward is not None and backward.passes:
            scope = backward.place(scope, values)
            # Autograd's own threads have no frames of the function that waits for them.
            run, step = backward.passes[-1].called
        elif self.scopes.phases:
            scope = self._place_between_phases(scope, values)
        if backward is not None:
            scope = backward.optimizers.place(scope, (called, frame), read, values)
        return scope, source, run, step

    def _place_between_phases(self, scope: Scope | None, values: Sequence[Value]) -> Scope | None:
        """Return the scope of an operation that runs after a backward pass or an optimizer step.

        A method of a module may run it outside of the module's calls, and may have run before the
        phase, too: an operation that reads gradients or updated parameters goes to another box.

        Args:
            scope: Its scope without regard to phases.
            values: The values that it reads.
        """
        scopes = self.scopes
        first = scopes.phase_since(scope)
        if scope is None or first is None:
            return scope
        pending, seen = [value.producer for value in values], set[Node]()
        while pending:
            node = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            enclosing = () if node.phase == "forward" else self_and_ancestors(node.scope)
            phase = next((scopes.phases[each] for each in enclosing if each in scopes.phases), None)
            if phase is None:
                pending += [value.producer for value in node.inputs]
                pending += node.control_inputs
            elif phase >= first:
                return scopes.reopen(scope)
        return scope

    def begin_step(self, optimizer: torch.optim.Optimizer, caller: FrameType) -> None:
        """Record that an optimizer begins a step, in this Python frame."""
        with outside_modes():
            self.about_to_step(optimizer)
        if self.backward is not None:
            with without_functions():
                for group in optimizer.param_groups:
                    # Gradients that were set unseen are found here, too.
                    for parameter in group["params"]:
                        self.gradient_was_set(parameter)
                self.backward.optimizers.begin(optimizer, caller)

    def end_step(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Record the end of an optimizer's step; None ends all steps that have no end yet."""
        if self.backward is not None:
            with without_functions():
                self.backward.optimizers.end(optimizer)

    def fail_step(self, caller: FrameType) -> None:
        """Record that an error leaves a Python frame, and ends the step that it called, if any."""
        if self.backward is not None and self.backward.optimizers.steps:
            with without_functions():
                self.backward.optimizers.end(caller=caller)

    def outside_step(self) -> AbstractContextManager[None]:
        """Exclude a block (a closure) from the running step."""
        if self.backward is None or not self.backward.optimizers.steps:
            return nullcontext()
        return self.backward.optimizers.outside()

    # -- ranks ----------------------------------------------------------------------------

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has a value, is inside of a wrapper, or is registered by a module."""
        return self._discovery.is_known(tensor)

    def waited(self, work: object, frame: FrameType) -> None:
        """Record that a Python frame has waited for an asynchronous collective."""
        if self.paused:
            return
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
            read = self.collectives.waited(work, frame)
            if not read:
                return
            values = list(map(self.value_of, read))
            if self.backward is not None and self.backward.passes:
                self.backward.begin(frame)
            scope, source, run, step = self._place(frame, read, values)
            node = self._values.append("wait", scope, values, source)
            node.run, node.step = run, step
            if scope is not None:
                node.phase = scope.phase
            node.writes = tuple(range(len(values)))
            self._values.add_written_outputs(node, read, [], read)

    def took_over(
        self,
        facts: KernelInfo,
        outer: tuple[object, ...],
        args: tuple[object, ...],
        node: Node | None,
    ) -> bool:
        """Make the result of a wait the value of the tensors that wrap the tensor waited for.

        Args:
            facts: A kernel that ran inside of another kernel.
            outer: The arguments of the other kernel.
            args: Its own arguments.
            node: Its node.
        Returns:
            Whether any argument of the other kernel wraps the tensor.
        """
        if node is None or not is_wait(facts.name):
            return False
        found = False
        for tensor in collect_tensors(outer, []):
            if type(tensor) is not torch.Tensor and any(
                part is args[0] for _, part in inner_tensors(tensor)
            ):
                self._values.wrappers.keep(tensor, node.outputs[0])
                found = True
        return found
