"""Waits for a model's next call and records it, with the training step around it.

Nothing is asked of the training loop. While it waits, a model has two hooks, and what the compiler
has made runs as it was written; while it waits for the backward pass and the optimizer, autograd
and optimizers tell of theirs. What runs between the call and the backward pass (a loss) is seen
by nobody: autograd's own graph tells its names.
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
from tbscope.sources.eager.record.nonfatal import CarefulRecorder
from tbscope.sources.eager.thread_state import waiting, watching
from tbscope.sources.eager.watch.compiler_bypass import standing_by
from tbscope.sources.eager.watch.module_calls import watched_call
from tbscope.sources.eager.watch.optimizer_hooks import watching_optimizers
from tbscope.sources.eager.watch.unobserved_changes import SETTERS
from tbscope.sources.eager.watch.watch import Watch
from tbscope.sources.torch.autograd import functions_of, leads_to, needs_gradient
from tbscope.sources.torch.calling.pytree import result_leaves
from tbscope.sources.torch.compat.modules import around_calls, is_compiled_in_place, is_tracing
from tbscope.sources.torch.compat.tensors import functorch_inner, in_forward_mode

if TYPE_CHECKING:
    from tbscope.sources.eager.record.scope_stack import Frame

__all__ = ["Waiting"]

# Between two steps of an optimizer, so many calls of a model are recorded.
_MOST_CALLS = 8


class Waiting:
    """Records the next call of a model, and on request the rest of the training step.

    Args:
        model: The model.
        done: Given each graph, and how many calls of the model there were before it.
        failed: Given the text of an error, after which nothing is recorded any more.
        backward: Whether the backward pass is waited for, and the optimizer's step.
        optimizer: The optimizer whose step ends the graph; None for any that holds a parameter
            of the model, if it comes before the next call.
        every: After how many calls the next one is recorded; None for none.

    Attributes:
        is_over: Whether nothing is waited for any more.
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
        # Who waits for a model, or keeps the handle, does not keep it alive.
        self._model = ref(model)
        self._done = done
        self._failed = failed
        self._backward = backward
        self._optimizer = None if optimizer is None else ref(optimizer)
        self._every = every
        self._calls = self._next = self._recorded = 0
        self._results: list[ref[torch.Tensor]] = []
        # What is watched now: a call, or the step of this optimizer.
        self._open: _Opened | None = None
        self._stepping: torch.optim.Optimizer | None = None
        # From the next call to the end of the step; the other one to the call after it.
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
        # No hook reports the end of the model, and until then all models run uncompiled.
        gone = finalize(model, self.remove)
        gone.atexit = False
        self._hooks.callback(gone.detach)
        self._counts_compiled = False
        self._count_compiled(model)
        self._wait()

    @property
    def _recorder(self) -> CarefulRecorder | None:
        hook = self._hook()
        return None if hook is None else hook.recorder

    @_recorder.setter
    def _recorder(self, recorder: CarefulRecorder | None) -> None:
        hook = self._hook()
        if hook is not None:
            hook.recorder = recorder

    def remove(self) -> None:
        """Wait no longer; what was recorded of a step that is not over is left."""
        self.is_over = True
        if self._open is not None and self._open.runs:
            # Others may have come to watch inside of it: it is left when it ends.
            if self._recorder is not None:
                self._recorder.paused = True
        else:
            self._end()

    def _end(self) -> None:
        """Let go of the model, and of what was recorded."""
        self.is_over = True
        self._drop()
        self._hooks.close()
        self._eager.close()
        self._step.close()

    def _wait(self) -> None:
        """Wait for the next call, from now on."""
        self._eager.enter_context(standing_by)
        model = self._model()
        if model is not None:
            self._eager.enter_context(around_calls(model, self._call_watched))
        if self._backward:
            self._step.enter_context(SETTERS)
            self._step.enter_context(watching_optimizers)
            self._step.callback(waiting.remove, self)
            waiting.append(self)

    def _count_compiled(self, model: torch.nn.Module | None) -> None:
        """Have the calls counted of a model that is compiled by now: no hook tells of them."""
        if model is not None and not self._counts_compiled and is_compiled_in_place(model):
            self._counts_compiled = True
            self._hooks.enter_context(around_calls(model, self._call_compiled))

    def _call_watched(self, call: Callable[[], Any]) -> Any:
        """Make a call that may be recorded: of an interrupt (Ctrl-C) no hook tells."""
        before = self._open
        try:
            return call()
        except BaseException:
            if self._open is not None and self._open is not before:
                with self._telling():
                    self._drop()
            raise

    def _call_compiled(self, call: Callable[[], Any]) -> Any:
        """Make a call that may be compiled: then no hook tells of it."""
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
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        # Copies that torch makes for devices have the same hooks.
        if model is not self._model() or (self._open is not None and self._open.runs):
            return
        with self._telling():
            if self._open is not None:
                # Ended by an error of which no hook has told: the next call may do better.
                self._drop()
            if self._recorder is not None and self._passed and self._optimizer is None:
                # The step is over without an optimizer.
                self._finish()
            if self.is_over:
                self._end()
                return
            if self._recorder is None and self._calls < self._next:
                # An optimizer that tells of its end must not lose its hooks while it does.
                self._step.close()
            if not self._is_wanted(model):
                return
            if self._recorder is None:
                self._recorder = self._new_recorder(model)
            self._recorded += 1
            caller = sys._getframe(2)
            self._open = _Opened(self._recorder, caller)
            self._begun = True
            self._frame = self._recorder.enter_call(model, args, kwargs, caller)

    def _new_recorder(self, model: torch.nn.Module) -> CarefulRecorder:
        recorder = CarefulRecorder(
            "step", boundary=watched_call, open_ended=True, failed=self._tell
        )
        recorder.registry.add_root(model)
        if self._backward:
            recorder.record_backward()
        return recorder

    def _after(
        self,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        if model is not self._model():
            return
        begun, self._begun = self._begun, False
        self._called()
        if not begun:
            return
        with self._telling():
            recorder, frame, self._frame = self._recorder, self._frame, None
            assert recorder is not None
            if result is None and sys.exc_info()[1] is not None:
                # It raised: the next call may do better.
                self._drop()
                return
            if frame is not None:
                recorder.leave_call(frame, args, kwargs, result)
            if recorder.paused:
                self._end()
                return
            for path, tensor in result_leaves(result):
                recorder.add_output(path, tensor)
                self._results.append(ref(tensor))
            describe_calls(recorder)
            self._close()
            # Of tangents alone no backward pass will tell: the optimizer does, or the next call.
            by_tangents = in_forward_mode() and not any(
                needs_gradient(tensor) for _, tensor in result_leaves(result)
            )
            self._passed = self._passed or by_tangents
            if not self._backward or self._stepped:
                self._finish()

    def _is_wanted(self, model: torch.nn.Module) -> bool:
        """Tell whether the call that begins is to be recorded."""
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
    def backward_pass(self, roots: Sequence[Any], caller: FrameType) -> Iterator[None]:
        """Record a backward pass that runs in a block, if it is one through the model."""
        recorder = self._recorder
        if self.is_over and self._open is None:
            # Of compiled code no hook tells.
            self._end()
        if recorder is None or recorder in watching.recorders or self._open is not None:
            yield
            return
        with self._telling():
            if self._leads_to_model(roots):
                self._open = _Opened(recorder, caller)
        opened = self._open
        try:
            yield
        except BaseException:
            if opened is not None:
                # The next step may do better.
                self._drop()
            raise
        if opened is not None:
            self._close()
            self._passed = True
            with self._telling():
                if self.is_over or recorder.paused:
                    self._end()
                elif self._stepped:
                    # Its parameters were updated as their gradients came.
                    self._finish()

    def _leads_to_model(self, roots: Sequence[Any]) -> bool:
        known = (result() for result in self._results)
        ends = [tensor for tensor in known if tensor is not None]
        tensors = [root for root in roots if isinstance(root, torch.Tensor)]
        if leads_to(tensors, [*ends, *self._parameters()]):
            return True
        # In `torch.func.grad` others stand in for the parameters.
        wrapped = [tensor for tensor in tensors if functorch_inner(tensor) is not None]
        backward = None if self._recorder is None else self._recorder.backward
        return backward is not None and any(
            backward.made(function) is not None for function in functions_of(wrapped)
        )

    def _parameters(self) -> list[torch.nn.Parameter]:
        model = self._model()
        return [] if model is None else list(model.parameters())

    def optimizer_begins(self, optimizer: torch.optim.Optimizer, caller: FrameType) -> None:
        """Record the step of an optimizer, from now on, if it is that of the model."""
        recorder = self._recorder
        if recorder is None or not self._is_its(optimizer):
            return
        if recorder in watching.recorders:
            self._stepped = self._stepped or self._stepping is None
        elif self._passed and self._open is None:
            with self._telling(stays=True):
                for place in recorder.registry.places():
                    # In a call of `functional_call` others stood in for the parameters.
                    recorder.registry.refresh(place)
                self._open, self._stepping = _Opened(recorder, caller), optimizer

    def closure_ends(self, optimizer: torch.optim.Optimizer, caller: FrameType) -> None:
        """Record the step of an optimizer, now that the model has run in its closure."""
        if self._open is None:
            self.optimizer_begins(optimizer, caller)
            if self._stepping is optimizer and self._recorder is not None:
                with self._telling(stays=True):
                    self._recorder.begin_step(optimizer, caller)

    def optimizer_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """Take note that an optimizer has made its step: the graph is whole."""
        if self._stepping is optimizer:
            with self._telling(stays=True):
                self._close()
                self._finish()

    def optimizer_failed(self, caller: FrameType) -> None:
        """Let go of the step of an optimizer that an error has ended in this frame."""
        if self._stepping is not None and self._open is not None and self._open.frame is caller:
            with self._telling(stays=True):
                self._drop()

    def _is_its(self, optimizer: torch.optim.Optimizer) -> bool:
        if self._optimizer is not None:
            return optimizer is self._optimizer()
        held = {id(parameter) for parameter in self._parameters()}
        return any(
            id(parameter) in held
            for group in optimizer.param_groups
            for parameter in group["params"]
        )

    # -- the end ------------------------------------------------------------------------

    def _close(self) -> None:
        """Watch no longer what is open."""
        opened, self._open, self._stepping = self._open, None, None
        if opened is not None:
            opened.close()

    def _drop(self) -> None:
        """Let go of what was recorded."""
        if self._recorder is not None:
            self._recorder.paused = True
        self._close()
        self._recorder = self._frame = None
        self._forget()

    def _forget(self) -> None:
        self._results.clear()
        self._recorded = 0
        self._begun = self._passed = self._stepped = False

    def _finish(self) -> None:
        """Give the graph away, and wait for the next one, or for nothing."""
        recorder, self._recorder = self._recorder, None
        assert recorder is not None
        self._eager.close()
        if recorder.paused:
            self._forget()
            return
        recorder.end_step(None)
        graph = recorder.close()
        recorder.paused = True
        if self._recorded == _MOST_CALLS:
            graph.notes.append(
                Note(f"of the calls before the optimizer's step, {_MOST_CALLS} were recorded")
            )
        self._forget()
        number = self._calls
        if self._every is None:
            # Those of autograd and of optimizers are gone with the next backward pass.
            self.is_over = True
            self._hooks.close()
        else:
            self._next = self._calls + self._every
            self._count_compiled(self._model())
        self._done(graph, number)

    def _tell(self, error: Exception) -> None:
        """Tell of an error of ours; what is open is closed where nothing of it runs."""
        self.is_over = True
        self._failed(error_text(error))

    @contextmanager
    def _telling(self, *, stays: bool = False) -> Iterator[None]:
        """Have an error of ours end the waiting, and nothing else.

        Args:
            stays: Whether hooks stay until the next call: an optimizer goes through its own now.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001  No training ends for a picture.
            if stays:
                self._drop()
                self._eager.close()
            else:
                self._end()
            self._tell(error)


class _Hook:
    """A hook of a model; copies of the model, in memory and in files, have one that does nothing.

    Args:
        function: What it does.

    Attributes:
        recorder: Who records the step that is not over. It knows the model, and would keep it
            alive; so nobody but the model keeps it.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self.recorder: CarefulRecorder | None = None

    def __call__(self, *args: Any) -> None:
        """Do it, unless the compiler looks at the model, or torch.jit."""
        # Compiled code would be made anew whenever what the hook goes by is another.
        if not (torch.compiler.is_compiling() or is_tracing()):
            self._function(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        # Of Python's own: who reads the file need not have tbscope.
        return getattr, (nullcontext(), "__exit__")


class _Opened:
    """What is watched now.

    Attributes:
        frame: The Python frame in which that was begun.
    """

    def __init__(self, recorder: CarefulRecorder, frame: FrameType) -> None:
        self._watch = Watch(recorder)
        self._watch.__enter__()
        # Itself: another one may come to stand where it stood.
        self.frame = frame
        self._thread = get_ident()

    @property
    def runs(self) -> bool:
        """Whether that frame runs still: an error may have ended it, of which nobody tells."""
        if get_ident() != self._thread:
            return self._thread in sys._current_frames()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not self.frame:
            frame = frame.f_back
        return frame is not None

    def close(self) -> None:
        """Watch no longer."""
        self._watch.__exit__(None, None, None)
