"""Capture of a model by torch.compile, and a backend that records graphs for another backend."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from tbscope.errors import ArgumentError, TraceError
from tbscope.ir.graph import Note
from tbscope.messages import error_text, shown
from tbscope.run_options import RUNNING
from tbscope.sources.compiled.capture import Capture, ModelNames, modules_reached
from tbscope.sources.compiled.graphs import graphs_of
from tbscope.sources.compiled.results import CompiledGraphs, reason_text, source_in
from tbscope.sources.eager.measure.meter_modes import WriteWatch
from tbscope.sources.eager.restore.preserve import Snapshot
from tbscope.sources.eager.thread_state import suspend_watchers, trace_lock
from tbscope.sources.eager.trace import name_of, owner_of, trace
from tbscope.sources.torch.calling.bind import DummyInputs, bind_inputs
from tbscope.sources.torch.calling.pytree import result_leaves, tensor_leaves
from tbscope.sources.torch.calling.signatures import argument_names
from tbscope.sources.torch.compat.compiler import (
    context_with,
    disable_module_compile,
    find_backend,
    is_of_compiler,
    is_unsupported,
    isolated_compiler,
    quiet_compiler,
    stack_of,
)
from tbscope.sources.torch.compat.modules import uncompiled
from tbscope.sources.torch.compat.tensors import quiet_fake_mode
from tbscope.utils.gc_pause import collecting_rarely
from tbscope.utils.option import check_values
from tbscope.utils.validation import Dtypes, InputSize, attribute_of, check_truth


def compile_graphs(
    model: Callable[..., Any],
    input_to_model: Any = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    input_size: InputSize | None = None,
    dtypes: Dtypes | None = None,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    training: bool | None = False,
    grad: bool = False,
) -> CompiledGraphs:
    """Return the graphs that torch.compile captures of one call of a model.

    The call runs once, and its graphs run as they were captured: no code is generated. The model
    and the compiler are restored afterwards.

    >>> import torch, tbscope
    >>> graphs = tbscope.compile_graphs(torch.nn.Linear(3, 5), torch.rand(1, 3))
    >>> list(graphs), len(graphs.breaks)
    (['0 Linear.forward'], 0)

    Args:
        model: A module or any other callable; a compiled one is captured anew.
        input_to_model: The inputs, as for `trace`; so are `kwargs`, `input_size` and `dtypes`.
        kwargs: Further keyword arguments.
        input_size: The sizes of generated inputs.
        dtypes: Their element types.
        dynamic: As for `torch.compile`: whether sizes are symbolic.
        fullgraph: As for `torch.compile`: whether a graph break is an error.
        training: Whether the model runs in training mode; None for its present mode.
        grad: Whether gradients are recorded.
    Returns:
        The graphs by title, with an overview of all, and with the breaks between them.
    Raises:
        ArgumentError: An option has no valid value, or nothing was captured.
        InputError: The arguments do not fit the model.
        TraceError: The model raised, or cannot be compiled as a whole.
    """
    check_values(RUNNING, {"training": training, "grad": grad})
    check_truth("dynamic", dynamic, none="torch decides")
    check_truth("fullgraph", fullgraph)
    model = uncompiled(model) if isinstance(model, torch.nn.Module) else model
    made = DummyInputs(input_size, dtypes)
    args, keywords = bind_inputs(model, input_to_model, kwargs, made=made)
    with trace_lock(), collecting_rarely(), suspend_watchers():
        modules = modules_reached(model)
        preserved = Snapshot(modules, (args, keywords, model), training=training)
        capture = Capture(ModelNames(owner_of(model)), alone=True)
        arguments = argument_names(model, args, keywords)
        with (
            preserved,
            isolated_compiler(capture, capture.codes),
            torch.set_grad_enabled(grad),
            quiet_compiler(),
            quiet_fake_mode(),
        ):
            if grad:
                # A backward pass in the model may add to gradients.
                preserved.about_to_accumulate()
                for parameter in _tensors_of(modules, "_parameters"):
                    if parameter.grad is not None:
                        preserved.about_to_write(parameter.grad)
            disable_module_compile(modules)
            # Python code may write into these tensors between two graphs.
            for buffer in _tensors_of(modules, "_buffers"):
                preserved.about_to_write(buffer)
            for name, tree in arguments:
                for _, tensor in tensor_leaves(tree, name):
                    preserved.about_to_write(tensor)
                for path, tensor in tensor_leaves(tree, name, public=True):
                    capture.know(path, tensor)
            capture.running = lambda: WriteWatch(preserved.about_to_write)
            context = context_with(
                capture,
                dynamic=dynamic,
                fullgraph=fullgraph,
                failed=capture.failed,
                met=capture.codes.add,
            )
            try:
                result = context(model)(*args, **keywords)
            except Exception as error:
                # `trace` raises the model's own error, with the scope of the operation.
                trace(model, args, kwargs=keywords, training=training, grad=grad)
                raise _error(error, model, fullgraph=fullgraph) from error
            capture.note_breaks()
            leaves = result_leaves(result)
            capture.outputs(leaves)
            title = name_of(model)
            if not capture.events:
                raise ArgumentError(
                    f"torch.compile captured no graph of {title}",
                    why="no function of the user's with an operation on a tensor ran",
                    fix=f"tbscope.trace({title}, ...) draws the model without it",
                )
            graphs = graphs_of(capture, title, leaves)
        graphs.overview.notes += map(Note, preserved.left)
        return graphs


def _tensors_of(modules: list[torch.nn.Module], table: str) -> Iterator[torch.Tensor]:
    """Yield the tensors in one table of each module (`_buffers`)."""
    for module in modules:
        yield from [tensor for tensor in getattr(module, table).values() if tensor is not None]


def _error(error: Exception, model: object, *, fullgraph: bool) -> TraceError:
    """Return the error for a model that raised, or that cannot be compiled as a whole."""
    name = name_of(model)
    text = str(error)
    if fullgraph and is_unsupported(error):
        line = source_in(stack_of(error))
        return TraceError(
            f"{name} cannot be compiled as one graph" + (f", at {line}" if line else ""),
            why=reason_text(text),
            fix="leave fullgraph=True out to see the graphs before and behind that line",
        )
    return TraceError(
        f"{name} raised while torch.compile captured it, and not when it was called by itself",
        why=reason_text(text) if is_of_compiler(error) else error_text(error),
        fix="tbscope.trace draws the model without torch.compile",
    )


class compile_backend:  # noqa: N801 (used like a function: torch's backends are functions)
    """Backend for torch.compile that records each graph, and compiles with another backend.

    >>> import torch, tbscope
    >>> backend = tbscope.compile_backend("eager")
    >>> model = torch.compile(torch.nn.Linear(3, 5), backend=backend)
    >>> result = model(torch.rand(1, 3))
    >>> len(backend.graphs)
    1

    Args:
        backend: The backend that compiles, or its name.
    Raises:
        ArgumentError: There is no such backend.
    """

    def __init__(self, backend: str | Callable[..., object] = "inductor") -> None:
        inner: object = backend
        why = "a backend is a name, or a function that is called with a graph and its inputs"
        if isinstance(inner, str):
            try:
                inner = find_backend(inner)
            except LookupError as error:
                inner, why = None, f"torch knows {error}"
        if not callable(inner) or isinstance(inner, torch.nn.Module):
            raise ArgumentError(
                f"compile_backend was given {shown(backend)}, which is no backend",
                why=why,
                fix="tbscope.compile_backend('inductor')",
            )
        # torch reports the backend by this name.
        self.__name__ = str(attribute_of(inner, "__name__", type(inner).__name__))
        self._capture = Capture(None, inner=inner)

    def __call__(
        self,
        graph_module: torch.fx.GraphModule,
        example_inputs: Sequence[object],
        **options: object,
    ) -> Callable[..., object]:
        """Record a graph; the other backend compiles it."""
        return self._capture(graph_module, example_inputs, **options)

    @property
    def graphs(self) -> CompiledGraphs:
        """Graphs that have been captured so far.

        Raises:
            ArgumentError: No graph has been captured.
        """
        if not self._capture.graphs:
            raise ArgumentError(
                "the backend has captured no graph yet",
                why="torch.compile calls it when the model first runs",
                fix="call the compiled model once before, as compiled(x)",
            )
        return graphs_of(self._capture, self._capture.graphs[0].function)
