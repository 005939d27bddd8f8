"""Recording of a model's next training step, found by the parameters that an optimizer changes.

The training loop needs no changes. While a `TrainingWatch` waits for a step, calls of the model and
of its parts go through it, and compiled functions run as written. Patches of autograd and hooks of
all optimizers report theirs. Operations between the calls and the backward pass (a loss) are not
watched: their names come from autograd's own graph, and so do those of a model that no call shows.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from threading import get_ident
from types import FrameType
from typing import Any
from weakref import finalize, ref

import torch

from tbscope.ir.graph import Graph, Note
from tbscope.messages import error_text
from tbscope.sources.eager.record.describe_calls import describe_calls
from tbscope.sources.eager.record.events import ignore_event
from tbscope.sources.eager.record.recorder import Recorder
from tbscope.sources.eager.recorded_step import (
    CallWrapper,
    CountingHook,
    Mark,
    OpenWatch,
    RecordedStep,
)
from tbscope.sources.eager.thread_state import waiting, watching
from tbscope.sources.eager.watch.changes_outside_modes import SETTERS
from tbscope.sources.eager.watch.compiler_bypass import running_eagerly
from tbscope.sources.eager.watch.module_calls import watched_call
from tbscope.sources.eager.watch.optimizer_hooks import watching_optimizers
from tbscope.sources.torch.autograd import (
    accumulates_into,
    has_gradient,
    needs_gradient,
    reachable_nodes,
    running_node,
    sequence_number,
)
from tbscope.sources.torch.calling.pytree import result_leaves
from tbscope.sources.torch.compat.compiler import is_captured
from tbscope.sources.torch.compat.modules import (
    ModuleCall,
    ScriptModule,
    is_compiled_in_place,
    is_tracing,
    wrap_calls,
)
from tbscope.sources.torch.compat.tensors import functorch_inner, in_forward_mode
from tbscope.sources.torch.optimizers import (
    are_shared,
    has_optimizer,
    parameters_of,
    reports_steps,
)

# Recorded calls of a model between two optimizer steps; further calls are only counted.
_MOST_CALLS = 8
# Optimizer steps of the model that pass unrecorded: calls in evaluation mode are recorded after so
# many, and the waiting ends after so many.
_EVALUATING, _MOST_UNRECORDED = 2, 10


class TrainingWatch:
    """Records the next training step of a model, or its next call alone.

    An error of ours ends the waiting and never the training loop.

    Args:
        model: The model.
        done: Receives each graph, and the number of the model's calls before it.
        failed: Receives the text of an error, or the reason why no step can be recorded, after
            which nothing is recorded any more.
        backward: Whether the backward pass and the optimizer step are recorded.
        optimizer: The optimizer whose step completes the graph, or any object around it; None for
            the optimizers of the parameters whose gradients the step computes.
        every: Number of calls after which the next graph is recorded; None for one graph only.

    Attributes:
        is_over: Whether nothing is recorded any more.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        done: Callable[[Graph, int], None],
        failed: Callable[[str], None],
        backward: bool,
        optimizer: object | None,
        every: int | None,
    ) -> None:
        # The waiting, and the user's handle on it, must not keep the model alive.
        self._model = ref(model)
        self._done, self._failed = done, failed
        self._backward, self._every = backward, every
        self._given: Callable[[], object] = lambda: optimizer
        with suppress(TypeError):
            # Lists, and None, take no weak references; one that is gone makes no step.
            reference = ref(optimizer)
            self._given = lambda: reference() or ()
        self._calls = self._next = self._unrecorded = 0
        self._open: OpenWatch | None = None
        # An optimizer whose parameters are copies of the model's, in higher precision.
        self._copies: Callable[[], object] = lambda: None
        # The optimizers of the latest step that was not recorded, by identity.
        self._round: set[int] = set()
        # Whether a call could not be recorded; whether the model ran since the latest step of an
        # optimizer.
        self._called_unrecorded = self._heard = False
        # The threads in which the model, or a part of it, runs.
        self._inside: list[int] = []
        # `_eager` is open until the step ends, `_reports` until the call after it, `_counting`
        # between two recordings.
        self._eager, self._reports, self._counting = ExitStack(), ExitStack(), ExitStack()
        self._wrapper: Callable[[], CallWrapper | None] = lambda: None
        self._drawn = self.is_over = False
        self._why = ""
        # No hook reports the model's deletion, and until `remove` all models run uncompiled.
        self._gone = finalize(model, self.remove)
        self._gone.atexit = False
        self._wait()

    @property
    def _step(self) -> RecordedStep:
        """The part of the next step that has been recorded."""
        wrapper = self._wrapper()
        return RecordedStep() if wrapper is None else wrapper.step

    def _take_step(self) -> RecordedStep:
        """Return the recorded part of a step, and forget it."""
        wrapper, step = self._wrapper(), self._step
        if wrapper is not None:
            wrapper.step = RecordedStep()
        self._called_unrecorded = False
        return step

    def remove(self) -> None:
        """Stop waiting; the recording of an unfinished step is dropped."""
        self.is_over = True
        if self._open is not None:
            # Other recorders may watch inside of the running call, so its watch ends when the call
            # does.
            self._step.suspend()
        else:
            self._end()

    def close(self, *, completes: bool = True) -> str | None:
        """Stop waiting.

        Args:
            completes: Whether a step that lacks only an optimizer is complete.
        Returns:
            The reason why no step was recorded, or None if one was, or if an error was reported.
        """
        reason, step = None, self._step
        if not self.is_over:
            with self._nonfatal():
                ends = self._given() is None or step.changed
                if completes and self._open is None and step.passed and ends:
                    self._finish()
                elif not self._drawn:
                    reason = self._reason()
        self.remove()
        return reason

    def _reason(self, *, stepped: bool = False) -> str:
        """Return the reason why no step is recorded, if an optimizer has just `stepped` or not."""
        if self._unrecorded:
            return f"{self._why}, in {self._unrecorded} optimizer step{'s'[: self._unrecorded > 1]}"
        if self._step.passed:
            which = "its optimizer" if self._given() is None else "the optimizer that was given"
            return f"{which} has made no step"
        if self._step.recorder is not None:
            return "no backward pass has gone through the call that was recorded"
        if stepped and not self._called_unrecorded:
            return "no backward pass has computed gradients of its parameters"
        mode = " in training mode" if self._backward else ""
        return f"no call of the model{mode} has come to an end"

    def _end(self, *, stepping: bool = False) -> None:
        """Release the model and the callers' functions, and drop the recording.

        Args:
            stepping: Whether an optimizer is running through its own hooks now. These stay, with
                the patches of autograd, until the next backward pass or call.
        """
        self.is_over = True
        self._done = self._failed = ignore_event
        self._gone.detach()
        self._drop()
        self._counting.close()
        self._eager.close()
        if not stepping:
            self._reports.close()

    def _wait(self) -> None:
        """Wait for the next step, from now on."""
        self._begun_at = sequence_number()
        self._eager.enter_context(running_eagerly)
        model = self._model()
        if model is not None:
            wrapper = CallWrapper(self._call)
            self._wrapper = ref(wrapper)
            self._eager.enter_context(wrap_calls(model, wrapper))
            for part in model.modules() if self._backward else ():
                if part is not model:
                    self._eager.enter_context(wrap_calls(part, self._call))
        if self._backward:
            self._reports.enter_context(SETTERS)
            self._reports.enter_context(watching_optimizers)
            self._reports.callback(waiting.remove, self)
            waiting.append(self)

    def _count_calls(self, model: torch.nn.Module) -> None:
        """Count the calls of the model that are not recorded."""
        if isinstance(model, ScriptModule) or is_compiled_in_place(model):
            # It runs no hooks.
            self._counting.enter_context(wrap_calls(model, self._count))
        else:
            hook = model.register_forward_hook(CountingHook(self._hook), always_call=True)
            self._counting.callback(hook.remove)

    def _hook(self, model: torch.nn.Module, *_: object) -> None:
        # `DataParallel` copies the model to devices, and its hooks with it.
        if model is self._model():
            self._called()

    def _count(self, call: ModuleCall) -> object:
        """Run a call of the model, and count it if no hook did."""
        calls = self._calls
        try:
            return call.run()
        finally:
            if self._calls == calls:
                self._called()

    def _called(self) -> None:
        self._calls += 1
        if self._step.recorder is None and self._calls <= self._next and not self.is_over:
            # `_reports` is closed here, not in `_finish`: an optimizer runs its hooks while it
            # reports its end.
            self._reports.close()
            if self._calls == self._next:
                self._counting.close()
                self._wait()
                # The step of this call is not recorded, and does not count as unrecorded.
                self._called_unrecorded, self._unrecorded = True, -1

    # -- calls --------------------------------------------------------------------------

    def _call(self, call: ModuleCall) -> object:
        """Run a call of the model or of a part of it; it is recorded if nothing around it is."""
        thread, opened, self._heard = get_ident(), None, True
        if not (
            thread in self._inside
            or self._open is not None
            or running_node() is not None
            or is_tracing()
            or is_captured()
        ):
            with self._nonfatal():
                opened = self._begin_call(call, sys._getframe(1))
        self._inside.append(thread)
        try:
            result = self._count(call) if call.module is self._model() else call.run()
        except BaseException:
            # The next call is recorded instead.
            if opened is not None and self._open is opened:
                with self._nonfatal():
                    self._drop()
            raise
        finally:
            self._inside.remove(thread)
        if opened is not None and self._open is opened:
            with self._nonfatal():
                self._end_call(call, opened, result)
        return result

    def _begin_call(self, call: ModuleCall, caller: FrameType) -> OpenWatch | None:
        if self._is_complete():
            self._finish()
        if self.is_over:
            self._end()
        if self.is_over or not self._is_wanted(call.module):
            return None
        marks = self._step.marks
        if marks and not self._step.passed and not any(mark() for mark in marks):
            # No backward pass can go through the calls so far (`generator(noise).detach()`).
            self._drop()
        recorder, step = self._begin(), self._step
        step.calls += self._is_counted(call.module, step)
        step.awaits_pass = True
        self._open = OpenWatch(recorder, caller)
        self._open.call = recorder.events.call_begins(*call[:3], caller)
        return self._open

    def _is_wanted(self, module: torch.nn.Module) -> bool:
        """Whether the call that begins is recorded."""
        differentiates, step = torch.is_grad_enabled() or in_forward_mode(), self._step
        learns = differentiates and (module.training or self._unrecorded >= _EVALUATING)
        if step.recorder is None:
            wanted = self._calls >= self._next and (learns or not self._backward)
            wanted = wanted and not watching.recorders
            self._called_unrecorded |= differentiates and not wanted
            return wanted
        if watching.recorders or (not learns and (step.passed or module is not self._model())):
            # A metric, or a part that serves none.
            return False
        step.skips |= self._is_counted(module, step) and step.calls == _MOST_CALLS
        return not step.skips

    def _is_counted(self, module: torch.nn.Module, step: RecordedStep) -> bool:
        """Whether a call begins a micro batch, as far as known: some call the parts of a model."""
        return module is self._model() or not step.awaits_pass

    def _begin(self) -> Recorder:
        """Return the recorder of the step, which a call or a backward pass continues or begins."""
        recorder, model = self._step.recorder, self._model()
        if recorder is None:
            recorder = Recorder("step", boundary=watched_call, open_ended=True, failed=self._report)
            assert model is not None
            recorder.registry.add_root(model)
            if self._backward:
                recorder.record_training()
            self._step.recorder = recorder
        return recorder

    def _end_call(self, call: ModuleCall, opened: OpenWatch, result: object) -> None:
        step, recorder = self._step, self._step.recorder
        assert recorder is not None
        if opened.call is not None:
            recorder.events.call_ended(opened.call, call.args, call.kwargs, result)
        if recorder.suspended:
            self._end()
            return
        leaves = result_leaves(result)
        for path, tensor in leaves:
            if call.module is self._model():
                recorder.flow.add_output(path, tensor)
            if tensor.grad_fn is not None and functorch_inner(tensor) is None:
                mark = Mark()
                marks: Any = tensor.grad_fn.metadata
                marks[mark] = mark
                step.marks.append(ref(mark))
        self._close()
        if in_forward_mode() and not any(needs_gradient(tensor) for _, tensor in leaves):
            # With tangents only, no backward pass comes; an optimizer or the next call ends it.
            step.passed = step.spent = True
        if not self._backward or step.stepped:
            self._finish()

    # -- backward passes ----------------------------------------------------------------

    @contextmanager
    def backward_pass(
        self, roots: Sequence[object], caller: FrameType, *, creates_graph: bool
    ) -> Iterator[None]:
        """Record a backward pass that runs in a block, if it goes through the model."""
        if self.is_over and self._open is None:
            # Calls of compiled code run no hooks, so the end is handled here.
            self._end()
        opened = None
        if self._open is None and not self.is_over:
            with self._nonfatal():
                opened = self._begin_pass(roots, caller)
        try:
            yield
        except BaseException:
            if opened is not None:
                # The pass raised; the next step is recorded instead.
                self._drop()
            raise
        if opened is not None:
            step = self._step
            self._close()
            with self._nonfatal():
                if self.is_over or step.recorder is None or step.recorder.suspended:
                    self._end()
                    return
                step.passed, step.awaits_pass = True, False
                # `torch.func.grad` always makes a graph, and drops it.
                step.spent |= not creates_graph or any(
                    isinstance(root, torch.Tensor) and functorch_inner(root) is not None
                    for root in roots
                )
                if step.stepped:
                    # The optimizer step ran inside of the backward pass, as the gradients arrived.
                    self._finish()

    def _begin_pass(self, roots: Sequence[object], caller: FrameType) -> OpenWatch | None:
        step, recorder = self._step, self._step.recorder
        by_calls = recorder is not None and bool(recorder.graph.calls)
        if recorder in watching.recorders or (by_calls and step.skips and not step.awaits_pass):
            return None
        if recorder is None and (
            watching.recorders or self._called_unrecorded or self._calls < self._next
        ):
            return None
        tensors = [root for root in roots if isinstance(root, torch.Tensor)]
        nodes: dict[Any, torch.Tensor | None] = {
            node: accumulates_into(node) for node in reachable_nodes(tensors)
        }
        leaves = [leaf for leaf in nodes.values() if leaf is not None]
        if recorder is None and not self._unrecorded:
            # A watch that begins amid a step waits for the next step, whose calls it sees.
            began = [node._sequence_nr() for node, leaf in nodes.items() if leaf is None]
            if min(began, default=0) < self._begun_at:
                return None
        if not self._leads_to_model(tensors, nodes.keys(), leaves):
            return None
        if not by_calls:
            if self._is_complete():
                self._finish()
            step = self._step
            step.skips |= step.calls == _MOST_CALLS
            if step.skips or self.is_over or self._calls < self._next:
                return None
            step.calls += 1
        recorder = self._begin()
        assert recorder.training is not None
        # Without calls, autograd alone shows the operations of the model.
        recorder.training.backward.unseen_root = None if by_calls else self._model()
        step.leaves += map(ref, leaves)
        self._open = OpenWatch(recorder, caller)
        return self._open

    def _leads_to_model(
        self, roots: list[torch.Tensor], nodes: Iterable[Any], leaves: list[torch.Tensor]
    ) -> bool:
        """Whether a backward pass goes through recorded calls, or to parameters of the model.

        Args:
            roots: The tensors at which it begins.
            nodes: The nodes of autograd's graph that it runs.
            leaves: The tensors whose gradients it computes.
        """
        step = self._step
        if are_shared(self._parameters(), leaves):
            return True
        marks = {mark() for mark in step.marks}
        if marks and not all(marks.isdisjoint(node.metadata) for node in nodes):
            return True
        # `torch.func.grad` replaces the parameters by wrapped tensors.
        wrapped = [tensor for tensor in roots if functorch_inner(tensor) is not None]
        training = None if step.recorder is None else step.recorder.training
        return training is not None and any(
            training.backward.made(function) is not None for function in reachable_nodes(wrapped)
        )

    def _parameters(self) -> list[torch.Tensor]:
        """Return the parameters of the model, and those of a given optimizer that has others."""
        model = self._model()
        own: list[torch.Tensor] = [] if model is None else [*model.parameters()]
        changed = parameters_of(self._given())
        return own if are_shared(own, changed) else own + changed

    def _learnt(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the model's own parameters whose gradients the step computes, and all tensors."""
        leaves = [leaf for each in self._step.leaves if (leaf := each()) is not None]
        own = set(map(id, self._parameters()))
        return [leaf for leaf in leaves if id(leaf) in own], leaves

    def _is_complete(self) -> bool:
        """Whether the step ends with the call, or the pass, that begins now.

        An optimizer ends it. If none has been seen, gradients that are gone show the end; gradients
        that are left are those of a micro batch, and this call is the next micro batch.
        """
        step = self._step
        if not step.spent or self._given() is not None:
            return False
        own, leaves = self._learnt()
        # Sharded modules put other tensors in the place of their parameters, whose gradients stay.
        learnt = own or [*leaves, *self._parameters()]
        if step.changed or any(map(has_gradient, learnt)):
            return bool(step.changed)
        other = parameters_of(step.other())
        if other and sum(map(torch.numel, other)) == sum(map(torch.numel, learnt)):
            self._copies = step.other
        elif self._unrecorded == _MOST_UNRECORDED - 1 or not has_optimizer(learnt):
            return True
        # An optimizer has skipped this step (`GradScaler`), or has copies: a later step is whole.
        self._round = set()
        self._add_unrecorded(None)
        return False

    # -- optimizers ---------------------------------------------------------------------

    def optimizer_begins(self, optimizer: torch.optim.Optimizer, caller: FrameType) -> None:
        """Record the step of an optimizer, from now on, if the optimizer belongs to the model."""
        step, recorder = self._step, self._step.recorder
        if recorder is None or not self._is_its(optimizer):
            return
        if recorder in watching.recorders:
            # It runs in a call or in a pass, unless it runs in the step of another optimizer.
            step.stepped |= self._open is not None and self._open.optimizer is None
        elif step.passed and self._open is None:
            with self._nonfatal(stepping=True):
                for entry in recorder.registry.places():
                    # `functional_call` replaced the parameters during the call; now the originals
                    # are back.
                    recorder.registry.refresh(entry)
                self._open = OpenWatch(recorder, caller, optimizer)

    def closure_ends(self, optimizer: torch.optim.Optimizer, caller: FrameType) -> None:
        """Record the step of an optimizer whose closure has just run the model."""
        if self._open is None:
            self.optimizer_begins(optimizer, caller)
            recorder = self._step.recorder
            if recorder is not None and self._is_stepping(optimizer):
                with self._nonfatal(stepping=True):
                    recorder.events.step_begins(optimizer, caller)

    def _is_stepping(self, optimizer: torch.optim.Optimizer) -> bool:
        return self._open is not None and self._open.optimizer is optimizer

    def optimizer_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """Finish the graph if the step that an optimizer has made is the last one."""
        step = self._step
        with self._nonfatal(stepping=True):
            if self._is_stepping(optimizer):
                self._close()
                step.changed.update(map(id, parameters_of(optimizer)))
                if not self._is_given(optimizer):
                    trained, model = self._learnt()[1], self._model()
                    trained += [] if model is None else model.parameters()
                    if not are_shared(trained, parameters_of(self._given())):
                        self._add_unrecorded(optimizer)
                elif not self._awaits_optimizer(step):
                    self._finish()
            elif self._open is None and not self.is_over:
                if self._is_its(optimizer) or (step.recorder is None and not self._heard):
                    self._add_unrecorded(optimizer)
                elif step.passed:
                    step.other = ref(optimizer)
                self._heard = False

    def optimizer_failed(self, caller: FrameType) -> None:
        """Drop the step of an optimizer that an error has ended in this frame."""
        opened = self._open
        if opened is not None and opened.optimizer is not None and opened.frame is caller:
            with self._nonfatal(stepping=True):
                self._drop()

    def _add_unrecorded(self, optimizer: object) -> None:
        """Count an unrecorded step of one or several optimizers; too many end the waiting.

        Steps of other models count, too, if the model is not called between them.
        """
        others = self._round and id(optimizer) not in self._round
        self._round = {id(optimizer), *(self._round if others else ())}
        if self._calls < self._next:
            return
        self._why = self._why or self._reason(stepped=True)
        self._drop()
        self._unrecorded += not others
        self._begun_at = sequence_number()
        if self._unrecorded == _MOST_UNRECORDED:
            failed = ignore_event if self._drawn else self._failed
            self._end(stepping=True)
            failed(self._reason())

    def _is_its(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether an optimizer is the given one, or changes parameters of the step."""
        if optimizer is self._copies():
            return True
        if self._given() is not None and self._is_given(optimizer):
            return True
        parameters, (own, leaves) = parameters_of(optimizer), self._learnt()
        # Others are in the place of parameters (`functional_call`), or before a model that stays.
        return are_shared(self._parameters(), parameters) or (
            are_shared(leaves, parameters) and not has_optimizer(own)
        )

    def _is_given(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the steps of an optimizer end a graph, unless others follow."""
        given = self._given()
        # An optimizer inside of another object makes the steps of that object.
        return (
            given is None
            or optimizer is given
            or (
                not reports_steps(given)
                and are_shared(parameters_of(given), parameters_of(optimizer))
            )
        )

    def _awaits_optimizer(self, step: RecordedStep) -> bool:
        """Whether another optimizer has parameters with gradients that none has changed yet."""
        given = self._given()
        if reports_steps(given):
            return False
        own, leaves = self._learnt()
        left = [leaf for leaf in (leaves if given else own) if id(leaf) not in step.changed]
        return are_shared(left, parameters_of(given)) if given else has_optimizer(left)

    # -- the end ------------------------------------------------------------------------

    def _close(self) -> None:
        """Close the open watch."""
        opened, self._open = self._open, None
        if opened is not None:
            opened.close()

    def _drop(self) -> None:
        """Drop the recording, and close its watch."""
        self._take_step().suspend()
        self._close()

    def _finish(self) -> None:
        """Pass the graph to `done`, and wait for the next graph, if any."""
        step = self._take_step()
        self._eager.close()
        recorder = step.recorder
        assert recorder is not None
        if recorder.suspended:
            return
        recorder.events.step_ended(None)
        describe_calls(recorder)
        graph = recorder.close()
        recorder.suspended = True
        if step.skips:
            graph.notes.append(
                Note(f"of the calls before the optimizer's step, {_MOST_CALLS} were recorded")
            )
        done, model, self._drawn = self._done, self._model(), True
        if self._every is None or model is None:
            self._end(stepping=True)
        else:
            self._next = self._calls + self._every
            self._count_calls(model)
        done(graph, self._calls)

    def _report(self, error: Exception) -> None:
        """Report an error of ours, and stop waiting."""
        self.is_over = True
        self._failed(error_text(error))

    @contextmanager
    def _nonfatal(self, *, stepping: bool = False) -> Iterator[None]:
        """Let an error of ours end the waiting, and nothing else (see `_end`)."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  No training ends for a picture.
            failed = self._failed
            self._end(stepping=stepping)
            failed(error_text(error))
