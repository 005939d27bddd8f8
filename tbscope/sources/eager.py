"""The eager source: watches one ordinary run of a model and gives its graph.

`trace` runs a model and leaves everything as it was; `record` watches a region of
the user's own code, which keeps its effects.
"""

import functools
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import TracebackType
from typing import Any

import torch

from tbscope.collector import collecting_rarely
from tbscope.errors import ArgumentError, ScopeError, TraceError
from tbscope.graph import Graph
from tbscope.sources.active import watching
from tbscope.sources.describe_calls import describe_calls
from tbscope.sources.failure import trace_error
from tbscope.sources.inputs import argument_names, bind_inputs
from tbscope.sources.modes import KernelMode, OperationMode
from tbscope.sources.module_calls import watch_modules, watched_call
from tbscope.sources.nests import result_leaves, tensor_leaves
from tbscope.sources.preserve import Preserved
from tbscope.sources.recorder import Recorder
from tbscope.sources.registry import class_label
from tbscope.sources.torch_internals import uncompiled
from tbscope.sources.unobserved import unobserved

__all__ = ["Recording", "record", "trace"]


def trace(
    model: Callable[..., Any],
    input_to_model: Any = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    training: bool | None = False,
    grad: bool = False,
) -> Graph:
    """Run a model once and give the graph of what it did.

    Everything the run changes is put back: training flags, parameters, buffers and
    gradients, attributes and hooks, the state of the random generators, and the
    inputs themselves.

    Args:
        model: A module, or any other callable (a method, a function, a partial).
        input_to_model: What the model is called with. A tensor is one argument; a
            tuple or list, the positional arguments; a mapping whose keys are
            parameters of forward, keyword arguments, any other mapping one positional
            argument. None: no arguments where forward needs none, else the model's
            `example_input_array` or `dummy_inputs`.
        kwargs: Further keyword arguments.
        training: Whether modules run in training mode; None for the mode in which each
            one stands.
        grad: Whether gradients are recorded, for models that differentiate in forward.
    Returns:
        The graph of the run.
    Raises:
        InputError: The inputs do not fit the parameters of forward.
        TraceError: The model raised; `__cause__` is what it raised.
    """
    with collecting_rarely():
        return _trace(model, input_to_model, kwargs, training=training, grad=grad)


def _trace(
    model: Callable[..., Any],
    input_to_model: Any,
    kwargs: Mapping[str, Any] | None,
    *,
    training: bool | None,
    grad: bool,
) -> Graph:
    # A model that offers inputs of its own may draw them at random.
    with Preserved(()) if input_to_model is None else nullcontext():
        args, keywords = bind_inputs(model, input_to_model, kwargs)
    owner = owner_of(model)
    recorder = Recorder(_name_of(model), boundary=watched_call)
    roots = [model if isinstance(model, torch.nn.Module) else owner] if owner is not None else []
    for root in roots:
        recorder.registry.add_root(root)
    preserved = Preserved(recorder.registry.modules(), (args, keywords), training=training)
    recorder.about_to_write = preserved.about_to_write
    recorder.scopes.adopted = preserved.add_module
    with preserved:
        for name, given in argument_names(model, args, keywords):
            for path, tensor in tensor_leaves(given, name):
                recorder.add_input(path, tensor)
        try:
            with _Watch(recorder, alone=True), torch.set_grad_enabled(grad):
                result = _run(recorder, model, owner, args, keywords)
        except ScopeError:
            raise
        except Exception as error:
            raise trace_error(error, recorder, grad=grad) from error
        for path, tensor in result_leaves(result):
            recorder.add_output(path, tensor)
        del result
        # Before all is put back: a lazy module has its sizes only now.
        describe_calls(recorder)
    return recorder.graph


def _run(
    recorder: Recorder,
    model: Callable[..., Any],
    owner: torch.nn.Module | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call the model; what is no module's own call gets a scope that tells what it is."""
    if isinstance(model, torch.nn.Module):
        return model(*args, **kwargs)
    if owner is not None:
        with recorder.scopes.inside(owner, 0):
            return model(*args, **kwargs)
    recorder.open_scope(_name_of(model))
    result = model(*args, **kwargs)
    recorder.close_scope(_name_of(model))
    return result


def record(*models: torch.nn.Module, **named_models: torch.nn.Module) -> "Recording":
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
        named_models: The same, with the name that its scope shows in brackets.
    Returns:
        The recording, to be used as a context manager.
    Raises:
        ArgumentError: A model is no module.
    """
    return Recording(models, named_models)


class Recording:
    """A region of code that is watched; `graph` holds what it did once it has ended."""

    def __init__(
        self,
        models: tuple[torch.nn.Module, ...] = (),
        named_models: Mapping[str, torch.nn.Module] | None = None,
    ) -> None:
        self._recorder = Recorder("record", boundary=watched_call, open_ended=True)
        self._watch: _Watch | None = None
        self._graph: Graph | None = None
        self._named_outputs = False
        for model in models:
            self._recorder.registry.add_root(_module(model))
        for name, model in (named_models or {}).items():
            self._recorder.registry.add_root(_module(model), qualified_name=name, attribute=name)

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
        """Name tensors, or nests of tensors, as inputs of the graph."""
        for name, nest in tensors.items():
            for path, tensor in tensor_leaves(nest, name):
                self._recorder.add_input(path, tensor)

    def output(self, **tensors: Any) -> None:
        """Name tensors, or nests of tensors, as outputs of the graph, as they are now."""
        self._named_outputs = True
        for name, nest in tensors.items():
            for path, tensor in tensor_leaves(nest, name):
                self._recorder.add_output(path, tensor)

    def __enter__(self) -> "Recording":
        if self._watch is not None:
            raise ArgumentError(
                "this recording has been used already",
                why="one recording watches one region",
                fix="begin another one with tbscope.record()",
            )
        self._recorder.begin_at(sys._getframe(1))
        self._watch = _Watch(self._recorder, alone=False)
        self._watch.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._watch is not None
        self._watch.__exit__(kind, error, trace)
        recorder = self._recorder
        if error is None:
            recorder.scopes.check_closed(recorder.scopes.top)
        if not self._named_outputs:
            results = recorder.live_results()
            for number, tensor in enumerate(results):
                recorder.add_output("out" if len(results) == 1 else f"out.{number}", tensor)
        describe_calls(recorder)
        self._graph = recorder.graph


class _Watch(AbstractContextManager[None]):
    """Has a recorder watch this thread.

    Args:
        recorder: Who watches.
        alone: Whether recorders that watch already look away meanwhile.
    """

    def __init__(self, recorder: Recorder, *, alone: bool) -> None:
        self._recorder = recorder
        self._alone = alone
        self._stack = ExitStack()

    def __enter__(self) -> None:
        with ExitStack() as stack:
            outer = watching.recorders
            paused = [other for other in outer if self._alone and not other.paused]
            for other in paused:
                other.paused = True
                stack.callback(setattr, other, "paused", False)
            stack.callback(setattr, watching, "recorders", outer)
            watching.recorders = (*outer, self._recorder)
            stack.enter_context(watch_modules())
            stack.enter_context(unobserved())
            operations = OperationMode(self._recorder)
            stack.enter_context(KernelMode(self._recorder, operations))
            stack.enter_context(operations)
            self._stack = stack.pop_all()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)


def owner_of(model: Any) -> torch.nn.Module | None:
    """Give the module that a callable belongs to; None where it belongs to none."""
    while isinstance(model, functools.partial):
        model = model.func
    if isinstance(model, torch.nn.Module):
        return uncompiled(model)
    owner = getattr(model, "__self__", None)
    return owner if isinstance(owner, torch.nn.Module) else None


def _name_of(model: Any) -> str:
    owner = owner_of(model)
    if owner is not None:
        return class_label(owner)
    while isinstance(model, functools.partial):
        model = model.func
    name = getattr(model, "__name__", None) or type(model).__name__
    return "lambda" if name == "<lambda>" else str(name)


def _module(model: object) -> torch.nn.Module:
    if isinstance(model, torch.nn.Module):
        return model
    raise ArgumentError(
        f"record() was given {type(model).__name__} as a model",
        why="only a torch.nn.Module has parts with names",
        fix="leave it out: what the region calls is recorded either way",
    )
