"""Waits for a model's next call and records it, with the training step around it.

Nothing is asked of the training loop. While it waits, a model has two hooks; while it waits for
the backward pass and the optimizer, autograd and optimizers tell of theirs. What runs between the
call and the backward pass (a loss) is seen by nobody: autograd's own graph tells its names.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from tbscope.ir.graph import Graph, Note
from tbscope.sources.eager.active import watching
from tbscope.sources.eager.record.describe_calls import describe_calls
from tbscope.sources.eager.record.recorder import Recorder
from tbscope.sources.eager.watch.module_calls import watched_call
from tbscope.sources.eager.watch.optimizers import watch_optimizers
from tbscope.sources.eager.watch.setters import watch_setters
from tbscope.sources.eager.watch.watch import Watch
from tbscope.sources.torch.nests import result_leaves
from tbscope.words import error_text

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
        self._model = model
        self._done = done
        self._failed = failed
        self._backward = backward
        self._optimizer = optimizer
        self._every = every
        self._calls = self._next = self._recorded = 0
        self._recorder: Recorder | None = None
        # What is open in a call, and from there to the end of a step.
        self._call = ExitStack()
        self._step = ExitStack()
        self._frame: Any = None
        self._passed = False
        self._hooks = [
            model.register_forward_pre_hook(self._before, with_kwargs=True, prepend=True),
            model.register_forward_hook(self._after, with_kwargs=True, always_call=True),
        ]

        self.is_over = False

    def remove(self) -> None:
        """Wait no longer; what was recorded of a step that is not over is left."""
        self.is_over = True
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._call.close()
        self._step.close()
        self._recorder = None

    # -- the call -----------------------------------------------------------------------

    def _before(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if self._recorder is None:
            # An optimizer that tells of its end must not lose its hooks while it does.
            self._step.close()
            if self.is_over:
                self.remove()
                return
        with self._telling():
            if self._recorder is not None and self._passed and self._optimizer is None:
                # The step is over without an optimizer.
                self._finish()
            if self.is_over:
                self.remove()
                return
            if not self._is_wanted(model):
                return
            if self._recorder is None:
                self._recorder = Recorder("step", boundary=watched_call, open_ended=True)
                self._recorder.registry.add_root(model)
                if self._backward:
                    self._recorder.record_backward()
            self._recorded += 1
            with ExitStack() as stack:
                stack.enter_context(Watch(self._recorder))
                self._frame = self._recorder.enter_call(model, args, kwargs, sys._getframe(1))
                self._call = stack.pop_all()

    def _after(
        self,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        self._calls += 1
        recorder, frame, self._frame = self._recorder, self._frame, None
        if recorder is None or frame is None:
            return
        with self._telling():
            if result is None and sys.exc_info()[1] is not None:
                # It raised: the next call may do better.
                recorder.scopes.close_call(frame)
                self._call.close()
                self._recorder, self._recorded = None, 0
                return
            recorder.leave_call(frame, args, kwargs, result)
            for path, tensor in result_leaves(result):
                recorder.add_output(path, tensor)
            describe_calls(recorder)
            self._call.close()
            if not self._backward:
                self._finish()
            elif self._recorded == 1:
                self._wait_for_step()

    def _is_wanted(self, model: torch.nn.Module) -> bool:
        """Tell whether the call that begins is to be recorded."""
        if watching.recorders or torch.compiler.is_compiling():
            return False
        if self._recorder is not None:
            return self._recorded < _MOST_CALLS
        if self._backward and not (model.training and torch.is_grad_enabled()):
            return False
        return self._calls >= self._next

    # -- the step -----------------------------------------------------------------------

    def _wait_for_step(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(watch_setters())
            stack.enter_context(watch_optimizers())
            stack.callback(setattr, watching, "waiting", watching.waiting)
            watching.waiting = (*watching.waiting, self)
            self._passed = False
            self._step = stack.pop_all()

    @contextmanager
    def backward_pass(self) -> Iterator[None]:
        """Record a backward pass that runs in a block."""
        recorder = self._recorder
        if recorder is None or recorder in watching.recorders:
            yield
            return
        with ExitStack() as stack:
            with self._telling():
                stack.enter_context(Watch(recorder))
                self._passed = True
            yield

    def optimizer_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """Record the step of an optimizer, from now on."""
        if self._recorder is not None and self._passed and self._is_its(optimizer):
            with self._telling(), ExitStack() as stack:
                stack.enter_context(Watch(self._recorder))
                self._call = stack.pop_all()

    def optimizer_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """Take note that an optimizer has made its step: the graph is whole."""
        if self._recorder is not None and self._passed and self._is_its(optimizer):
            with self._telling():
                self._call.close()
                self._finish()

    def _is_its(self, optimizer: torch.optim.Optimizer) -> bool:
        if self._optimizer is not None:
            return optimizer is self._optimizer
        held = {id(parameter) for parameter in self._model.parameters()}
        return any(
            id(parameter) in held
            for group in optimizer.param_groups
            for parameter in group["params"]
        )

    # -- the end ------------------------------------------------------------------------

    def _finish(self) -> None:
        """Give the graph away, and wait for the next one, or for nothing."""
        recorder, self._recorder = self._recorder, None
        assert recorder is not None
        recorder.end_step(None)
        graph = recorder.close()
        if self._recorded == _MOST_CALLS:
            graph.notes.append(
                Note(f"of the calls before the optimizer's step, {_MOST_CALLS} were recorded")
            )
        self._recorded, self._passed = 0, False
        number = self._calls
        if self._every is None:
            # The hooks are gone with the next call, which records nothing.
            self.is_over = True
        else:
            self._next = self._calls + self._every
        self._done(graph, number)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Have an error of ours end the waiting, and nothing else."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  No training ends for a picture.
            self._call.close()
            self.remove()
            self._failed(error_text(error))
