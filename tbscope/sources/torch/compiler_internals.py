"""The private parts of torch's compiler: what it tells of the frame that it compiles, its state.

Those behind the capture are named in lowering_internals.py, all others in internals.py and
module_internals.py. torch promises nothing about them. What a version that is supported lacks
has a fallback here.
"""

import importlib
import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import copy
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar

import torch

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
    steps = [context.callback]
    for _ in range(_MOST_WRAPPERS):
        inner = _inside(steps[-1])
        if inner is None:
            break
        steps.append(inner)
    # The wrappers around it show its attributes, too.
    for step in reversed(steps):
        if hasattr(step, "_inner_convert"):
            step._inner_convert = _Convert(step._inner_convert, failed, met)
            break
    return context


_MOST_WRAPPERS = 5


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
    compiled is let go; counters, and the sizes that the compiler has seen, are as before.

    Args:
        backend: Whose graphs are let go.
        codes: Returns the codes of the frames that the compiler has met in the block.
    """
    from torch import _dynamo
    from torch._dynamo import convert_frame, utils

    with ExitStack() as stack:
        stack.enter_context(_patched(_dynamo.config))
        for table in (
            utils.graph_break_reasons,
            utils.guard_failures,
            utils.compilation_time_metrics,
            getattr(utils, "frame_phase_timing", {}),
            utils.counters,
            convert_frame.FRAME_COMPILE_COUNTER,
        ):
            stack.callback(_kept_table(table))
        before = dict(convert_frame.FRAME_COMPILE_COUNTER)
        stack.callback(_kept_sizes())
        # Whoever has the compiler stand by still wants to see what it would capture.
        stack.enter_context(torch.compiler.set_stance("default"))
        try:
            yield
        finally:
            _let_go(backend, codes(), before)


def _patched(config: Any) -> Any:
    """Return a block with the limits of the compiler out of the way."""
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
    held = {name: value for name, value in wanted.items() if hasattr(config, name)}
    # Of two names for one setting, one is enough.
    if "recompile_limit" in held:
        held.pop("cache_size_limit", None)
        held.pop("accumulated_cache_size_limit", None)
    return config.patch(**held)


_NO_LIMIT = 1 << 20


def _kept_table(table: Any) -> Callable[[], None]:
    """Return what gives a table of the compiler its contents of now."""
    is_list = isinstance(table, list)
    before = [*table] if is_list else {key: copy(value) for key, value in table.items()}

    def put_back() -> None:
        table.clear()
        (table.extend if is_list else table.update)(before)

    return put_back


def _kept_sizes() -> Callable[[], None]:
    """Have the compiler forget the sizes that it has seen; return what has it know them again."""
    pgo: Any = importlib.import_module("torch._dynamo.pgo")
    held = pgo._CODE_STATE, pgo._INIT_CODE_STATE
    pgo._CODE_STATE = pgo._INIT_CODE_STATE = None

    def put_back() -> None:
        pgo._CODE_STATE, pgo._INIT_CODE_STATE = held

    return put_back


def _let_go(backend: object, codes: list[CodeType], before: Mapping[Any, int]) -> None:
    """Let go of what was compiled with a backend; have the compiler look at these frames again.

    Args:
        backend: The backend.
        codes: The codes of the frames.
        before: How often each frame had been compiled before, by its number.
    """
    home: Any = torch._C._dynamo.eval_frame
    for code in codes:
        entries = list(home._debug_get_cache_entry_list(code))
        own = [entry for entry in entries if _is_of(entry, backend, before)]
        if len(own) == len(entries):
            home.reset_code(code)
            continue
        # Others stay: of a single one there is no more than to have it fit nothing any more.
        for entry in own:
            _invalidate(entry)
        # A frame that it has met was none that it leaves alone: now it may be.
        types: Any = importlib.import_module("torch._dynamo.types")
        if hasattr(home, "set_code_exec_strategy") and hasattr(types, "FrameAction"):
            again = types.FrameAction.DEFAULT
            home.set_code_exec_strategy(code, types.FrameExecStrategy(again, again))


def _is_of(entry: Any, backend: object, before: Mapping[Any, int]) -> bool:
    """Tell whether something was compiled with a backend, in the block that is over."""
    if hasattr(entry, "backend"):
        return _innermost(entry.backend) is backend
    # Up to torch 2.6 it tells when it was compiled, not with what.
    made = entry.compile_id
    return bool(made is None or made.frame_compile_id >= before.get(made.frame_id, 0))


def _invalidate(entry: Any) -> None:
    guards: Any = importlib.import_module("torch._dynamo.guards")
    gone = guards.DeletedGuardManagerWrapper("tbscope has read the graph")
    entry.guard_manager.extra_state.invalidate(entry, gone)


def _inside(wrapper: Any) -> Any:
    """Return what one of the compiler's wrappers holds; None for what is none."""
    inner = getattr(wrapper, "_torchdynamo_orig_backend", None)
    # Its name up to torch 2.6.
    return getattr(wrapper, "_torchdynamo_orig_callable", None) if inner is None else inner


def _innermost(backend: Any) -> Any:
    for _ in range(_MOST_WRAPPERS):
        inner = _inside(backend)
        if inner is None:
            break
        backend = inner
    return backend


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
                return _draws_otherwise(backend, checkpointed)
        frame = frame.f_back
    return False


def _draws_otherwise(backend: Any, checkpointed: bool) -> bool:
    backend = _innermost(backend)
    name = getattr(backend, "compiler_name", None) or getattr(backend, "__name__", "")
    if name == "inductor":
        asked = getattr(backend, "config", None) or {}
        settings = sys.modules.get("torch._inductor.config")
        return not (asked.get("fallback_random") or getattr(settings, "fallback_random", False))
    # What goes through autograd ahead of time keeps a checkpoint's numbers for the pass.
    return checkpointed and not str(name).startswith("aot_")


@contextmanager
def quiet_compiler() -> Iterator[None]:
    """Have the compiler not warn of breaks of which it tells all the same, for a block."""
    logger = logging.getLogger("torch._dynamo.variables.tensor")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


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
