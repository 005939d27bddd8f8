"""Private parts of torch's compiler: the frame that it compiles, its graph breaks and its caches.

Private parts of torch about tensors are in `compat/tensors.py`, about modules in
`compat/modules.py`. torch may change them in any release; each part that a supported version
lacks has a fallback here.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar

import torch
from torch.compiler import is_dynamo_compiling
from torch.fx import Graph, Tracer, _symbolic_trace

from tbscope.sources.torch.compat.tensors import quiet

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Compiling(NamedTuple):
    """The frame that is being compiled.

    Attributes:
        code: The code object of the frame.
        variables: Its local variables, by name.
        globals: Its global variables.
        recompiled: The guard of its earlier graphs that failed; None if none did, or if torch does
            not report it.
    """

    code: CodeType
    variables: Mapping[str, object]
    globals: Mapping[str, object]
    recompiled: str | None


class Reason(NamedTuple):
    """The reason why a captured graph ends.

    Attributes:
        text: The compiler's text.
        stack: The lines of the user's code, innermost last: each has `filename`, `lineno` and
            `name`.
        breaks: Whether it is a graph break: the frame continues after the graph.
    """

    text: str
    stack: tuple[object, ...]
    breaks: bool


def compiling() -> Compiling:
    """Return the frame for which the compiler calls a backend at the moment."""
    from torch._dynamo.symbolic_convert import InstructionTranslator
    from torch._dynamo.utils import get_metrics_context

    output: Any = InstructionTranslator.current_tx().output
    reason = get_metrics_context()._metrics.get("recompile_reason")
    # The compiler says "Unable to find" if all earlier graphs belong to another backend.
    recompiled = None if reason is None or "Unable to find" in reason else str(reason)
    return Compiling(output.root_tx.f_code, output.local_scope, output.global_scope, recompiled)


def is_captured() -> bool:
    """Whether Dynamo interprets the caller, or a tracer of torch.fx may capture it (`make_fx`)."""
    return is_dynamo_compiling() or _symbolic_trace._is_fx_tracing_flag


def captured_program() -> tuple[Graph, Mapping[str, object]]:
    """Return the graph that the innermost capture makes, and the module calls that are running.

    Raises:
        AttributeError: No capture runs in this thread, or this torch has another form.
    """
    dynamo = sys.modules.get("torch._dynamo.symbolic_convert")
    kinds = Tracer, getattr(dynamo, "InstructionTranslatorBase", Tracer)
    frame: Any = sys._getframe()
    while not isinstance(frame.f_locals.get("self"), kinds):
        frame = frame.f_back
    capture = frame.f_locals["self"]
    if isinstance(capture, Tracer):
        return capture.graph, capture.module_stack
    return capture.output.graph, capture.nn_module_stack


def runs_in_compiler(function: _Function) -> _Function:
    """Make Dynamo call a function while it compiles, with constants, and capture nothing of it."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def source_text(placeholder: torch.fx.Node) -> str:
    """Return the source of an input of a captured graph (`L['x']`), or the input's own name."""
    source = getattr(placeholder.meta.get("grapharg"), "source", None)
    source = getattr(placeholder, "_dynamo_source", source)
    name = getattr(source, "name", None)
    # A method up to torch 2.9.
    text = name() if callable(name) else name
    return text if isinstance(text, str) else str(placeholder.target)


def example_of(placeholder: torch.fx.Node) -> object:
    """Return the argument for an input of a captured graph in the compiled run, or None."""
    return getattr(placeholder.meta.get("grapharg"), "example", None)


def original_of(function: Callable[..., object]) -> object:
    """Return the original of a function compiled by torch.compile, or None for any other."""
    return getattr(function, "_torchdynamo_orig_callable", None)


def is_of_compiler(error: BaseException) -> bool:
    """Whether an error is the compiler's own, by its class, and not of the code that it runs."""
    return type(error).__module__ == "torch._dynamo.exc"


def is_unsupported(error: BaseException) -> bool:
    """Whether an error is the compiler's `Unsupported`: it cannot compile some code."""
    return is_of_compiler(error) and type(error).__name__ == "Unsupported"


def stack_of(error: BaseException) -> Iterable[object]:
    """Return the lines of the user's code at which the compiler raised, as in `Reason.stack`."""
    return getattr(error, "real_stack", None) or ()


def reason_of(module: torch.fx.GraphModule) -> Reason | None:
    """Return why a captured graph ends, or None if the compiler has recorded no reason."""
    reason = getattr(module, "compile_subgraph_reason", None)
    return None if reason is None else _reason(reason)


def _reason(break_reason: Any) -> Reason:
    stack = tuple(getattr(break_reason, "user_stack", ()) or ())
    return Reason(str(break_reason.reason), stack, bool(getattr(break_reason, "graph_break", True)))


def new_reasons(known: int) -> tuple[list[Reason], int]:
    """Return the graph breaks recorded after the first `known` ones, and the number of all."""
    from torch._dynamo.utils import graph_break_reasons

    return [_reason(reason) for reason in graph_break_reasons[known:]], len(graph_break_reasons)


def context_with(
    backend: object,
    *,
    dynamic: bool | None,
    fullgraph: bool,
    failed: Callable[[Any, Exception], None],
    met: Callable[[CodeType], None],
) -> Any:
    """Return a Dynamo context, which compiles a callable with a backend as `torch.compile` does.

    Args:
        backend: The backend, called with each captured graph.
        dynamic: As in `torch.compile`.
        fullgraph: As in `torch.compile`.
        failed: Called with each frame that the compiler failed to compile, and with the error.
        met: Called with the code of each frame that the compiler examines.
    """
    from torch import _dynamo

    options: dict[str, object] = {"nopython": fullgraph, "dynamic": dynamic}
    if "isolate_recompiles" in inspect.signature(_dynamo.eval_frame._optimize).parameters:
        # Compilations of this context then do not count against earlier recompile limits.
        options["isolate_recompiles"] = True
    context: Any = _dynamo.optimize(backend, **options)
    # Outer wrappers forward attribute reads, so the search begins at the innermost wrapper.
    for step in reversed(_wrappers(context.callback)):
        if hasattr(step, "_inner_convert"):
            step._inner_convert = _Convert(step._inner_convert, failed, met)
            break
    return context


class _Convert:
    """Dynamo's frame converter, with callbacks for each frame and each failure."""

    def __init__(
        self,
        inner: Any,
        failed: Callable[[object, Exception], None],
        met: Callable[[CodeType], None],
    ) -> None:
        self._inner = inner
        self._failed = failed
        self._met = met

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def __call__(self, frame: Any, *args: object, **kwargs: Any) -> object:
        self._met(frame.f_code)
        # `skip` counts the frames between the converter and the user's code: this adds one.
        if "skip" in kwargs:
            kwargs["skip"] += 1
        try:
            return self._inner(frame, *args, **kwargs)
        except Exception as error:
            self._failed(frame, error)
            raise


@contextmanager
def isolated_compiler(backend: object, codes: Iterable[CodeType]) -> Iterator[None]:
    """Run a block in which the compiler starts afresh, and restore its state afterwards.

    Earlier compilations stay, with their guards and limits. Code compiled in the block is
    discarded, and the compiler's record of sizes (its PGO state) is restored.

    Args:
        backend: The backend whose compilations are discarded.
        codes: The code objects of the frames that the compiler examines in the block; read at its
            end.
    """
    from torch import _dynamo

    overrides = {
        "recompile_limit": _NO_LIMIT,
        "accumulated_recompile_limit": _NO_LIMIT,
        "cache_size_limit": _NO_LIMIT,
        "accumulated_cache_size_limit": _NO_LIMIT,
        "error_on_recompile": False,
        "disable": False,
        "automatic_dynamic_local_pgo": False,
        "automatic_dynamic_remote_pgo": False,
    }
    settings = {name: value for name, value in overrides.items() if hasattr(_dynamo.config, name)}
    pgo: Any = importlib.import_module("torch._dynamo.pgo")
    sizes = pgo._CODE_STATE, pgo._INIT_CODE_STATE
    pgo._CODE_STATE = pgo._INIT_CODE_STATE = None
    try:
        # Under the stance `force_eager` of the program, the block would capture nothing.
        with _dynamo.config.patch(settings), torch.compiler.set_stance("default"):
            yield
    finally:
        pgo._CODE_STATE, pgo._INIT_CODE_STATE = sizes
        _let_go(backend, codes)


_NO_LIMIT = 1 << 20


def _let_go(backend: object, codes: Iterable[CodeType]) -> None:
    """Discard the compilations of a backend, so that the compiler examines the frames again.

    Args:
        backend: The backend.
        codes: The code objects of the frames.
    """
    eval_frame: Any = torch._C._dynamo.eval_frame
    for code in codes:
        entries = list(eval_frame._debug_get_cache_entry_list(code))
        # Up to torch 2.6, cache entries do not record their backend: all of them are discarded.
        discarded = [
            entry
            for entry in entries
            if not hasattr(entry, "backend") or _wrappers(entry.backend)[-1] is backend
        ]
        if len(discarded) == len(entries):
            eval_frame.reset_code(code)
            continue
        # Entries of other backends stay. torch cannot remove a single entry, so the guards of each
        # entry of ours are invalidated, and it never matches again.
        guards: Any = importlib.import_module("torch._dynamo.guards")
        for entry in discarded:
            invalid = guards.DeletedGuardManagerWrapper("tbscope has read the graph")
            entry.guard_manager.extra_state.invalidate(entry, invalid)
        # The compiler examined the frame, so it was not marked as skipped before the block. The
        # block may have marked it.
        types: Any = importlib.import_module("torch._dynamo.types")
        if hasattr(eval_frame, "set_code_exec_strategy") and hasattr(types, "FrameAction"):
            default = types.FrameAction.DEFAULT
            eval_frame.set_code_exec_strategy(code, types.FrameExecStrategy(default, default))


def _wrappers(outer: object) -> list[object]:
    """Return a backend or callback of the compiler and the objects that it wraps, inwards."""
    steps = [outer]
    while True:
        # The attribute has the second name up to torch 2.6.
        of_old = getattr(steps[-1], "_torchdynamo_orig_callable", None)
        inner = getattr(steps[-1], "_torchdynamo_orig_backend", of_old)
        if inner is None:
            return steps
        steps.append(inner)


def differs_when_compiled(frame: FrameType | None) -> bool:
    """Whether a random operation would draw other numbers if its compiled function really ran.

    While a trace runs, compiled functions run eagerly. Compiled code of inductor draws numbers of
    its own, unless `fallback_random` is set. Other backends draw torch's numbers, except in a
    captured checkpoint, which is recomputed without the random state of its first run.

    Args:
        frame: The Python frame that called the operation.
    """
    checkpointed = False
    while frame is not None:
        module_name = frame.f_globals.get("__name__")
        checkpointed = checkpointed or module_name == "torch.utils.checkpoint"
        if module_name == "torch._dynamo.eval_frame":
            backend = getattr(frame.f_locals.get("self"), "callback", None)
            if callable(backend):
                backend = _wrappers(backend)[-1]
                name = getattr(backend, "compiler_name", None) or getattr(backend, "__name__", "")
                if name == "inductor":
                    options = getattr(backend, "config", None) or {}
                    settings: Any = sys.modules.get("torch._inductor.config")
                    return not (options.get("fallback_random") or settings.fallback_random)
                # AOTAutograd saves the numbers of a checkpoint for the backward pass.
                return checkpointed and not str(name).startswith("aot_")
        frame = frame.f_back
    return False


quiet_compiler = partial(quiet, "torch._dynamo.variables.tensor")
"""Silences the compiler's warnings about graph breaks, during a block: it reports them anyway."""


def disable_module_compile(modules: Iterable[torch.nn.Module]) -> None:
    """Make modules run uncompiled on which `compile()` was called.

    The caller must have a snapshot of the modules, and restore their attributes later.
    """
    for module in modules:
        if module.__dict__.get("_compiled_call_impl") is not None:
            module.__dict__["_compiled_call_impl"] = None


def find_backend(name: str) -> Callable[..., object]:
    """Return the backend with a name, by the registry of `torch.compile`.

    Raises:
        LookupError: No backend has this name; the message lists those that exist.
    """
    from torch._dynamo.backends import registry

    try:
        backend: Callable[..., object] = registry.lookup_backend(name)
    except Exception as error:
        names = ", ".join(registry.list_backends())
        raise LookupError(names) from error
    return backend


def never_compiled(function: _Function) -> _Function:
    """Keep torch.compile from compiling a function and all that it calls; return the function.

    Compiled user code that draws a model would otherwise compile the watchers, too, and fail
    there. It still fails with a torch that lacks this setting.
    """
    frames: Any = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        code = inspect.unwrap(function).__code__
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
    # The strategy covers the function's own frame; this attribute keeps the compiler from inlining
    # the function into a compiled caller.
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function
