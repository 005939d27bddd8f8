"""Training: the backward passes and the optimizer steps of a run, as parts of its graph.

Autograd's engine and the optimizers report their own work. Each operation of theirs gets a scope in
the box of its pass or step; each operation of a script that reads gradients or updated parameters
gets a box apart from the forward pass.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import FrameType
from typing import Any

import torch

from tbscope.ir.graph import Node, Value
from tbscope.ir.scopes import Scope, self_and_ancestors
from tbscope.sources.eager.record.call_site import CallSite, CallSites
from tbscope.sources.eager.record.operation import Operations
from tbscope.sources.eager.record.tensor_sources import TensorSources
from tbscope.sources.eager.record.training.backward import Backward
from tbscope.sources.torch.calling.argument_values import collect_tensors
from tbscope.sources.torch.compat.tensors import STOP_RECOMPUTATION, without_functions


class Training:
    """The backward passes and optimizer steps of one run.

    Args:
        sources: The search for the value of any tensor.
        where: The search for call sites.
        operations: The running operation, and its enclosing operations.

    Attributes:
        backward: The backward passes, and the operations that can be differentiated.
        functions: Returns a mode that sees torch's functions again, inside of a torch function;
            None for no mode.
    """

    def __init__(self, sources: TensorSources, where: CallSites, operations: Operations) -> None:
        self.backward = Backward(sources)
        self.functions: Any = None
        self._sources, self._where, self._operations = sources, where, operations
        self._scopes, self._values = sources.scopes, sources.values
        self._optimizers = self.backward.optimizers

    # -- operations ---------------------------------------------------------------------

    def operation_begins(self, frame: FrameType | None) -> None:
        """Prepare for an operation, before its arguments are looked up."""
        if self.backward.passes:
            self.backward.begin(frame)

    def site_of(
        self,
        site: CallSite,
        frame: FrameType | None,
        read: Sequence[torch.Tensor],
        values: Sequence[Value],
    ) -> CallSite:
        """Return the call site of an operation, in the box of its pass, phase or optimizer step.

        Args:
            site: Its call site without regard to training.
            frame: The Python frame that called it.
            read: The tensors that it reads.
            values: Their values.
        """
        scope, source, run, step = site
        if self.backward.passes:
            scope = self.backward.scope_of(scope, values)
            # Autograd's own threads have no frames of the function that waits for them.
            run, step = self.backward.passes[-1].called
        elif self._scopes.phases:
            scope = self._scope_between_phases(scope, values)
        scope = self._optimizers.scope_of(scope, (site, frame), read, values)
        return scope, source, run, step

    def _scope_between_phases(self, scope: Scope | None, values: Sequence[Value]) -> Scope | None:
        """Return the scope of an operation that runs after a backward pass or an optimizer step.

        A method of a module may run it outside of the module's calls, and may have run before the
        phase, too: an operation that reads gradients or updated parameters goes to another box.

        Args:
            scope: Its scope without regard to phases.
            values: The values that it reads.
        """
        scopes = self._scopes
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

    def operation_ended(
        self, node: Node, read: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
    ) -> None:
        """Record an operation that has run, with the tensors that it read and its results."""
        self.backward.ran(node, read, results)
        self._optimizers.ran(node, read)

    def stopped_early(self, node: Node, error: BaseException) -> bool:
        """Append an operation at which a checkpoint ends its recomputation.

        A checkpoint raises an error for this after the operation has run and its result is saved.

        Returns:
            Whether the error is one of a checkpoint.
        """
        if not self.backward.passes or not isinstance(error, STOP_RECOMPUTATION):
            return False
        running = self._operations.running
        node.kernels = [] if running is None else running.kernels
        self._values.builder.append(node)
        node.phase = "backward"
        self.backward.ended_early(node)
        return True

    # -- backward passes ----------------------------------------------------------------

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

        Args:
            roots: The tensors, or nodes of autograd's graph, at which the pass begins.
            gradients: The gradient of each root, None if it needs none, and whether the caller
                passed it to autograd; otherwise autograd has made it.
            creates_graph: Whether the operations of the pass can be differentiated themselves.
            caller: The Python frame that calls the engine.
        Returns:
            A callable that takes the gradients which the pass returns to its caller.
        """
        sources, values = self._sources, self._values
        called = self._where.of_call(caller)[1:]
        self._optimizers.helpers.clear()
        for root in roots:
            if isinstance(root, torch.Tensor):
                self.backward.add_unseen(root, sources.value_of)
        in_region = sources.open_ended and self._scopes.at_top
        for gradient, was_passed in gradients:
            if was_passed and in_region and not sources.is_known(gradient):
                sources.add_input("gradient", gradient)
            elif was_passed:
                sources.value_of(gradient)
        running = self.backward.run(creates_graph=creates_graph, caller=id(caller), called=called)
        with running, ExitStack() as stack:
            for root, (gradient, _) in zip(roots, gradients, strict=False):
                tensors = isinstance(root, torch.Tensor) and isinstance(gradient, torch.Tensor)
                if tensors and not sources.is_known(gradient):
                    # The ones that autograd makes if the caller passes no gradient.
                    scope = self._scopes.running.inner
                    node = values.append("ones_like", scope, [sources.value_of(root)])
                    node.phase = "backward"
                    values.give(node, gradient)
            operation = self._operations.running
            if operation is not None:
                # The operations of the pass are nodes, so that the operation around them is none.
                # torch has put the function mode aside in it: another mode sees the functions of
                # the pass.
                operation.recorded = True
                stack.enter_context(self._operations.function())
                if self.functions is not None:
                    stack.enter_context(self.functions())
            yield

    def add_returned(self, gradients: object) -> None:
        """Record the gradients that a backward pass has returned to its caller."""
        values = map(self._values.find, collect_tensors(gradients, []))
        self.backward.gave.update(value for value in values if value is not None)

    # -- optimizer steps ----------------------------------------------------------------

    def begin_step(self, optimizer: torch.optim.Optimizer, caller: FrameType) -> None:
        """Record that an optimizer begins a step, in this Python frame."""
        with without_functions():
            for group in optimizer.param_groups:
                # Gradients that were set unseen are found here, too.
                for parameter in group["params"]:
                    self.backward.was_set(parameter)
            self._optimizers.begin(optimizer, caller)

    def end_step(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Record the end of an optimizer's step; None ends all steps that have no end yet."""
        with without_functions():
            self._optimizers.end(optimizer)

    def fail_step(self, caller: FrameType) -> None:
        """Record that an error leaves a Python frame, and ends the step that it called, if any."""
        if self._optimizers.steps:
            with without_functions():
                self._optimizers.end(caller=caller)

    def closure(self) -> AbstractContextManager[None]:
        """Exclude a block (a closure) from the running step."""
        return self._optimizers.outside() if self._optimizers.steps else nullcontext()
