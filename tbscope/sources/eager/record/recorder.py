"""The recorder: the hub of one run, which delivers its events to subscribers and builds a graph.

Sources of events (`watch/`) call the functions of `Recorder.events`. The subscribers are the
dataflow, the module calls, and, where they are asked for, training and the snapshots of a run that
is restored. The recorder changes nothing that it sees.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from functools import partial
from types import FrameType, MethodType
from typing import Any

import torch

from tbscope.analysis.notes import find_notes
from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Graph, Note, Source
from tbscope.sources.eager.record.call_site import CallSites
from tbscope.sources.eager.record.collective_scopes import move_to_modules, move_to_recomputed
from tbscope.sources.eager.record.dataflow import Dataflow
from tbscope.sources.eager.record.events import (
    Events,
    ignore_event,
    ignored,
    ignored_block,
    nonfatal,
    nonfatal_block,
)
from tbscope.sources.eager.record.module_calls import ModuleCalls
from tbscope.sources.eager.record.operation import Operations
from tbscope.sources.eager.record.scope_stack import ScopeStack
from tbscope.sources.eager.record.tensor_sources import TensorSources
from tbscope.sources.eager.record.tensors.values import TensorValues
from tbscope.sources.eager.record.training.backward import Backward
from tbscope.sources.eager.record.training.joined_passes import join_passes
from tbscope.sources.eager.record.training.optimizer_step import Optimizers
from tbscope.sources.eager.record.training.training import Training
from tbscope.sources.eager.restore.preserve import Snapshot
from tbscope.sources.torch.compat.tensors import outside_modes
from tbscope.sources.torch.distributed import process_rank, world_size
from tbscope.sources.torch.fake import FakeTensors


class Recorder:
    """The recorder of one run in one thread.

    Args:
        name: The name of the graph.
        boundary: The function that wraps each module call (see `CallSiteFinder`).
        open_ended: Whether the run is a region of code rather than one call, so that an unknown
            tensor is an input while no module runs.
        bodies: Whether the kernels of each operation are recorded as nodes.
        failed: Receives the first error of the recorder's own, after which recording is suspended
            and the run goes on; None to raise such errors.

    Attributes:
        events: The functions that take the events of the run.
        flow: The operations, as nodes.
        calls: The module calls.
        training: The backward passes and optimizer steps; None if they are no part of the graph.
        builder: The graph builder.
        graph: The graph recorded so far.
        operations: The running operation, and its enclosing operations.
        scopes: The open scopes.
        registry: The modules and their tensors.
        where: The search for call sites.
        suspended: Whether recording is suspended.
        abandoned: Whether recording is suspended for good, as its thread did not end the watch.
        ended: Whether an error ended the run.
        lock: The lock of the thread that records, if several threads do.
        threads: The work of several threads for the run; None if only one thread has worked.
        distributed: Whether this is a process of a distributed run.
    """

    def __init__(
        self,
        name: str,
        *,
        boundary: Callable[..., Any],
        open_ended: bool = False,
        bodies: bool = False,
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        self.builder = builder = GraphBuilder(name, rank=process_rank())
        self.graph = builder.graph
        self.graph.world_size = world_size()
        scopes, values = ScopeStack(builder), TensorValues(builder)
        sources = TensorSources(scopes, values, open_ended=open_ended)
        operations = Operations(self.graph.uncounted, keep_runs=bodies)
        where = CallSites(scopes, boundary.__code__)
        self.registry, self.distributed = scopes.registry, sources.distributed
        self.suspended = self.abandoned = self.ended = False
        self.lock = threading.RLock()
        self.threads: Any = None
        self.training: Training | None = None
        self._failed = failed
        self._changes: Snapshot | None = None
        self._about_to_step: Callable[[torch.optim.Optimizer], None] = ignore_event
        self.flow = Dataflow(scopes, where, values, sources, operations)
        self.calls = ModuleCalls(self.flow, self.suspend)
        self.connect()

    def connect(self, *guards: Any) -> None:
        """Set the events: the functions of the subscribers that this run has.

        Args:
            guards: The guard of functions and that of functions that return blocks; or none.
        """
        flow, calls, training, changes = self.flow, self.calls, self.training, self._changes
        self.scopes, self.operations, self.where = flow.scopes, flow.operations, flow.where
        events = Events(
            operation_ended=flow.add_operation,
            operation_failed=flow.fail_operation,
            kernel_ended=flow.add_kernel,
            content_read=flow.add_read,
            slices_made=flow.add_slices,
            alias_made=flow.add_alias,
            tensors_swapped=self._swapping,
            tensors_replaced=calls.replacing,
            about_to_write=ignore_event if changes is None else changes.about_to_write,
            about_to_set=ignore_event if changes is None else changes.about_to_set,
            about_to_accumulate=ignore_event if changes is None else changes.about_to_accumulate,
            scope_opened=partial(flow.scopes.open_block, by_script=True),
            scope_closed=calls.close_scope,
            call_begins=calls.enter_call,
            call_ended=calls.leave_call,
            call_failed=calls.fail_call,
            function_runs=calls.function,
            shard_step=calls.shard_step,
            graph_replayed=self._replay,
            storage_freed=calls.add_free,
            backward_pass=self._backward_pass,
            gradient_set=ignore_event if training is None else training.backward.was_set,
            step_begins=self._begin_step,
            step_ended=ignore_event if training is None else training.end_step,
            step_failed=ignore_event if training is None else training.fail_step,
            closure_runs=nullcontext if training is None else training.closure,
            work_awaited=flow.add_wait,
            wait_inside=ignore_event if flow.ranks is None else flow.ranks.take_over,
        )
        if self._failed is not None:
            events = events.guarded(nonfatal(self.fail), nonfatal_block(self.fail))
        self.events = events.guarded(*guards) if guards else events
        self.operations.about_to_write = self.events.about_to_write

    def branch(self, source: Source | None) -> "Recorder":
        """Return a recorder for work that another thread does: it adds to the same graph.

        Args:
            source: The line that has handed the work over.
        """
        branch: Recorder = _copy_of(self, {})
        branch.scopes.begin_thread(source)
        branch.flow.find_by(branch.flow.sources)
        branch.operations.running = branch.operations.idle = None
        if branch.training is not None:
            branch.training.backward.begin_thread()
        return branch

    # -- preparation --------------------------------------------------------------------

    def record_training(self) -> None:
        """Make backward passes and optimizer steps a part of the graph, from now on."""
        flow = self.flow
        self.training = flow.training = Training(flow.sources, flow.where, flow.operations)
        self.connect()

    def report_changes(
        self,
        changes: Snapshot,
        about_to_step: Callable[[torch.optim.Optimizer], None] = ignore_event,
    ) -> None:
        """Report each change of a tensor, and each step of an optimizer, before it is made."""
        self._changes, self._about_to_step = changes, about_to_step
        self.connect()

    def use_fakes(self, fakes: FakeTensors) -> None:
        """Use fake tensors in the place of the tensors of all modules."""
        self.flow.sources.stand_in = fakes.of
        for module in self.registry.modules():
            self.add_fakes(module, fakes)

    def add_fakes(self, module: torch.nn.Module, fakes: FakeTensors) -> None:
        """Make fake tensors for the tensors of one module, and register them."""
        for tensor, fake in fakes.add(module):
            self.registry.add_stand_in(tensor, fake)

    # -- suspension ---------------------------------------------------------------------

    @contextmanager
    def suspend(self) -> Iterator[None]:
        """Suspend recording during a block."""
        before, self.suspended = self.suspended, True
        try:
            yield
        finally:
            self.suspended = before

    def fail(self, error: Exception) -> None:
        """Suspend recording from now on, and report an error of the recorder's own."""
        if not self.suspended:
            self.suspended = True
            assert self._failed is not None
            self._failed(error)

    # -- events with several subscribers ------------------------------------------------

    @contextmanager
    def _swapping(self, first: torch.Tensor, second: torch.Tensor) -> Iterator[None]:
        """Swap the values of two tensors that a block swaps, also while recording is suspended."""
        with self.flow.swapping(first, second, recorded=not self.suspended):
            yield

    def _replay(self, frame: FrameType) -> None:
        """Record that a CUDA graph is about to be replayed, whose kernels are not seen."""
        if self._changes is not None:
            for tensor in self._changes.kept():
                # A kernel that changes a parameter belongs to an optimizer's step.
                if tensor.is_cuda and not tensor.requires_grad:
                    self._changes.about_to_write(tensor)
        note = Note(
            "a CUDA graph was replayed: the operations that it has captured are not drawn; to see "
            "them, draw the model before the capture",
            self.where.source_at(frame),
        )
        if note not in self.graph.notes:
            self.graph.notes.append(note)

    @contextmanager
    def _backward_pass(
        self, roots: Sequence[Any], gradients: Sequence[tuple[Any, bool]], **about: Any
    ) -> Iterator[Callable[[Any], None]]:
        """Record a backward pass, by its operations or as a part of the running operation.

        Args:
            roots: See `Training.backward_pass`.
            gradients: The same.
            about: The same.
        Returns:
            A callable that takes the gradients which the pass returns to its caller.
        """
        if self.training is None or self.suspended:
            self.flow.begin_inner_pass([each for each, was_passed in gradients if not was_passed])
            yield ignore_event
            return
        with self.training.backward_pass(roots, gradients, **about):
            yield self.training.add_returned

    def _begin_step(self, optimizer: torch.optim.Optimizer, caller: FrameType) -> None:
        """Record that an optimizer begins a step, in this Python frame."""
        with outside_modes():
            self._about_to_step(optimizer)
        if self.training is not None:
            self.training.begin_step(optimizer, caller)

    # -- the end ------------------------------------------------------------------------

    def end_with(self, error: BaseException, text: str) -> None:
        """Complete the graph of a run that an error ended, with the operation that raised it.

        Args:
            error: The error.
            text: Its message, on one line.
        """
        node = self.flow.failed.of(error)
        if node is not None:
            node.attributes["error"] = text
            self.builder.append(node)
        source = node.source if node is not None else None
        self.graph.notes.insert(0, Note(f"the run ended here: {text}", source, node))
        self.ended = True

    def close(self) -> Graph:
        """Release everything but the graph after the run; return the graph."""
        graph, ranks = self.graph, self.flow.ranks
        graph.notes += find_notes(
            graph,
            reads=self.flow.reads,
            whole=not self.ended,
            stood_in=self.calls.replaced_parameters(),
        )
        if ranks is not None:
            graph.mesh = ranks.groups.mesh()
            boxes = {*self.scopes.boxes.values()}
            outside = [each for each in graph.nodes if each.collective and each.scope not in boxes]
            move_to_recomputed(graph, boxes)
            join_passes(graph)
            move_to_modules(graph, outside)
            ranks.begun.clear()
        # The recorder refers to itself: without this, all tensors would live until the next garbage
        # collection.
        self.flow.forget()
        self.calls.forget()
        self.training = self._changes = self.threads = None
        self._about_to_step = ignore_event
        self.events = self.events.guarded(ignored, ignored_block)
        return graph


# The parts of a recorder of which each thread has its own.
_PARTS = (
    Recorder,
    Dataflow,
    ScopeStack,
    CallSites,
    TensorSources,
    Operations,
    ModuleCalls,
    Training,
    Backward,
    Optimizers,
)


def _copy_of(part: Any, copies: dict[int, Any]) -> Any:
    """Return a copy of a part of a recorder that refers to copies of other parts.

    Parts that all threads share, and all other objects, are returned themselves.

    Args:
        part: The part, a method of a part, or any other object.
        copies: The copies so far, by identity of the part.
    """
    if isinstance(part, MethodType):
        return MethodType(part.__func__, _copy_of(part.__self__, copies))
    if not isinstance(part, _PARTS):
        return part
    if id(part) not in copies:
        copies[id(part)] = clone = copy(part)
        for name, attribute in vars(part).items():
            setattr(clone, name, _copy_of(attribute, copies))
    return copies[id(part)]
