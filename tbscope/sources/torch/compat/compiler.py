"""The private parts of torch's compiler: what it tells of the frame that it compiles, its state.

All others are named in internals.py and module_internals.py. torch promises nothing about them.
What a version that is supported lacks has a fallback here.
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

from tbscope.sources.torch.compat.tensors import quiet

__all__ = [
    "Compiling",
    "Reason",
    "as_dynamo_does",
    "draws_otherwise",
    "compiled_from",
    "compiling",
    "context_with",
    "example_of",
    "is_of_compiler",
    "is_unsupported",
    "kept_compiler",
    "never_compiled",
    "new_reasons",
    "quiet_compiler",
    "reason_of",
    "source_text",
    "stack_of",
    "stop_own_compiling",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Compiling(NamedTuple):
    """The frame that is being compiled.

    Attributes:
        code: Its code.
        variables: Its variables, by name.
        globals: The variables of its file.
        recompiled: Which guard of its earlier graphs failed; None where none did, or where torch
            does not tell.
    """

    code: CodeType
    variables: Mapping[str, Any]
    globals: Mapping[str, Any]
    recompiled: str | None


class Reason(NamedTuple):
    """Why a graph ends.

    Attributes:
        text: What the compiler says.
        stack: The lines of the user's code, innermost last: each has `filename`, `lineno` and
            `name`.
        breaks: Whether the frame goes on behind it.
    """

    text: str
    stack: tuple[Any, ...]
    breaks: bool


def compiling() -> Compiling:
    """Return what the compiler tells of the frame for which it calls a backend."""
    from torch._dynamo.symbolic_convert import InstructionTranslator
    from torch._dynamo.utils import get_metrics_context

    output: Any = InstructionTranslator.current_tx().output
    told = get_metrics_context()._metrics.get("recompile_reason")
    # What it says where the graphs before were another backend's.
    recompiled = None if told is None or "Unable to find" in told else str(told)
    return Compiling(output.root_tx.f_code, output.local_scope, output.global_scope, recompiled)


def source_text(placeholder: torch.fx.Node) -> str:
    """Return where an input of a captured graph comes from (`L['x']`); its name where untold."""
    source = getattr(placeholder.meta.get("grapharg"), "source", None)
    source = getattr(placeholder, "_dynamo_source", source)
    name = getattr(source, "name", None)
    # A method up to torch 2.9.
    told = name() if callable(name) else name
    return told if isinstance(told, str) else str(placeholder.target)


def example_of(placeholder: torch.fx.Node) -> Any:
    """Return what an input of a captured graph is in the run that is compiled; None if untold."""
    return getattr(placeholder.meta.get("grapharg"), "example", None)


def compiled_from(function: Callable[..., Any]) -> Any:
    """Return the function that torch.compile was given; None for one that is not compiled."""
    return getattr(function, "_torchdynamo_orig_callable", None)


def is_of_compiler(error: BaseException) -> bool:
    """Tell whether it is the compiler that raised an error, and not what it compiles."""
    return type(error).__module__ == "torch._dynamo.exc"


def is_unsupported(error: BaseException) -> bool:
    """Tell whether an error says that the compiler cannot compile something."""
    return is_of_compiler(error) and type(error).__name__ == "Unsupported"


def stack_of(error: BaseException) -> Iterable[Any]:
    """Return the lines of the user's code at which the compiler raised, as of a `Reason`."""
    return getattr(error, "real_stack", None) or ()


def reason_of(module: torch.fx.GraphModule) -> Reason | None:
    """Return why a captured graph ends; None where the compiler does not tell."""
    told = getattr(module, "compile_subgraph_reason", None)
    return None if told is None else _reason(told)


def _reason(told: Any) -> Reason:
    stack = tuple(getattr(told, "user_stack", ()) or ())
    return Reason(str(told.reason), stack, bool(getattr(told, "graph_break", True)))


def new_reasons(known: int) -> tuple[list[Reason], int]:
    """Return the breaks that the compiler has noted after the first ones, and how many it has."""
    from torch._dynamo.utils import graph_break_reasons

    return [_reason(told) for told in graph_break_reasons[known:]], len(graph_break_reasons)


def context_with(
    backend: Any,
    *,
    dynamic: bool | None,
    fullgraph: bool,
    failed: Callable[[Any, Exception], None],
    met: Callable[[CodeType], None],
) -> Any:
    """Return what compiles a callable with a backend, as `torch.compile` does.

    Args:
        backend: What is given the graphs.
        dynamic: As for `torch.compile`.
        fullgraph: As for `torch.compile`.
        failed: Is told of each frame that is not compiled, and of what was raised.
        met: Is told of the code of each frame that the compiler looks at.
    """
    from torch import _dynamo

    options: dict[str, Any] = {"nopython": fullgraph, "dynamic": dynamic}
    if "isolate_recompiles" in inspect.signature(_dynamo.eval_frame._optimize).parameters:
        # What is compiled here counts for no limit of what was compiled before.
        options["isolate_recompiles"] = True
    context: Any = _dynamo.optimize(backend, **options)
    # The wrappers around it show its attributes, too.
    for step in reversed(_wrappers(context.callback)):
        if hasattr(step, "_inner_convert"):
            step._inner_convert = _Convert(step._inner_convert, failed, met)
            break
    return context


class _Convert:
    """Compiles frames, and tells of each, and of those of which it raises."""

    def __init__(
        self,
        inner: Any,
        failed: Callable[[Any, Exception], None],
        met: Callable[[CodeType], None],
    ) -> None:
        self._inner = inner
        self._failed = failed
        self._met = met

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, frame: Any, *args: Any, **kwargs: Any) -> Any:
        self._met(frame.f_code)
        # The compiler counts the frames between itself and the user's.
        if "skip" in kwargs:
            kwargs["skip"] += 1
        try:
            return self._inner(frame, *args, **kwargs)
        except Exception as error:
            self._failed(frame, error)
            raise


@contextmanager
def kept_compiler(backend: object, codes: Callable[[], list[CodeType]]) -> Iterator[None]:
    """Have a block compile as if for the first time, and leave no trace in the compiler.

    What was compiled before stays compiled, with its guards and its limits; what the block
    compiled is let go; the sizes that the compiler has seen are as before.

    Args:
        backend: Whose graphs are let go.
        codes: Returns the codes of the frames that the compiler has met in the block.
    """
    from torch import _dynamo

    wanted = {
        "recompile_limit": _NO_LIMIT,
        "accumulated_recompile_limit": _NO_LIMIT,
        "cache_size_limit": _NO_LIMIT,
        "accumulated_cache_size_limit": _NO_LIMIT,
        "error_on_recompile": False,
        "disable": False,
        "automatic_dynamic_local_pgo": False,
        "automatic_dynamic_remote_pgo": False,
    }
    held = {name: value for name, value in wanted.items() if hasattr(_dynamo.config, name)}
    pgo: Any = importlib.import_module("torch._dynamo.pgo")
    sizes = pgo._CODE_STATE, pgo._INIT_CODE_STATE
    pgo._CODE_STATE = pgo._INIT_CODE_STATE = None
    try:
        # Whoever has the compiler stand by still wants to see what it would capture.
        with _dynamo.config.patch(held), torch.compiler.set_stance("default"):
            yield
    finally:
        pgo._CODE_STATE, pgo._INIT_CODE_STATE = sizes
        _let_go(backend, codes())


_NO_LIMIT = 1 << 20


def _let_go(backend: object, codes: list[CodeType]) -> None:
    """Let go of what was compiled with a backend; have the compiler look at these frames again.

    Args:
        backend: The backend.
        codes: The codes of the frames.
    """
    home: Any = torch._C._dynamo.eval_frame
    for code in codes:
        entries = list(home._debug_get_cache_entry_list(code))
        # Up to torch 2.6 none tells with what it was compiled: all are let go.
        own = [
            entry
            for entry in entries
            if not hasattr(entry, "backend") or _wrappers(entry.backend)[-1] is backend
        ]
        if len(own) == len(entries):
            home.reset_code(code)
            continue
        # Others stay: of a single one there is no more than to have it fit nothing any more.
        guards: Any = importlib.import_module("torch._dynamo.guards")
        for entry in own:
            gone = guards.DeletedGuardManagerWrapper("tbscope has read the graph")
            entry.guard_manager.extra_state.invalidate(entry, gone)
        # A frame that it has met was none that it leaves alone: now it may be.
        types: Any = importlib.import_module("torch._dynamo.types")
        if hasattr(home, "set_code_exec_strategy") and hasattr(types, "FrameAction"):
            again = types.FrameAction.DEFAULT
            home.set_code_exec_strategy(code, types.FrameExecStrategy(again, again))


def _wrappers(outer: Any) -> list[Any]:
    """Return a backend or a callback of the compiler, and what is wrapped in it, inwards."""
    steps = [outer]
    while len(steps) <= _MOST_WRAPPERS:
        inner = getattr(steps[-1], "_torchdynamo_orig_backend", None)
        if inner is None:
            # Its name up to torch 2.6.
            inner = getattr(steps[-1], "_torchdynamo_orig_callable", None)
        if inner is None:
            break
        steps.append(inner)
    return steps


_MOST_WRAPPERS = 5


def draws_otherwise(frame: FrameType | None) -> bool:
    """Whether a random operation would draw other numbers in compiled code, had that not stood by.

    Inductor draws numbers of its own, unless it is told not to. Others draw those of torch, but in
    a checkpoint that was captured: that runs again without the random state of its first run.

    Args:
        frame: The Python frame that called the operation.
    """
    checkpointed = False
    while frame is not None:
        home = frame.f_globals.get("__name__")
        checkpointed = checkpointed or home == "torch.utils.checkpoint"
        if home == "torch._dynamo.eval_frame":
            backend = getattr(frame.f_locals.get("self"), "callback", None)
            if callable(backend):
                backend = _wrappers(backend)[-1]
                name = getattr(backend, "compiler_name", None) or getattr(backend, "__name__", "")
                if name == "inductor":
                    asked = getattr(backend, "config", None) or {}
                    settings: Any = sys.modules.get("torch._inductor.config")
                    return not (asked.get("fallback_random") or settings.fallback_random)
                # Autograd ahead of time keeps the numbers of a checkpoint for the pass.
                return checkpointed and not str(name).startswith("aot_")
        frame = frame.f_back
    return False


quiet_compiler = partial(quiet, "torch._dynamo.variables.tensor")
"""Has the compiler not warn of breaks of which it tells all the same, for a block."""


def stop_own_compiling(modules: Iterable[torch.nn.Module]) -> None:
    """Have modules on which `compile()` was called run as they are.

    It is for who keeps the modules, and puts their attributes back.
    """
    for module in modules:
        if module.__dict__.get("_compiled_call_impl") is not None:
            module.__dict__["_compiled_call_impl"] = None


def as_dynamo_does(name: str) -> Callable[..., Any]:
    """Return the backend of a name, as `torch.compile` finds it.

    Raises:
        LookupError: There is none of this name.
    """
    from torch._dynamo.backends import registry

    try:
        found: Callable[..., Any] = registry.lookup_backend(name)
    except Exception as error:
        known = ", ".join(registry.list_backends())
        raise LookupError(known) from error
    return found


def never_compiled(function: _Function) -> _Function:
    """Have torch.compile run a function, with all that it calls, as Python does, and return it.

    Compiled code that draws a model would have compiled what watches it, and failed there; where
    torch has no such setting, it still does.
    """
    frames: Any = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        code = inspect.unwrap(function).__code__
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
    # The strategy is for its own frame; this keeps it from being inlined into one that is compiled.
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function
