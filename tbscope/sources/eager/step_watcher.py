"""Recording of a model's next call, and of the training step around it.

The training loop needs no changes. While a `TrainingWatch` waits for a call, the model has two
hooks, and compiled functions run as written. While it waits for the backward pass and the
optimizer, patches of autograd and hooks of all optimizers report theirs. Operations between the
call and the backward pass (a loss) are not watched: their names come from autograd's own graph.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import finalize, ref

import torch

from tbscope.ir.graph import Graph, Note
from tbscope.messages import error_text
from tbscope.sources.eager.record.describe_calls import describe_calls
from tbscope.sources.eager.record.recorder import Recorder
from tbscope.sources.eager.thread_state import waiting, watching
from tbscope.sources.eager.watch.changes_outside_modes import SETTERS
from tbscope.sources.eager.watch.compiler_bypass import running_eagerly
from tbscope.sources.eager.watch.module_calls import watched_call
from tbscope.sources.eager.watch.optimizer_hooks import watching_optimizers
from tbscope.sources.eager.watch.watch import Watch
from tbscope.sources.torch.autograd import backward_reaches, needs_gradient, reachable_nodes
from tbscope.sources.torch.calling.pytree import result_leaves
from tbscope.sources.torch.compat.modules import is_compiled_in_place, is_tracing, wrap_calls
from tbscope.sources.torch.compat.tensors import functorch_inner, in_forward_mode

if TYPE_CHECKING:
    from tbscope.sources.eager.record.scope_stack import Frame

__all__ = ["TrainingWatch"]

# Recorded calls of a model between two optimizer steps; further calls are only counted.
_MOST_CALLS = 8


class TrainingWatch:
    """Records the next call of a model, and on request the rest of the training step.

    An error of ours ends the waiting and never the training loop.

    Args:
        model: The model.
        done: Receives each graph, and the number of the model's calls before it.
        failed: Receives the text of an error, after which nothing is recorded any more.
        backward: Whether the backward pass and the optimizer step are recorded.
        optimizer: The optimizer whose step completes the graph; None for any optimizer with a
            parameter of the model, if its step comes before the next call.
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
        optimizer: torch.optim.Optimizer | None,
        every: int | None,
    ) -> None:
        # The waiting, and the user's handle on it, must not keep the model alive.
        self._model = ref(model)
        self._done = done
        self._failed = failed
        self._backward = backward
        self._optimizer = None if optimizer is None else ref(optimizer)
        self._every = every
        self._calls = self._next = self._recorded = 0
        self._results: list[ref[torch.Tensor]] = []
        # The watch that is open now: of a call, a backward pass, or a step of the optimizer
        # `_stepping`.
        self._open: _OpenWatch | None = None
        self._stepping: torch.optim.Optimizer | None = None
        # `_eager` is open until the step ends, `_step` until the call after it.
        self._eager = ExitStack()
        self._step = ExitStack()
        self._frame: Frame | None = None
        self._begun = self._passed = self._stepped = False
        self.is_over = False
        self._hooks = ExitStack()
        before, after = _Hook(self._before), _Hook(self._after)
        self._hook = ref(before)
        first = model.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
        self._hooks.callback(first.remove)
        last = model.register_forward_hook(after, with_kwargs=True, always_call=True)
        self._hooks.callback(last.remove)
        # No hook reports the model's deletion, and until `remove` all models run uncompiled.
        gone = finalize(model, self.remove)
        gone.atexit = False
        self._hooks.callback(gone.detach)
        self._counts_compiled = False
        self._count_compiled(model)
        self._wait()

    @property
    def _recorder(self) -> Recorder | None:
        hook = self._hook()
        return None if hook is None else hook.recorder

    @_recorder.setter
    def _recorder(self, recorder: Recorder | None) -> None:
        hook = self._hook()
        if hook is not None:
            hook.recorder = recorder

    def remove(self) -> None:
        """Stop waiting; the recording of an unfinished step is dropped."""
        self.is_over = True
        if self._open is not None and self._open.runs:
            # Other recorders may watch inside of the running call, so its watch ends when the call
            # does.
            if self._recorder is not None:
                self._recorder.suspended = True
        else:
            self._end()

    def _end(self) -> None:
        """Release the model, and drop the recording."""
        self.is_over = True
        self._drop()
        self._hooks.close()
        self._eager.close()
        self._step.close()

    def _wait(self) -> None:
        """Wait for the next call, from now on."""
        self._eager.enter_context(running_eagerly)
        model = self._model()
        if model is not None:
            self._eager.enter_context(wrap_calls(model, self._call_watched))
        if self._backward:
            self._step.enter_context(SETTERS)
            self._step.enter_context(watching_optimizers)
            self._step.callback(waiting.remove, self)
            waiting.append(self)

    def _count_compiled(self, model: torch.nn.Module | None) -> None:
        """Count the calls of a model that is compiled in place: such calls may run no hooks."""
        if model is not None and not self._counts_compiled and is_compiled_in_place(model):
            self._counts_compiled = True
            self._hooks.enter_context(wrap_calls(model, self._call_compiled))

    def _call_watched(self, call: Callable[[], Any]) -> object:
        """Run a call that may be recorded; drop the recording if it is interrupted.

        No hook reports an interrupt (Ctrl-C).
        """
        opened = self._open
        try:
            return call()
        except BaseException:
            if self._open is not None and self._open is not opened:
                with self._nonfatal():
                    self._drop()
            raise

    def _call_compiled(self, call: Callable[[], Any]) -> object:
        """Run a call of a model that may be compiled, and count it if no hook did."""
        calls = self._calls
        result = call()
        if self._calls == calls:
            self._called()
        return result

    def _called(self) -> None:
        self._calls += 1
        if self._recorder is None and self._calls == self._next and not self.is_over:
            self._step.close()
            self._wait()

    # -- the call -----------------------------------------------------------------------

    def _before(
        self, model: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> None:
        # `DataParallel` copies the model to devices, and its hooks with it; copies are not
        # recorded.
        if model is not self._model() or (self._open is not None and self._open.runs):
            return
        with self._nonfatal():
            if self._open is not None:
                # An error that no hook reported ended the open part; this call is recorded instead.
                self._drop()
            if self._recorder is not None and self._passed and self._optimizer is None:
                # The previous step had no optimizer, so it is complete now.
                self._finish()
            if self.is_over:
                self._end()
                return
            if self._recorder is None and self._calls < self._next:
                # `_step` is closed here, not in `_finish`: an optimizer runs its hooks while it
                # reports its end.
                self._step.close()
            if not self._is_wanted(model):
                return
            if self._recorder is None:
                self._recorder = self._new_recorder(model)
            self._recorded += 1
            caller = sys._getframe(2)
            self._open = _OpenWatch(self._recorder, caller)
            self._begun = True
            self._frame = self._recorder.events.call_begins(model, args, kwargs, caller)

    def _new_recorder(self, model: torch.nn.Module) -> Recorder:
        recorder = Recorder("step", boundary=watched_call, open_ended=True, failed=self._report)
        recorder.registry.add_root(model)
        if self._backward:
            recorder.record_training()
        return recorder

    def _after(
        self,
        model: torch.nn.Module,
        args: tuple[object, ...],
        kwargs: dict[str, Any],
        result: object,
    ) -> None:
        if model is not self._model():
            return
        begun, self._begun = self._begun, False
        self._called()
        if not begun:
            return
        with self._nonfatal():
            recorder, frame, self._frame = self._recorder, self._frame, None
            assert recorder is not None
            if result is None and sys.exc_info()[1] is not None:
                # The call raised; the next call is recorded instead.
                self._drop()
                return
            if frame is not None:
                recorder.events.call_ended(frame, args, kwargs, result)
            if recorder.suspended:
                self._end()
                return
            for path, tensor in result_leaves(result):
                recorder.flow.add_output(path, tensor)
                self._results.append(ref(tensor))
            describe_calls(recorder)
            self._close()
            # With tangents only (forward mode) no backward pass comes; an optimizer or the next
            # call ends it.
            by_tangents = in_forward_mode() and not any(
                needs_gradient(tensor) for _, tensor in result_leaves(result)
            )
            self._passed = self._passed or by_tangents
            if not self._backward or self._stepped:
                self._finish()

    def _is_wanted(self, model: torch.nn.Module) -> bool:
        """Whether the call that begins is recorded."""
        if watching.recorders:
            return False
        if self._recorder is not None:
            return self._recorded < _MOST_CALLS
        differentiates = torch.is_grad_enabled() or in_forward_mode()
        if self._backward and not (model.training and differentiates):
            return False
        return self._calls >= self._next

    # -- the step -----------------------------------------------------------------------

    @contextmanager
    def backward_pass(self, roots: Sequence[object], caller: FrameType) -> Iterator[None]:
        """Record a backward pass that runs in a block, if it goes through the model."""
        recorder = self._recorder
        if self.is_over and self._open is None:
            # Calls of compiled code run no hooks, so the end is handled here.
            self._end()
        if recorder is None or recorder in watching.recorders or self._open is not None:
            yield
            return
        with self._nonfatal():
            if self._leads_to_model(roots):
                self._open = _OpenWatch(recorder, caller)
        opened = self._open
        try:
            yield
        except BaseException:
            if opened is not None:
                # The pass raised; the next step is recorded instead.
                self._drop()
            raise
        if opened is not None:
            self._close()
            self._passed = True
            with self._nonfatal():
                if self.is_over or recorder.suspended:
                    self._end()
                elif self._stepped:
                    # The optimizer step ran inside of the backward pass, as the gradients arrived.
                    self._finish()

    def _leads_to_model(self, roots: Sequence[object]) -> bool:
        results = (result() for result in self._results)
        outputs = [tensor for tensor in results if tensor is not None]
        tensors = [root for root in roots if isinstance(root, torch.Tensor)]
        if backward_reaches(tensors, [*outputs, *self._parameters()]):
            return True
        # `torch.func.grad` replaces the parameters by wrapped tensors.
        wrapped = [tensor for tensor in tensors if functorch_inner(tensor) is not None]
        training = None if self._recorder is None else self._recorder.training
        return training is not None and any(
            training.backward.made(function) is not None for function in reachable_nodes(wrapped)
        )

    def _parameters(self) -> list[torch.nn.Parameter]:
        model = self._model()
        return [] if model is None else list(model.parameters())

    def optimizer_begins(self, optimizer: torch.optim.Optimizer, caller: FrameType) -> None:
        """Record the step of an optimizer, from now on, if the optimizer belongs to the model."""
        recorder = self._recorder
        if recorder is None or not self._is_its(optimizer):
            return
        if recorder in watching.recorders:
            self._stepped = self._stepped or self._stepping is None
        elif self._passed and self._open is None:
            with self._nonfatal(stays=True):
                for entry in recorder.registry.places():
                    # `functional_call` replaced the parameters during the call; now the originals
                    # are back.
                    recorder.registry.refresh(entry)
                self._open, self._stepping = _OpenWatch(recorder, caller), optimizer

    def closure_ends(self, optimizer: torch.optim.Optimizer, caller: FrameType) -> None:
        """Record the step of an optimizer whose closure has just run the model."""
        if self._open is None:
            self.optimizer_begins(optimizer, caller)
            if self._stepping is optimizer and self._recorder is not None:
                with self._nonfatal(stays=True):
                    self._recorder.events.step_begins(optimizer, caller)

    def optimizer_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """Finish the graph: an optimizer has made its step."""
        if self._stepping is optimizer:
            with self._nonfatal(stays=True):
                self._close()
                self._finish()

    def optimizer_failed(self, caller: FrameType) -> None:
        """Drop the step of an optimizer that an error has ended in this frame."""
        if self._stepping is not None and self._open is not None and self._open.frame is caller:
            with self._nonfatal(stays=True):
                self._drop()

    def _is_its(self, optimizer: torch.optim.Optimizer) -> bool:
        if self._optimizer is not None:
            return optimizer is self._optimizer()
        ids = {id(parameter) for parameter in self._parameters()}
        return any(
            id(parameter) in ids
            for group in optimizer.param_groups
            for parameter in group["params"]
        )

    # -- the end ------------------------------------------------------------------------

    def _close(self) -> None:
        """Close the open watch."""
        opened, self._open, self._stepping = self._open, None, None
        if opened is not None:
            opened.close()

    def _drop(self) -> None:
        """Drop the recording, and close its watch."""
        if self._recorder is not None:
            self._recorder.suspended = True
        self._close()
        self._recorder = self._frame = None
        self._forget()

    def _forget(self) -> None:
        self._results.clear()
        self._recorded = 0
        self._begun = self._passed = self._stepped = False

    def _finish(self) -> None:
        """Pass the graph to `done`, and wait for the next graph, if any."""
        recorder, self._recorder = self._recorder, None
        assert recorder is not None
        self._eager.close()
        if recorder.suspended:
            self._forget()
            return
        recorder.events.step_ended(None)
        graph = recorder.close()
        recorder.suspended = True
        if self._recorded == _MOST_CALLS:
            graph.notes.append(
                Note(f"of the calls before the optimizer's step, {_MOST_CALLS} were recorded")
            )
        self._forget()
        number = self._calls
        if self._every is None:
            # The patches of autograd and the hooks of optimizers are removed by the next backward
            # pass.
            self.is_over = True
            self._hooks.close()
        else:
            self._next = self._calls + self._every
            self._count_compiled(self._model())
        self._done(graph, number)

    def _report(self, error: Exception) -> None:
        """Report an error of ours, and stop waiting."""
        self.is_over = True
        self._failed(error_text(error))

    @contextmanager
    def _nonfatal(self, *, stays: bool = False) -> Iterator[None]:
        """Let an error of ours end the waiting, and nothing else.

        Args:
            stays: Whether the hooks stay until the next call: an optimizer is running through its
                own hooks now.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001  No training ends for a picture.
            if stays:
                self._drop()
                self._eager.close()
            else:
                self._end()
            self._report(error)


class _Hook:
    """Hook of a model; its copies, in memory and in files, have no effect.

    Args:
        function: The function that the hook calls.

    Attributes:
        recorder: The recorder of the unfinished step. It refers to the model, and would keep it
            alive from anywhere but the model's own hook.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self.recorder: Recorder | None = None

    def __call__(self, *args: object) -> None:
        """Call the function, unless the compiler or torch.jit traces the model."""
        # Dynamo would guard on the state that the function reads, and recompile whenever it
        # changes.
        if not (torch.compiler.is_compiling() or is_tracing()):
            self._function(*args)

    def __reduce__(self) -> tuple[object, ...]:
        # The pickle contains only Python's own objects, so reading it does not need tbscope.
        return getattr, (nullcontext(), "__exit__")


class _OpenWatch:
    """Open watch of a call, a backward pass or an optimizer step.

    Attributes:
        frame: The Python frame that began it.
    """

    def __init__(self, recorder: Recorder, frame: FrameType) -> None:
        self._watch = Watch(recorder)
        self._watch.__enter__()
        # The frame itself, not its id: a later frame may have the same address.
        self.frame = frame
        self._thread = get_ident()

    @property
    def runs(self) -> bool:
        """Whether the frame is still running; an error may have ended it without a report."""
        if get_ident() != self._thread:
            return self._thread in sys._current_frames()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not self.frame:
            frame = frame.f_back
        return frame is not None

    def close(self) -> None:
        """End the watch."""
        self._watch.__exit__(None, None, None)
