"""The training step around a model: what backward passes and optimizers tell the recorder."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import FrameType
from typing import Any

import torch

from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Argument, Node, Value
from tbscope.ir.scopes import Scope
from tbscope.sources.eager.record.backward import Backward
from tbscope.sources.eager.record.operation import Operations
from tbscope.sources.eager.record.optimizers import Optimizers
from tbscope.sources.eager.record.passed import Passed, Passing
from tbscope.sources.eager.record.tensors import TensorRecorder
from tbscope.sources.eager.record.whereabouts import Whereabouts
from tbscope.sources.torch.internals import outside_modes, without_functions
from tbscope.sources.torch.literals import collect_tensors

__all__ = ["StepRecorder"]


class StepRecorder(TensorRecorder):
    """Knows the backward passes and the steps of optimizers of one run.

    Args:
        builder: The door to the graph.
        operations: The operation that runs, and those around it.
        open_ended: Whether an unknown tensor is an input where no module runs.

    Attributes:
        operations: The operation that runs, and those around it.
        backward: The backward passes; None where they are no part of the graph.
        optimizers: The steps of optimizers; None where they have no boxes.
        passed: What backward passes have given that are one operation each.
        functions: Returns a mode that sees torch's functions again, inside of one of them.
    """

    _where: Whereabouts

    def __init__(self, builder: GraphBuilder, operations: Operations, *, open_ended: bool) -> None:
        super().__init__(builder, open_ended=open_ended)
        self.operations = operations
        self.backward: Backward | None = None
        self.optimizers: Optimizers | None = None
        self.passed = Passed(builder, self._values, self._discovery.name_of_leaf)
        self.functions: Callable[[], AbstractContextManager[Any]] | None = None

    def record_backward(self) -> None:
        """Make backward passes a part of the graph, from now on."""
        self.backward = Backward(
            self.builder, self.scopes, self._values, self._discovery.name_of_leaf
        )
        find, passes = self._values.find, self.backward.passes
        self.optimizers = Optimizers(self.builder, self.scopes, find, passes)
        self._discovery.from_step = self._of_a_step

    def branch_steps(self, branch: "StepRecorder") -> None:
        """Have the recorder of another thread know what that one does of training steps."""
        if self.backward is None or self.optimizers is None:
            return
        backward = branch.backward = self.backward.branch(branch.scopes)
        branch.optimizers = self.optimizers.branch(branch.scopes, backward.passes)
        branch._discovery.from_step = branch._of_a_step

    @property
    def knows_gradients(self) -> bool:
        """Whether each gradient is known that can be asked for now: no pass runs that makes one."""
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
        """Record what autograd's engine runs in a block.

        Args:
            roots: What it begins at.
            gradients: The gradient of each root, None for what needs none, and whether it was given
                to autograd; else it has made it.
            creates_graph: Whether what runs can be differentiated itself.
            caller: The Python frame that calls the engine.
        """
        if self.backward is None or self.paused:
            operation = self.operations.running
            if operation is not None and operation.passing is None:
                operation.passing = Passing(self._known_value)
                operation.passing.makes([one for one, given in gradients if not given])
            yield
            return
        called = self._where.of_call(caller)[1:]
        operation = self.operations.running
        if self.optimizers is not None:
            self.optimizers.pass_begins()
        for root in roots:
            if isinstance(root, torch.Tensor):
                self.backward.tell_unseen(root, self.value_of)
        for gradient, given in gradients:
            if given:
                self._discovery.know_given("gradient", gradient)
        with ExitStack() as stack:
            stack.enter_context(
                self.backward.run(creates_graph=creates_graph, caller=id(caller), called=called)
            )
            for root, (gradient, _) in zip(roots, gradients, strict=False):
                self._know_gradient(root, gradient)
            if operation is not None:
                operation.told = True
                stack.enter_context(self.operations.function())
                if self.functions is not None:
                    stack.enter_context(self.functions())
            yield

    def gave_gradients(self, gradients: Any) -> None:
        """Take note of what a backward pass has given to whoever asked for it."""
        if self.backward is not None and not self.paused:
            found = map(self._values.find, collect_tensors(gradients, []))
            self.backward.gave.update(value for value in found if value is not None)

    def _known_value(self, tensor: torch.Tensor) -> Value | None:
        return self.value_of(tensor) if self._discovery.is_known(tensor) else None

    def know_gradient(self, leaf: torch.Tensor, gradient: torch.Tensor) -> None:
        """Have the gradient of a leaf from before the run be an input, once anything reads it."""
        if not self.passed.has_given(gradient):
            self.add_hidden_input(f"{self._discovery.name_of_leaf(leaf)[0]}.grad", gradient)

    def gradient_was_set(self, leaf: torch.Tensor) -> None:
        """Take note that a script has given a tensor its gradient, which a pass may have made."""
        if self.backward is not None and not self.paused:
            self.backward.was_set(leaf)

    def _of_a_step(self, tensor: torch.Tensor) -> Value | None:
        """Return the value of a tensor that a training step has kept; None for any other."""
        assert self.backward is not None
        assert self.optimizers is not None
        value = self.backward.saved(tensor)
        if value is not None:
            return value
        with without_functions():
            node = self.optimizers.kept(tensor) or self.backward.earlier_gradient(tensor)
            return None if node is None else self._values.give(node, tensor)

    def place_between_phases(self, scope: Scope | None, values: Sequence[Value]) -> Scope | None:
        """Return where an operation stands that runs after a backward pass or an optimizer's step.

        A method of a module may run it while no call of the module does, and may have run before:
        of what reads gradients or parameters that were updated, the box is another one.

        Args:
            scope: Where it would stand without.
            values: What it reads.
        """
        scopes = self.scopes
        first = scopes.over_since(scope)
        if scope is None or first is None:
            return scope
        pending, seen = [value.producer for value in values], set[Node]()
        while pending:
            node = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            phase = None if node.phase == "forward" else scopes.phase_of(node.scope)
            if phase is None:
                pending += [value.producer for value in node.inputs]
                pending += node.control_inputs
            elif phase >= first:
                return scopes.open_again(scope)
        return scope

    def begin_step(self, optimizer: torch.optim.Optimizer, caller: FrameType) -> None:
        """Take note that an optimizer begins a step, in this Python frame."""
        with outside_modes():
            self.about_to_step(optimizer)
        if self.optimizers is not None:
            with without_functions():
                for group in optimizer.param_groups:
                    # Of those that were set unseen, too.
                    for parameter in group["params"]:
                        self.gradient_was_set(parameter)
                self.optimizers.begin(optimizer, caller)

    def end_step(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Take note that an optimizer has made a step; None for all that have not told."""
        if self.optimizers is not None:
            with without_functions():
                self.optimizers.end(optimizer)

    def fail_step(self, caller: FrameType) -> None:
        """Take note that an error ends what runs in a Python frame: a step, if it called one."""
        if self.optimizers is not None and self.optimizers.steps:
            with without_functions():
                self.optimizers.end_broken(caller)

    def outside_step(self) -> AbstractContextManager[None]:
        """Have a block (a closure) be no part of the step that runs."""
        if self.optimizers is None or not self.optimizers.steps:
            return nullcontext()
        return self.optimizers.outside()

    def _know_gradient(self, root: Any, gradient: Any) -> None:
        """Make known the gradient of a root: the ones that autograd makes where none is given."""
        if not (isinstance(root, torch.Tensor) and isinstance(gradient, torch.Tensor)):
            return
        if not self._discovery.is_known(gradient):
            values = [self.value_of(root)]
            arguments = [Argument(None, value) for value in values]
            scope = self.scopes.running.inner
            node = self._append_op("ones_like", scope, values, arguments, [], None, [])
            node.phase = "backward"
            self._values.give(node, gradient)
