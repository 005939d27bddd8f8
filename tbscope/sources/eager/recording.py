"""`tbscope.record`: the graph of a region of the user's own code, which keeps its effects."""

import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from types import FrameType

import torch

from tbscope.errors import ArgumentError, ScopeError, TraceError
from tbscope.ir.graph import Graph
from tbscope.ir.training_steps import fold_steps
from tbscope.messages import shown
from tbscope.sources.eager.record.describe_calls import describe_calls
from tbscope.sources.eager.record.manual_updates import box_updates
from tbscope.sources.eager.record.recorder import Recorder
from tbscope.sources.eager.thread_state import finalize_abandoned
from tbscope.sources.eager.watch.module_calls import watched_call
from tbscope.sources.eager.watch.watch import Watch
from tbscope.sources.torch.calling.bind import require_made, require_whole
from tbscope.sources.torch.calling.pytree import tensor_leaves
from tbscope.utils.gc_pause import collect_recent, collecting_rarely
from tbscope.utils.validation import check_truth


class record:  # noqa: N801 (used as a statement, like torch.profiler.profile)
    """Watch a region of code and record it as one graph.

    >>> import torch, tbscope
    >>> model, x = torch.nn.Linear(3, 1), torch.rand(4, 3)
    >>> with tbscope.record(net=model) as recording:
    ...     loss = model(x).mean()
    >>> print(recording.graph)
    graph(%input : Float(4, 3)):
      %1 : Float(4, 1) = linear(%input, %net.weight, %net.bias), scope: Linear[net]
      %2 : Float() = mean(%1)
      return (%2)

    The code runs exactly as without recording: nothing is restored after it, and training flags,
    gradients and random generators are left alone. Tensors from outside are inputs. Outputs are
    the tensors that still exist at the end and that no operation has read, unless
    `recording.output` names the outputs.

    The thread that enters the recording must leave it. An end in another thread, or before the end
    of a recording that was entered inside, is a `ScopeError`.

    Args:
        models: Models that the region calls. If a part of such a model is called by itself, it is
            drawn at its place in the model. All other models are registered at their first call.
        backward: Whether backward passes and optimizer steps are recorded operation by operation,
            in boxes of their own.
        steps: Number of training steps in the region, each with equally many optimizer steps. Of
            equal training steps in a row the first is drawn, with a note of their number and their
            differences. None: the training steps are the blocks called "step"
            (`tbscope.scope("step")`).
        named_models: Further models; the name is shown in brackets in the scope of the model.
    Raises:
        ArgumentError: A model is no module, or `steps` no number of steps.
    """

    _watch: Watch | None = None

    def __init__(
        self,
        *models: torch.nn.Module,
        backward: bool = True,
        steps: int | None = None,
        **named_models: torch.nn.Module,
    ) -> None:
        self._recorder = Recorder("record", boundary=watched_call, open_ended=True)
        self._collecting = ExitStack()
        self._begun_at = ""
        self._graph: Graph | None = None
        check_truth("backward", backward)
        if steps is not None and (type(steps) is not int or steps < 1):
            raise ArgumentError(
                f"steps={shown(steps)} is no number of steps",
                why="it is a whole number from 1 on, or None",
                fix="with tbscope.record(model, steps=3): ... around three training steps",
            )
        self._backward = backward
        self._steps = steps
        self._named_outputs = False
        for model in models:
            self._recorder.registry.add_root(_module(model))
        for name, model in named_models.items():
            self._recorder.registry.add_root(_module(model), name=name, attribute=name)

    @property
    def graph(self) -> Graph:
        """The graph of the region.

        Raises:
            TraceError: The region has not ended.
        """
        if self._graph is None:
            raise TraceError(
                "the recording has no graph yet",
                why="its region has not ended",
                fix="read recording.graph after the block 'with tbscope.record() as recording:'",
            )
        return self._graph

    def input(self, **tensors: object) -> None:
        """Name tensors, or pytrees of tensors, as inputs of the graph.

        Args:
            tensors: The tensors, each under the name of its input.
        Raises:
            ArgumentError: An argument contains no tensor, or the region has ended.
        """
        for path, tensor in self._leaves("input", tensors):
            self._recorder.flow.sources.add_input(path, tensor)

    def output(self, **tensors: object) -> None:
        """Name tensors, or pytrees of tensors, as outputs of the graph, with their present values.

        Args:
            tensors: The tensors, each under the name of its output.
        Raises:
            ArgumentError: An argument contains no tensor, or the region has ended.
        """
        for path, tensor in self._leaves("output", tensors):
            self._recorder.flow.add_output(path, tensor)
        self._named_outputs = True

    def _leaves(self, method: str, tensors: Mapping[str, object]) -> list[tuple[str, torch.Tensor]]:
        """Return the tensors in the user's named pytrees, each with its path."""
        leaves_by_name = {name: tensor_leaves(tree, name) for name, tree in tensors.items()}
        if self._graph is not None or not leaves_by_name or not all(leaves_by_name.values()):
            named = ", ".join(f"{name}={shown(tree)}" for name, tree in tensors.items())
            raise ArgumentError(
                f"recording.{method}({named}) names no tensor of its region",
                why=f"an {method} is a tensor, or a container of tensors, that is named before the "
                "region ends",
                fix=f"recording.{method}(y=y) inside of the block",
            )
        for leaves in leaves_by_name.values():
            for path, tensor in leaves:
                require_made(path, tensor)
        return [leaf for leaves in leaves_by_name.values() for leaf in leaves]

    def __enter__(self) -> "record":
        self.begin(sys._getframe(1))
        return self

    def begin(self, frame: FrameType) -> None:
        """Watch from now on, until the end of `with`.

        Args:
            frame: The Python frame in which the region begins; frames outside of it are not
                recorded.
        """
        if self._begun_at:
            raise ArgumentError(
                "this recording has been used already",
                why="one recording watches one region",
                fix="begin another one with tbscope.record()",
            )
        self._begun_at = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        with ExitStack() as stack:
            # The garbage collector would walk the growing graph again and again: it runs rarely
            # until the end.
            stack.enter_context(collecting_rarely())
            if self._backward:
                self._recorder.record_training()
            watch = Watch(self._recorder)
            watch.__enter__()
            self._watch = watch
            self._recorder.where.begin_at(frame)
            self._collecting = stack.pop_all()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        refused = self._refused()
        if refused is not None:
            with self._collecting:
                self.__del__()
                finalize_abandoned()
            if error is None:
                raise refused
            error.add_note(str(refused))
            return
        assert self._watch is not None
        watch, self._watch = self._watch, None
        self._recorder.where.end_in(sys._getframe(1))
        with self._collecting:
            watch.__exit__(kind, error, trace)
            self._graph = self._finished(error)

    def __del__(self) -> None:
        # A recording that is deleted without having been left stops watching, too.
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.abandon()

    def _refused(self) -> ScopeError | None:
        """Return the error for an invalid end of the region, or None for a valid one."""
        watch = self._watch
        if watch is None:
            what = "this recording is over" if self._begun_at else "this recording was not entered"
        elif not watch.is_innermost:
            what = (
                f"a recording is left in the thread {threading.current_thread().name!r}, and was "
                f"entered in the thread {watch.thread.name!r} ({self._begun_at})"
            )
        else:
            return None
        return ScopeError(
            what,
            why="a region ends once, in its thread, after all regions that were entered in it; it "
            "is not recorded any more, and has no graph",
            fix="with tbscope.record() as recording: ..., and no call of __exit__",
        )

    def _finished(self, error: BaseException | None) -> Graph:
        """Return the graph of the ended region; `error` is the exception that ended it, if any."""
        recorder = self._recorder
        # An optimizer step that raised has no post hook.
        recorder.events.step_ended(None)
        if error is None:
            recorder.scopes.check_closed(recorder.scopes.top)
        else:
            recorder.ended = True
        if not self._named_outputs:
            training = recorder.training
            gradients = frozenset() if training is None else training.backward.gave
            # Tensors in garbage cycles are no results (a tensor that a pipeline stage has sent).
            collect_recent()
            # A buffer of a model is no result of the region.
            results = [
                tensor
                for tensor in recorder.flow.values.unread(gradients)
                if recorder.registry.tensor(tensor) is None
            ]
            for number, tensor in enumerate(results):
                recorder.flow.add_output("out" if len(results) == 1 else f"out.{number}", tensor)
        describe_calls(recorder)
        if recorder.training is not None:
            box_updates(recorder.builder)
        graph = recorder.close()
        fold_steps(graph, self._steps)
        return graph


def _module(model: object) -> torch.nn.Module:
    if isinstance(model, torch.nn.Module):
        require_whole(model)
        return model
    raise ArgumentError(
        f"record() was given {shown(model)} as a model",
        why="only a torch.nn.Module has named submodules",
        fix="leave it out: all calls in the region are recorded without it",
    )
