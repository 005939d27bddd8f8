"""Compiles a model as torch.compile would, and draws what is captured of it."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Literal, TypeAlias

import torch

from tbscope.checks import attribute_of, check_truth
from tbscope.collector import collecting_rarely
from tbscope.errors import ArgumentError, TbscopeError, TraceError
from tbscope.ir.graph import Note
from tbscope.sources.compiled.capture import Capture
from tbscope.sources.compiled.graphs import graphs_of
from tbscope.sources.compiled.names import Names
from tbscope.sources.compiled.reach import modules_reached
from tbscope.sources.compiled.reasons import reason_text, source_in
from tbscope.sources.compiled.results import CompiledGraphs
from tbscope.sources.compiled.stages import STAGES
from tbscope.sources.eager.active import alone, one_at_a_time
from tbscope.sources.eager.keep.preserve import Preserved
from tbscope.sources.eager.measure.call_watch import WriteWatch
from tbscope.sources.eager.trace import name_of, owner_of, trace
from tbscope.sources.programs.types import type_nest
from tbscope.sources.torch.compiler_internals import (
    as_dynamo_does,
    context_with,
    is_of_compiler,
    is_unsupported,
    kept_compiler,
    quiet_compiler,
    stack_of,
    stop_own_compiling,
)
from tbscope.sources.torch.inputs import bind_inputs
from tbscope.sources.torch.internals import quiet_fake_mode
from tbscope.sources.torch.module_internals import uncompiled
from tbscope.sources.torch.nests import result_leaves, tensor_leaves
from tbscope.sources.torch.signatures import argument_names
from tbscope.words import error_text, shown

__all__ = ["CompileBackend", "Stage", "compile_backend", "compile_graphs"]

Stage: TypeAlias = Literal["dynamo", "joint", "forward", "backward", "inductor"]
"""A stage of a graph, from what is captured to what runs."""


def compile_graphs(
    model: Callable[..., Any],
    *args: Any,
    stage: Stage | Sequence[Stage] = "dynamo",
    dynamic: bool | None = None,
    fullgraph: bool = False,
    training: bool | None = False,
    grad: bool | None = None,
    **kwargs: Any,
) -> CompiledGraphs:
    """Return the graphs that torch.compile captures of one call of a model.

    The call runs once, its graphs as they were captured: no code is generated. All is then as it
    was before, in the model and in the compiler.

    Args:
        model: A module, or any other callable; one that is compiled already is captured anew.
        args: The positional arguments of the call.
        stage: What is wanted of each graph, one or several: "dynamo" as it was captured; "joint",
            "forward" and "backward" in torch's own operators, with the gradients; "inductor" with
            a box for each kernel that Inductor would make.
        dynamic: As for `torch.compile`: whether sizes are left open.
        fullgraph: As for `torch.compile`: whether a graph break is an error.
        training: Whether the model runs in training mode; None for the mode it is in.
        grad: Whether gradients are recorded; None where "joint" or "backward" are wanted.
        kwargs: The keyword arguments of the call.
    Raises:
        ArgumentError: An option is none, or nothing was captured.
        InputError: The arguments do not fit the model.
        TraceError: The model raised, or cannot be compiled as a whole.
    """
    stages = _checked_stages(stage)
    check_truth("training", training, none="the mode in which each module stands")
    check_truth("dynamic", dynamic, none="torch decides")
    check_truth("fullgraph", fullgraph)
    check_truth("grad", grad, none="recorded where the stage asks for it")
    model = uncompiled(model) if isinstance(model, torch.nn.Module) else model
    args, kwargs = bind_inputs(model, args, kwargs)
    grad = bool({"joint", "backward"} & set(stages)) if grad is None else grad
    try:
        with one_at_a_time(), collecting_rarely(), alone():
            run = _Run(model, args, kwargs, stages, training=training)
            return run.graphs(dynamic=dynamic, fullgraph=fullgraph, grad=grad)
    except _RaisedError as raised:
        # What the model raises by itself is told as it is elsewhere, with the place.
        trace(model, args, kwargs=kwargs, training=training, grad=grad)
        raise _error(raised.error, model, fullgraph=fullgraph) from raised.error


class _RaisedError(Exception):
    """Something was raised while a model was captured."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def _checked_stages(stage: Any) -> tuple[str, ...]:
    stages = (stage,) if isinstance(stage, str) else stage
    known = isinstance(stages, list | tuple) and stages
    if not known or any(type(each) is not str or each not in STAGES for each in stages):
        raise ArgumentError(
            f"stage={shown(stage)} is not known",
            why=f"the stages of a graph are {', '.join(STAGES)}",
            fix="give stage='forward', or several: stage=('dynamo', 'forward')",
        )
    return tuple(stages)


class _Run:
    """One call of a model that is captured."""

    def __init__(
        self,
        model: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        stages: tuple[str, ...],
        *,
        training: bool | None,
    ) -> None:
        self._model = model
        self._args = args
        self._kwargs = kwargs
        self._stages = stages
        self._owner = owner_of(model)
        self._modules = modules_reached(model)
        self._preserved = Preserved(self._modules, (args, kwargs, model), training=training)
        self._capture = Capture(Names(self._owner), stages=stages, alone=True)

    def graphs(self, *, dynamic: bool | None, fullgraph: bool, grad: bool) -> CompiledGraphs:
        """Run the model; return what was captured."""
        capture = self._capture
        with ExitStack() as stack:
            stack.enter_context(self._preserved)
            if grad:
                self._keep_gradients()
            stop_own_compiling(self._modules)
            stack.enter_context(kept_compiler(capture, lambda: list(capture.codes)))
            self._keep_contents()
            capture.running = lambda: WriteWatch(self._preserved.about_to_write)
            for name, given in argument_names(self._model, self._args, self._kwargs):
                for path, tensor in tensor_leaves(given, name, public=True):
                    capture.know(path, tensor)
            stack.enter_context(torch.set_grad_enabled(grad))
            stack.enter_context(quiet_compiler())
            stack.enter_context(quiet_fake_mode())
            context = context_with(
                capture,
                dynamic=dynamic,
                fullgraph=fullgraph,
                failed=capture.failed,
                met=capture.met,
            )
            try:
                result = context(self._model)(*self._args, **self._kwargs)
            except TbscopeError:
                raise
            except Exception as error:
                raise _RaisedError(error) from error
            capture.finish()
            leaves = result_leaves(result)
            capture.outputs(leaves)
            types = [(path, type_nest(tensor)) for path, tensor in leaves]
            title = name_of(self._model)
            self._require(title)
            found = graphs_of(capture, title, types, dynamo="dynamo" in self._stages)
        found.overview.notes += map(Note, self._preserved.left)
        return found

    def _keep_gradients(self) -> None:
        """Keep the gradients to which a backward pass in the model may add."""
        self._preserved.about_to_accumulate()
        for module in self._modules:
            for parameter in module._parameters.values():
                if parameter is not None and parameter.grad is not None:
                    self._preserved.about_to_write(parameter.grad)

    def _keep_contents(self) -> None:
        """Keep what Python may write into between two graphs."""
        for module in self._modules:
            for buffer in module._buffers.values():
                if buffer is not None:
                    self._preserved.about_to_write(buffer)
        for _, given in argument_names(self._model, self._args, self._kwargs):
            for _, tensor in tensor_leaves(given, ""):
                self._preserved.about_to_write(tensor)

    def _require(self, title: str) -> None:
        """Raise unless there is something to draw."""
        graphs = self._capture.graphs
        if not self._capture.events:
            raise ArgumentError(
                f"torch.compile captured no graph of {title}",
                why="it met no function of the user's with an operation on a tensor",
                fix=f"tbscope.trace({title}, ...) draws what runs without it",
            )
        if graphs and "dynamo" not in self._stages and not any(each.lowered for each in graphs):
            raise ArgumentError(
                f"{title} has no graph of the stage {' or '.join(self._stages)}",
                why="nothing that its graphs give has a gradient",
                fix="give a model with parameters that require one, and not grad=False; or "
                "stage='forward'",
            )


def _error(error: Exception, model: Any, *, fullgraph: bool) -> TraceError:
    """Return the error for a model that raised, or that cannot be compiled as a whole."""
    name = name_of(model)
    text = str(error)
    if fullgraph and is_unsupported(error):
        place = source_in(stack_of(error))
        return TraceError(
            f"{name} cannot be compiled as one graph" + (f", at {place}" if place else ""),
            why=reason_text(text),
            fix="leave fullgraph=True out to see the graphs before and behind that line",
        )
    return TraceError(
        f"{name} raised while torch.compile captured it, and not when it was called by itself",
        why=reason_text(text) if is_of_compiler(error) else error_text(error),
        fix="tbscope.trace draws what runs without torch.compile",
    )


class CompileBackend:
    """A backend of torch.compile that takes down what another one is given to compile.

    Args:
        backend: What compiles: the name of a backend, or one itself.
        stages: What is wanted of each graph.
    """

    def __init__(self, backend: str | Callable[..., Any], stages: tuple[str, ...]) -> None:
        inner: Any = backend
        if isinstance(inner, str):
            try:
                inner = as_dynamo_does(inner)
            except LookupError as error:
                raise ArgumentError(
                    f"compile_backend was given {shown(backend)}, which is no backend",
                    why=f"torch knows {error}",
                    fix="tbscope.compile_backend('inductor')",
                ) from error
        if not callable(inner) or isinstance(inner, torch.nn.Module):
            raise ArgumentError(
                f"compile_backend was given {shown(backend)}, which is no backend",
                why="it takes the name of one, or what is called with a graph and its inputs",
                fix="tbscope.compile_backend('inductor')",
            )
        # By which torch tells of it, too.
        self.__name__ = str(attribute_of(inner, "__name__", type(inner).__name__))
        self._stages = stages
        self._capture = Capture(None, inner=inner, stages=stages)

    def __call__(
        self, graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any
    ) -> Callable[..., Any]:
        """Take down a graph; have the other backend compile it."""
        return self._capture(graph_module, example_inputs, **options)

    @property
    def graphs(self) -> CompiledGraphs:
        """What was captured until now.

        Raises:
            ArgumentError: Nothing was.
        """
        if not self._capture.graphs:
            raise ArgumentError(
                "the backend has captured no graph yet",
                why="torch.compile calls it when the model first runs",
                fix="call the compiled model once before, as compiled(x)",
            )
        title = self._capture.graphs[0].function
        return graphs_of(self._capture, title, dynamo="dynamo" in self._stages)


def compile_backend(
    backend: str | Callable[..., Any] = "inductor",
    *,
    stage: Stage | Sequence[Stage] = "dynamo",
) -> CompileBackend:
    """Return a backend for torch.compile that takes down each graph which another one compiles.

        backend = tbscope.compile_backend("inductor")
        model = torch.compile(model, backend=backend)
        model(x)
        writer.add_graph(backend.graphs)

    Args:
        backend: What compiles: the name of a backend, or one itself.
        stage: As for `compile_graphs`.
    Raises:
        ArgumentError: There is no such backend, or no such stage.
    """
    return CompileBackend(backend, _checked_stages(stage))
