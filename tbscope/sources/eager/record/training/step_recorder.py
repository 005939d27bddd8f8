"""What a recorder knows of tensors where no operation is seen, and of training steps.

Tensors stand in for others, show others, are swapped, or go through a module as they are. Backward
passes and optimizers tell of theirs.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import FrameType
from typing import Any

import torch

from tbscope.analysis.notes import Read
from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Node, Value
from tbscope.ir.scopes import Scope, upward
from tbscope.sources.eager.record.backward_io import Passed, Passing
from tbscope.sources.eager.record.call_site import Place, Whereabouts
from tbscope.sources.eager.record.collectives import Collectives
from tbscope.sources.eager.record.operation import Operations
from tbscope.sources.eager.record.scope_stack import Failures, Frame, ScopeStack
from tbscope.sources.eager.record.tensor_sources import Discovery
from tbscope.sources.eager.record.training.backward import Backward
from tbscope.sources.eager.record.values import TensorValues
from tbscope.sources.torch.calling.argument_values import Literals, collect_tensors
from tbscope.sources.torch.calling.signatures import Arrangements
from tbscope.sources.torch.collectives import is_wait
from tbscope.sources.torch.compat.tensors import outside_modes, without_functions
from tbscope.sources.torch.distributed import is_of_c10d, process_rank, world_size
from tbscope.sources.torch.fake import StandIns
from tbscope.sources.torch.operations import KernelFacts
from tbscope.sources.torch.subclasses import held_tensors, same_storage

__all__ = ["StepRecorder", "tell_nobody"]


def tell_nobody(*_: Any) -> None:
    """Take note of nothing."""


class StepRecorder:
    """Knows the tensors, the backward passes and the steps of optimizers of one run.

    Args:
        name: The name of the graph.
        boundary: The function that wraps each module call (see `Locator`).
        open_ended: Whether the run is a region of code rather than one call, so that a
            tensor nobody knows is an input where no module runs.
        bodies: Whether the kernels of each operation are recorded as nodes.

    Attributes:
        builder: The door to the graph.
        graph: What has been recorded so far.
        operations: The operation that runs, and those around it.
        scopes: The scopes that are open.
        registry: The places of the modules and their tensors.
        paused: Whether it looks away.
        left: Whether it looks away for good, as its thread did not end it.
        turn: Held by the thread that records, where several do.
        value_of: Returns the value that a tensor holds now; a new one if it was never seen.
        nest: Returns a nest with the values of its tensors.
        add_input: Makes a tensor an input of the graph under a path.
        add_hidden_input: Makes it one as soon as something reads it.
        live_results: Returns what operations made, somebody holds, and nothing has read.
        about_to_set: To be told of a tensor that is about to be set by what is no operation.
        about_to_accumulate: To be told that a backward pass is about to add to gradients.
        about_to_step: To be told of an optimizer that is about to make a step.
        backward: The backward passes, and the steps of optimizers; None where they are no part of
            the graph.
        passed: What backward passes have given that are one operation each.
        ended: Whether an error ended the run.
        strands: What several threads do of the run; None where only one has done anything.
        before_closing: Called once the run is over, while all is known; None for nothing.
        failed_calls: The module calls that the latest errors left.
        failed_operations: The operations that raised them.
        modules_called: The module of each call of the graph.
        scripted: Whether a scripted module was called, which may run in several threads.
        collectives: What ranks do together.
        distributed: Whether this is a process of a distributed run.
        where: Finds where operations stand.
        functions: Returns a mode that sees torch's functions again, inside of one of them.
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
        self._arrangements = Arrangements()
        self._reads = list[Read]()
        self.turn = threading.RLock()
        self.where = Whereabouts(self.scopes, boundary.__code__)
        self._values = TensorValues(self.builder)
        # Not of the recorder itself: with a way back it would be garbage for the collector alone.
        self.collectives = Collectives(self._values, self.registry)
        self.graph.world_size = world_size()
        self._find_by(Discovery(self.scopes, self._values, open_ended=open_ended))
        self.distributed = self._discovery.distributed
        self.add_hidden_input = self._discovery.add_hidden_input
        self.live_results = self._values.unread
        # Told of what changes a tensor and is no operation; nobody, where nothing is put back.
        self.about_to_set: Callable[[torch.Tensor], None] = tell_nobody
        self.about_to_accumulate: Callable[[], None] = tell_nobody
        self.about_to_step: Callable[[torch.optim.Optimizer], None] = tell_nobody
        self._replaced: set[int] = set()
        self.backward: Backward | None = None
        self.passed = Passed(self._values, self._discovery.name_of_leaf)
        self.functions: Callable[[], AbstractContextManager[Any]] | None = None

    def _find_by(self, discovery: Discovery) -> None:
        self._discovery = discovery
        self.value_of, self.add_input = discovery.value_of, discovery.add_input
        self.nest = Literals(discovery.value_of, discovery.lying_in).nest

    # -- stand-ins ----------------------------------------------------------------------

    def use(self, stand_ins: StandIns) -> None:
        """Take the stand-ins of tensors for those tensors."""
        self._discovery.stand_in = stand_ins.of
        for module in self.registry.modules():
            self.add_stand_ins(module, stand_ins)

    def add_stand_ins(self, module: torch.nn.Module, stand_ins: StandIns) -> None:
        """Have stand-ins made for the tensors of one module, and know them."""
        for tensor, twin in stand_ins.add(module):
            self.registry.add_stand_in(tensor, twin)

    @contextmanager
    def others_stand_in(self, module: torch.nn.Module, names: Iterable[str]) -> Iterator[None]:
        """Have other tensors stand in for those that a module and its parts hold, for a block.

        The module is met now, with what it holds, though it is called in the block.

        Args:
            module: The module.
            names: Which of its parameters and buffers these are, as in `named_parameters()`.
        """
        with self.turn:
            place = self.scopes.place_of(module)
            self._discovery.replaced.append(place)
            held = dict(module.named_parameters(remove_duplicate=False))
            for name in held.keys() & set(names):
                known = self.registry.tensor(held[name])
                if known is not None:
                    self._replaced.add(known.number)
        try:
            yield
        finally:
            self._discovery.replaced.remove(place)

    def _replaced_parameters(self) -> set[int]:
        """Return the numbers of the parameters in whose place others were used."""
        tensors = self.registry.tensors() if self._values.wrappers.any else ()
        used = [self.registry.tensor(each) for each in tensors if self._values.find(each)]
        return self._replaced.union(place.number for place in used if place is not None)

    # -- what no operation tells ----------------------------------------------------------

    def add_face(self, face: torch.Tensor, tensor: torch.Tensor) -> None:
        """Take note of a tensor that shows another by a class of its own (`Parameter(tensor)`)."""
        if face is not tensor and self.is_known(tensor):
            self._values.wrappers.show(face, self.value_of(tensor))

    @contextmanager
    def swapping(self, one: torch.Tensor, other: torch.Tensor) -> Iterator[None]:
        """Have two tensors swapped, in a block: after it each is what the other was.

        torch swaps none to which anyone has a weak reference.
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

    def know(self, result: Any) -> None:
        """Take what is inside of wrappers out of them, before the scope of a function is closed."""
        if self._values.wrappers.any:
            for tensor in collect_tensors(result, []):
                if self._values.wrappers.inside(tensor) is not None:
                    self.value_of(tensor)

    def add_slices(self, operands: list[torch.Tensor], given: Any) -> None:
        """Make known the parts of its operands that an operation hands to a function.

        Args:
            operands: The tensors that the operation was given.
            given: What it hands on; the slices among it were cut unseen.
        """
        for tensor in collect_tensors(given, []):
            if not self.is_known(tensor):
                with without_functions():
                    whole = [one for one in operands if same_storage(one, tensor)] or operands
                values = [self.value_of(one) for one in whole]
                self._values.give(
                    self._values.append("slice", self.scopes.running.inner, values), tensor
                )

    def add_output(self, name: str, tensor: torch.Tensor) -> None:
        """Make the value that a tensor holds now an output of the graph under this path."""
        tensor = self._discovery.stood_in(tensor)
        value = self.value_of(tensor)
        writers = self._values.earlier_writers([tensor], [value])
        self.builder.add_output(name, value, control_inputs=writers)

    # -- training steps -------------------------------------------------------------------

    def record_backward(self) -> None:
        """Make backward passes a part of the graph, from now on."""
        self.backward = Backward(self._discovery)

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
        operation = self.operations.running
        if self.backward is None or self.paused:
            if operation is not None and operation.passing is None:
                operation.passing = Passing(self._known_value)
                operation.passing.makes([one for one, given in gradients if not given])
            yield
            return
        called = self.where.of_call(caller)[1:]
        self.backward.optimizers.helpers.clear()
        for root in roots:
            if isinstance(root, torch.Tensor):
                self.backward.tell_unseen(root, self.value_of)
        in_region = self._discovery.open_ended and self.scopes.at_top
        for gradient, given in gradients:
            if given and in_region and not self.is_known(gradient):
                self.add_input("gradient", gradient)
            elif given:
                self.value_of(gradient)
        with ExitStack() as stack:
            stack.enter_context(
                self.backward.run(creates_graph=creates_graph, caller=id(caller), called=called)
            )
            for root, (gradient, _) in zip(roots, gradients, strict=False):
                tensors = isinstance(root, torch.Tensor) and isinstance(gradient, torch.Tensor)
                if tensors and not self.is_known(gradient):
                    # The ones that autograd makes where none is given.
                    scope = self.scopes.running.inner
                    node = self._values.append("ones_like", scope, [self.value_of(root)])
                    node.phase = "backward"
                    self._values.give(node, gradient)
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
        return self.value_of(tensor) if self.is_known(tensor) else None

    def gradient_was_set(self, leaf: torch.Tensor) -> None:
        """Take note that a script has given a tensor its gradient, which a pass may have made."""
        if self.backward is not None and not self.paused:
            self.backward.was_set(leaf)

    def _place(
        self, frame: FrameType | None, read: list[torch.Tensor], values: list[Value]
    ) -> Place:
        """Return where an operation stands.

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
            # Threads of autograd's own know nothing of the function that waits for them.
            run, step = backward.passes[-1].called
        elif self.scopes.phases:
            scope = self._place_between_phases(scope, values)
        if backward is not None:
            scope = backward.optimizers.place(scope, (called, frame), read, values)
        return scope, source, run, step

    def _place_between_phases(self, scope: Scope | None, values: Sequence[Value]) -> Scope | None:
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
            around = () if node.phase == "forward" else upward(node.scope)
            phase = next((scopes.phases[one] for one in around if one in scopes.phases), None)
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
        if self.backward is not None:
            with without_functions():
                for group in optimizer.param_groups:
                    # Of those that were set unseen, too.
                    for parameter in group["params"]:
                        self.gradient_was_set(parameter)
                self.backward.optimizers.begin(optimizer, caller)

    def end_step(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Take note that an optimizer has made a step; None for all that have not told."""
        if self.backward is not None:
            with without_functions():
                self.backward.optimizers.end(optimizer)

    def fail_step(self, caller: FrameType) -> None:
        """Take note that an error ends what runs in a Python frame: a step, if it called one."""
        if self.backward is not None and self.backward.optimizers.steps:
            with without_functions():
                self.backward.optimizers.end(caller=caller)

    def outside_step(self) -> AbstractContextManager[None]:
        """Have a block (a closure) be no part of the step that runs."""
        if self.backward is None or not self.backward.optimizers.steps:
            return nullcontext()
        return self.backward.optimizers.outside()

    # -- ranks ----------------------------------------------------------------------------

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor holds a value, or is a parameter or buffer of a module."""
        return self._discovery.is_known(tensor)

    def waited(self, work: Any, frame: FrameType) -> None:
        """Take note that a Python frame has waited for what runs in the background."""
        if self.paused:
            return
        outer = frame.f_back
        if (
            outer is not None
            and frame.f_code.co_name == "wait"
            and is_of_c10d(frame.f_code.co_filename)
        ):
            # What holds several works (a coalescing manager) waits for each.
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
            self._values.give_written(node, read, [], read)

    def took_over(
        self, facts: KernelFacts, outer: tuple[Any, ...], args: tuple[Any, ...], node: Node | None
    ) -> bool:
        """Have those that hold what was waited for hold what the wait gave.

        Args:
            facts: A kernel that ran inside of another one.
            outer: The arguments of the other one.
            args: Its own arguments.
            node: Its node.
        Returns:
            Whether any of the arguments of the other one holds it.
        """
        if node is None or not is_wait(facts.name):
            return False
        found = False
        for tensor in collect_tensors(outer, []):
            if type(tensor) is not torch.Tensor and any(
                part is args[0] for _, part in held_tensors(tensor)
            ):
                self._values.wrappers.keep(tensor, node.outputs[0])
                found = True
        return found
