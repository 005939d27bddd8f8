"""Watches a region of the user's own code, which keeps its effects, and makes its graph."""

import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from types import FrameType, TracebackType
from typing import Any

import torch

from tbscope.errors import ArgumentError, ScopeError, TraceError
from tbscope.ir.graph import Graph
from tbscope.ir.training_steps import fold_steps
from tbscope.messages import shown
from tbscope.sources.eager.record.describe_calls import describe_calls
from tbscope.sources.eager.record.manual_updates import box_updates
from tbscope.sources.eager.record.recorder import Recorder
from tbscope.sources.eager.thread_state import settle
from tbscope.sources.eager.watch.module_calls import watched_call
from tbscope.sources.eager.watch.watch import Watch
from tbscope.sources.torch.calling.bind import require_made, require_whole
from tbscope.sources.torch.calling.pytree import tensor_leaves
from tbscope.sources.torch.calling.signatures import with_article
from tbscope.utils.gc_pause import collect_recent, collecting_rarely
from tbscope.utils.validation import check_truth

__all__ = ["Recording", "record"]


def record(
    *models: torch.nn.Module,
    backward: bool = True,
    steps: int | None = None,
    **named_models: torch.nn.Module,
) -> "Recording":
    """Watch a region of code and record it as one graph.

        with tbscope.record(generator=G, discriminator=D) as recording:
            loss = criterion(D(G(noise)), target)
        writer.add_graph(recording.graph)

    The code runs as it would without: nothing is put back after it, and training
    flags, gradients and random generators are what they are. A tensor that comes from
    outside is an input; one that is still held at the end and that no operation has
    read is an output, unless `recording.output` names others.

    Args:
        models: Models that the region calls, so that a part of one that is called by
            itself stands at its place in the whole. A model that is not given is
            known from its first call.
        backward: Whether backward passes and steps of optimizers are recorded operation by
            operation, in boxes of their own.
        steps: How many training steps the region holds, each with as many steps of
            optimizers: of those that are equal, one is kept, with a note of how many there
            were and where they differ. None: those that stand in blocks called "step"
            (`tbscope.scope("step")`).
        named_models: The same, with the name that its scope shows in brackets.
    Returns:
        The recording, to be used as a context manager. A thread that enters it leaves it; an end
        in another thread, or before that of a recording entered in it, is a `ScopeError`.
    Raises:
        ArgumentError: A model is no module, or `steps` no number of steps.
    """
    return Recording(*models, backward=backward, steps=steps, **named_models)


class Recording:
    """A region of code that is watched; `graph` holds what it did once it has ended."""

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

    def input(self, **tensors: Any) -> None:
        """Name tensors, or nests of tensors, as inputs of the graph.

        Raises:
            ArgumentError: There is no tensor in one of them, or the region has ended.
        """
        for path, tensor in self._leaves("input", tensors):
            self._recorder.add_input(path, tensor)

    def output(self, **tensors: Any) -> None:
        """Name tensors, or nests of tensors, as outputs of the graph, as they are now.

        Raises:
            ArgumentError: There is no tensor in one of them, or the region has ended.
        """
        for path, tensor in self._leaves("output", tensors):
            self._recorder.add_output(path, tensor)
        self._named_outputs = True

    def _leaves(self, method: str, tensors: Mapping[str, Any]) -> list[tuple[str, torch.Tensor]]:
        """Return the tensors that a user names, each with its path."""
        if self._graph is not None:
            raise ArgumentError(
                f"recording.{method}() comes after the end of its region",
                why="the graph is made when the region ends",
                fix=f"call recording.{method}() inside of the block",
            )
        if not tensors:
            raise ArgumentError(
                f"recording.{method}() names nothing",
                why=f"each {method} is given by its name",
                fix=f"recording.{method}(y=y)",
            )
        found = {name: tensor_leaves(nest, name) for name, nest in tensors.items()}
        for name, leaves in found.items():
            if not leaves:
                raise ArgumentError(
                    f"recording.{method}({name}={shown(tensors[name])}) names no tensor",
                    why=f"an {method} of a graph is a tensor, or a container of tensors",
                    fix=f"give a tensor, or leave {name} out",
                )
            for path, tensor in leaves:
                require_made(path, tensor)
        return [leaf for leaves in found.values() for leaf in leaves]

    def __enter__(self) -> "Recording":
        self.begin(sys._getframe(1))
        return self

    def begin(self, frame: FrameType) -> None:
        """Watch from now on, until the end of `with`.

        Args:
            frame: The Python frame in which the region begins; those around it are not looked at.
        """
        if self._begun_at:
            raise ArgumentError(
                "this recording has been used already",
                why="one recording watches one region",
                fix="begin another one with tbscope.record()",
            )
        self._begun_at = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        with ExitStack() as stack:
            # Until the graph is whole: all that has grown is looked at once.
            stack.enter_context(collecting_rarely())
            if self._backward:
                self._recorder.record_backward()
            watch = Watch(self._recorder)
            watch.__enter__()
            self._watch = watch
            self._recorder.where.begin_at(frame)
            self._collecting = stack.pop_all()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        refused = self._refused()
        if refused is not None:
            with self._collecting:
                self.__del__()
                settle()
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
        # Of a recording that is left nowhere, too.
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.abandon()

    def _refused(self) -> ScopeError | None:
        """Return the error for an end at which there is nothing to end; None for any other."""
        watch = self._watch
        if watch is None:
            return ScopeError(
                "this recording is over" if self._begun_at else "this recording was not entered",
                why="a region begins once, and ends once",
                fix="with tbscope.record() as recording: ..., and no call of __exit__",
            )
        if not watch.is_here:
            return ScopeError(
                f"a recording is left in the thread {threading.current_thread().name!r}, and was "
                f"entered in the thread {watch.thread.name!r} ({self._begun_at})",
                why="a region is what one thread does; it is recorded no more, and has no graph",
                fix="enter and leave tbscope.record() in one thread",
            )
        if not watch.is_innermost:
            return ScopeError(
                f"the recording that was entered at {self._begun_at} is left before one that was "
                "entered in it",
                why="regions end in the reverse order in which they began; this one has no graph",
                fix="leave the inner recording first",
            )
        return None

    def _finished(self, error: BaseException | None) -> Graph:
        """Return the graph of the region, which has ended: by an error, or by itself."""
        recorder = self._recorder
        # One that raised has not told that it is over.
        recorder.end_step(None)
        if error is None:
            recorder.scopes.check_closed(recorder.scopes.top)
        else:
            recorder.ended = True
        if not self._named_outputs:
            backward = recorder.backward
            given = backward.gave if backward is not None else frozenset()
            # What nothing but garbage holds is no result (what a stage of a pipeline has sent).
            collect_recent()
            # What a model keeps in a buffer is no result of the region.
            results = [
                tensor
                for tensor in recorder.live_results(given)
                if recorder.registry.tensor(tensor) is None
            ]
            for number, tensor in enumerate(results):
                recorder.add_output("out" if len(results) == 1 else f"out.{number}", tensor)
        describe_calls(recorder)
        if recorder.backward is not None:
            box_updates(recorder.builder)
        graph = recorder.close()
        fold_steps(graph, self._steps)
        return graph


def _module(model: object) -> torch.nn.Module:
    if isinstance(model, torch.nn.Module):
        require_whole(model)
        return model
    raise ArgumentError(
        f"record() was given {with_article(model)} as a model",
        why="only a torch.nn.Module has parts with names",
        fix="leave it out: what the region calls is recorded either way",
    )
