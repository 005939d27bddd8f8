"""The capture: takes what the compiler gives a backend, and notes what flows between the graphs.

It is the backend itself. What it takes down of a graph is a copy, so that whatever compiles the
graph afterwards may change it.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import CodeType
from typing import Any

import torch

from tbscope.ir.graph import Source
from tbscope.sources.compiled.copies import Given, copied
from tbscope.sources.compiled.names import FrameNames, Names
from tbscope.sources.compiled.reasons import (
    function_name,
    guard_text,
    plain_name,
    reason_text,
    source_in,
)
from tbscope.sources.compiled.results import GraphBreak
from tbscope.sources.compiled.stages import Lowered, lowered
from tbscope.sources.programs.lines import own_line
from tbscope.sources.programs.types import type_nest
from tbscope.sources.torch.compiler_internals import (
    Reason,
    compiling,
    example_of,
    new_reasons,
    reason_of,
    source_text,
    stack_of,
)
from tbscope.sources.torch.locate import is_foreign_file

__all__ = ["Capture", "Captured", "Origin"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a tensor comes from that a captured graph takes, when it runs for the first time.

    Attributes:
        graph: The number of the graph that gave it; None for an input of the model.
        place: Which of its outputs it is.
        path: The path of an input of the model; empty where a graph gave it.
    """

    graph: int | None
    place: int = 0
    path: str = ""


@dataclass(slots=True)
class Captured:
    """One graph that the compiler captured.

    Attributes:
        number: Which one it is, counted from 0.
        function: The function that it is a part of (`Net.forward, from line 12`).
        source: Where that function is.
        owner: The qualified name of the module whose method it is; None for any other function.
        recompiled: Why a graph of this very function did not hold; None for the first one.
        module: Its nodes, as the compiler captured them.
        given: What it takes, in order.
        lowered: Its nodes in the stages behind.
        runs: How often it ran.
        origins: Where what it takes comes from, in its first run; None where that is not known.
        outputs: The paths in the model's result of what it gives; None for anything else.
    """

    number: int
    function: str
    source: Source | None
    owner: str | None
    recompiled: str | None
    module: torch.fx.GraphModule
    given: list[Given]
    lowered: list[Lowered] = field(default_factory=list)
    runs: int = 0
    origins: list[Origin | None] = field(default_factory=list)
    outputs: list[str | None] = field(default_factory=list)


class Capture:
    """A backend that takes down what it is given to compile.

    Args:
        names: The names in the model; None where the first frame tells what the model is.
        inner: What compiles each graph; None to have it run as it is.
        stages: What is asked for beside what the compiler captures.
        alone: Whether nothing else is compiled meanwhile, in one call of the model.

    Attributes:
        events: The graphs and the breaks, in order.
        codes: The codes of the frames that were met.
        alone: Whether nothing else is compiled meanwhile, in one call of the model.
        inputs: What the model is given, by path.
        passed: For what it gave back as it was given, by the path in its result, that of the input.
        running: Gives a block in which each graph runs.
    """

    def __init__(
        self,
        names: Names | None,
        *,
        inner: Callable[..., Any] | None = None,
        stages: Sequence[str] = (),
        alone: bool = False,
    ) -> None:
        self.names = names
        self._inner = inner
        self._stages = stages
        self.alone = alone
        self._reasons = new_reasons(0)[1] if alone else 0
        self.events: list[Captured | GraphBreak] = []
        self.codes: dict[CodeType, None] = {}
        self.inputs: dict[str, Any] = {}
        self.passed: dict[str, str] = {}
        self._seen: dict[CodeType, int] = {}
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], Origin]] = {}
        self.running: Callable[[], AbstractContextManager[Any]] = nullcontext

    @property
    def graphs(self) -> list[Captured]:
        """The graphs that were captured, in order."""
        return [event for event in self.events if isinstance(event, Captured)]

    def know(self, path: str, tensor: torch.Tensor) -> None:
        """Take note of an input of the model."""
        self.inputs[path] = type_nest(tensor)
        self._note(tensor, Origin(None, 0, path))

    def outputs(self, leaves: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take note of what the model gives."""
        graphs = self.graphs
        for path, tensor in leaves:
            origin = self._origin(tensor)
            if origin is not None and origin.graph is None:
                self.passed[path] = origin.path
            elif origin is not None and origin.graph is not None:
                outputs = graphs[origin.graph].outputs
                if origin.place < len(outputs) and outputs[origin.place] is None:
                    outputs[origin.place] = path

    # -- what the compiler tells ----------------------------------------------------------

    def __call__(
        self, module: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any
    ) -> Callable[..., Any]:
        """Take down a graph; return what runs it."""
        frame = compiling()
        reason = reason_of(module)
        self._note_breaks(reason)
        self.codes[frame.code] = None
        if self.names is None:
            self.names = Names(_owner(frame.code, frame.variables))
        captured = self._captured(module, frame, example_inputs)
        self.events.append(captured)
        if reason is not None and reason.breaks:
            self._add_break(reason)
        if self._inner is None:
            return self._watched(captured, module.forward)
        return self._watched(captured, self._inner(module, example_inputs, **options))

    def failed(self, frame: Any, error: Exception) -> None:
        """Take note of a frame that is not compiled, and why."""
        known = len(self.events)
        self._note_breaks(None)
        code, variables = frame.f_code, getattr(frame, "f_locals", {})
        if is_foreign_file(code.co_filename) and "fn" not in variables:
            # One of torch's own, which the user's code called.
            return
        text = str(error)
        place = source_in(stack_of(error))
        last = self.events[-1] if len(self.events) > known else None
        if isinstance(last, GraphBreak) and last.details in text and last.source == place:
            # The same break, before the compiler knew that it cannot go on behind it.
            self.events.pop()
        source = place or _defined(code)
        skipped = _function(code, variables)
        self.events.append(GraphBreak(reason_text(text), text, source, skipped, len(self.graphs)))

    def met(self, code: CodeType) -> None:
        """Take note of a frame that the compiler looks at."""
        self.codes[code] = None

    def finish(self) -> None:
        """Take note of the breaks behind the last graph."""
        self._note_breaks(None)

    def _note_breaks(self, own: Reason | None) -> None:
        """Take note of the breaks at which nothing had been captured yet."""
        if not self.alone:
            return
        new, self._reasons = new_reasons(self._reasons)
        if own is not None and own.breaks and new:
            new.pop()
        for reason in new:
            self._add_break(reason)

    def _add_break(self, reason: Reason) -> None:
        source = source_in(reason.stack)
        self.events.append(
            GraphBreak(reason_text(reason.text), reason.text, source, None, len(self.graphs))
        )

    def _captured(
        self, module: torch.fx.GraphModule, frame: Any, example_inputs: Sequence[Any]
    ) -> Captured:
        assert self.names is not None
        code = frame.code
        names = FrameNames(self.names, frame.variables, frame.globals, code.co_freevars)
        earlier = self._seen.get(code, 0)
        self._seen[code] = earlier + 1
        recompiled = None
        if earlier:
            told = guard_text(frame.recompiled or "")
            recompiled = told or "a guard failed that the compiler does not tell"
        given = [_given(node, names) for node in module.graph.nodes if node.op == "placeholder"]
        owner = _owner(code, frame.variables)
        own_name = None if owner is None else names.known(owner)
        around = {own_name: (own_name, type(owner))} if own_name else {}
        copy = partial(copied, name_of=names.module, around=around)
        return Captured(
            len(self.graphs),
            _function(code, frame.variables),
            _defined(code),
            own_name,
            recompiled,
            copy(module),
            given,
            lowered(module, example_inputs, self._stages, given, copy),
        )

    # -- what flows -----------------------------------------------------------------------

    def _watched(self, captured: Captured, run: Callable[..., Any]) -> Callable[..., Any]:
        def runs(*args: Any) -> Any:
            captured.runs += 1
            if captured.runs > 1:
                with self.running():
                    return run(*args)
            captured.origins = [self._origin(given) for given in args]
            with self.running():
                result = run(*args)
            given = result if isinstance(result, tuple | list) else (result,)
            captured.outputs = [None] * len(given)
            for place, tensor in enumerate(given):
                if isinstance(tensor, torch.Tensor) and self._origin(tensor) is None:
                    self._note(tensor, Origin(captured.number, place))
            return result

        return runs

    def _note(self, tensor: torch.Tensor, origin: Origin) -> None:
        self._known[id(tensor)] = weakref.ref(tensor), origin

    def _origin(self, tensor: Any) -> Origin | None:
        known = self._known.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None


def _given(node: torch.fx.Node, names: FrameNames) -> Given:
    text, example = source_text(node), example_of(node)
    told = type_nest(node.meta.get("example_value"))
    if not isinstance(example, torch.Tensor):
        is_tensor = isinstance(node.meta.get("example_value"), torch.Tensor)
        return Given("input" if is_tensor else "number", names.path(text)[0], told)
    held = names.held(example)
    if held is not None:
        return Given(*held, told)
    name, was_there = names.path(text)
    if isinstance(example, torch.nn.Parameter):
        return Given("parameter", name, told, example)
    if "._buffers[" in text:
        return Given("buffer", name, told, example)
    return Given("constant", name, told, example) if was_there else Given("input", name, told)


def _owner(code: CodeType, variables: Mapping[str, Any]) -> torch.nn.Module | None:
    """Return the module whose method a frame runs; None for any other function."""
    if is_foreign_file(code.co_filename):
        # The compiler's own, around a module of torch's.
        names: Sequence[str] = ["fn"]
    else:
        # Behind a break, variables of the compiler's own come first.
        names = [name for name in code.co_varnames[: code.co_argcount] if name[:2] != "__"][:1]
    for name in [*names, "self"]:
        owner = variables.get(name)
        if isinstance(owner, torch.nn.Module) and _method(code, owner) is not None:
            return owner
    return None


def _method(code: CodeType, owner: torch.nn.Module) -> str | None:
    """Return the name under which a module has a function; None for one that it does not have."""
    name = plain_name(code.co_name)
    if is_foreign_file(code.co_filename):
        return "forward"
    method: Any = getattr(type(owner), "forward", None)
    while hasattr(method, "__wrapped__"):
        # A decorator's function has a name that tells nothing.
        if method.__code__.co_name == name:
            return "forward"
        method = method.__wrapped__
    return name if hasattr(type(owner), name) else None


def _function(code: CodeType, variables: Mapping[str, Any]) -> str:
    """Return the name of a function, with the class whose method it is."""
    owner = _owner(code, variables)
    if owner is not None:
        own = _method(code, owner) or ""
        named = function_name(code.co_name)
        return f"{type(owner).__name__}.{own}{named.removeprefix(plain_name(code.co_name))}"
    if is_foreign_file(code.co_filename):
        called = variables.get("fn")
        return str(getattr(called, "__name__", type(called).__name__))
    return function_name(code.co_name)


def _defined(code: CodeType) -> Source | None:
    return own_line([(code.co_filename, code.co_firstlineno, plain_name(code.co_name))])
