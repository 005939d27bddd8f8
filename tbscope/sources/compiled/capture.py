"""Capture: a backend of torch.compile that records graphs, and the tensors that flow between them.

The record of a graph is a copy, so that the compiling backend may change the graph afterwards: the
nodes are new, and their module stacks have qualified names.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, TypeAlias

import torch

from tbscope.ir.graph import Source
from tbscope.sources.compiled.break_reasons import (
    function_name,
    guard_text,
    plain_name,
    reason_text,
    source_in,
)
from tbscope.sources.compiled.results import GraphBreak
from tbscope.sources.compiled.user_names import FrameNames, ModelNames
from tbscope.sources.fx.aliasing import Types, types_of_metadata
from tbscope.sources.fx.scopes import is_call, without_call_number
from tbscope.sources.fx.source_lines import own_line
from tbscope.sources.fx.walk import attribute_at
from tbscope.sources.torch.compat.compiler import (
    Reason,
    compiling,
    example_of,
    new_reasons,
    reason_of,
    source_text,
    stack_of,
)
from tbscope.sources.torch.source_location import is_foreign_file

__all__ = ["Capture", "CapturedGraph", "GraphInput", "Origin"]


@dataclass(slots=True)
class GraphInput:
    """Input of a captured graph.

    Attributes:
        kind: The kind: "input", "parameter", "buffer", "constant", or "number" for a size or
            another value that is no tensor.
        name: The qualified name, or the path.
        type: The type, as far as the compiler records it.
        tensor: The tensor in the captured run, for a constant, and for a parameter or a buffer of a
            module outside of the model; else None.
    """

    kind: str
    name: str
    type: Types
    tensor: torch.Tensor | None = None


Origin: TypeAlias = str | tuple[int, int]
"""Origin of a tensor: the path of an input of the model, or the number of a graph and the position
among its outputs."""


@dataclass(slots=True)
class CapturedGraph:
    """Graph that the compiler captured.

    Attributes:
        number: The number of the graph, counted from 0.
        function: The function from which it was compiled (`Net.forward, from line 12`).
        source: The line at which that function is defined.
        owner: The qualified name of the module whose method the function is, or None for any other
            function.
        recompiled: The failed guard of an earlier graph of the function, or None for its first
            graph.
        module: The nodes, as the compiler captured them.
        inputs: The inputs, in order.
        runs: The number of runs.
        origins: The origin of each input in the first run, or None if it is unknown.
        outputs: The path of each output in the model's result, or None if it is not in the result.
    """

    number: int
    function: str
    source: Source | None
    owner: str | None
    recompiled: str | None
    module: torch.fx.GraphModule
    inputs: list[GraphInput]
    runs: int = 0
    origins: list[Origin | None] = field(default_factory=list)
    outputs: list[str | None] = field(default_factory=list)


class Capture:
    """Backend that records the graphs which it compiles.

    Args:
        names: The names in the model, or None if the first frame determines the model.
        inner: The backend that compiles each graph, or None if the graph runs as it is.
        alone: Whether the capture covers a single call of the model, in which nothing else is
            compiled.

    Attributes:
        events: The graphs and the breaks, in order.
        codes: The code objects of the frames that the compiler has met.
        alone: The argument `alone`.
        inputs: The types of the model's inputs, by path.
        also: The further paths of an input, by its first path.
        results: The origin of each tensor in the model's result, by path, as far as it is known.
        running: Returns a context manager in which each graph runs.
    """

    def __init__(
        self,
        names: ModelNames | None,
        *,
        inner: Callable[..., Any] | None = None,
        alone: bool = False,
    ) -> None:
        self.names = names
        self._inner = inner
        self.alone = alone
        self._reasons = new_reasons(0)[1] if alone else 0
        self.events: list[CapturedGraph | GraphBreak] = []
        self.codes: set[CodeType] = set()
        self.inputs: dict[str, Types] = {}
        self.also: dict[str, list[str]] = {}
        self.results: dict[str, Origin] = {}
        self._compiled: set[CodeType] = set()
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], Origin]] = {}
        self.running: Callable[[], AbstractContextManager[object]] = nullcontext

    @property
    def graphs(self) -> list[CapturedGraph]:
        """Graphs that were captured, in order."""
        return [event for event in self.events if isinstance(event, CapturedGraph)]

    def know(self, path: str, tensor: torch.Tensor) -> None:
        """Record an input of the model."""
        first = self._origin(tensor)
        if isinstance(first, str):
            self.also.setdefault(first, []).append(path)
            return
        self.inputs[path] = types_of_metadata(tensor)
        self._note(tensor, path)

    def outputs(self, leaves: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Record the result of the model: the path of each graph output and each input in it."""
        graphs = self.graphs
        for path, tensor in leaves:
            origin = self._origin(tensor)
            if origin is None:
                continue
            self.results[path] = origin
            if not isinstance(origin, str):
                number, index = origin
                outputs = graphs[number].outputs
                outputs[index] = outputs[index] or path

    # -- calls by the compiler ------------------------------------------------------------

    def __call__(
        self, module: torch.fx.GraphModule, example_inputs: Sequence[object], **options: object
    ) -> Callable[..., object]:
        """Record a graph; return the callable that runs it."""
        frame = compiling()
        reason = reason_of(module)
        self.note_breaks(reason)
        self.codes.add(frame.code)
        if self.names is None:
            self.names = ModelNames(_owner(frame.code, frame.variables))
        captured = self._captured(module, frame)
        self.events.append(captured)
        if reason is not None and reason.breaks:
            self._add_break(reason)
        inner = self._inner
        run = module.forward if inner is None else inner(module, example_inputs, **options)
        return self._watched(captured, run)

    def failed(self, frame: Any, error: Exception) -> None:
        """Record a frame that is not compiled, and the reason."""
        events_before = len(self.events)
        self.note_breaks()
        code, variables = frame.f_code, getattr(frame, "f_locals", {})
        if is_foreign_file(code.co_filename) and "fn" not in variables:
            # A frame of torch's own, which the user's code called.
            return
        text = str(error)
        break_line = source_in(stack_of(error))
        last = self.events[-1] if len(self.events) > events_before else None
        if isinstance(last, GraphBreak) and last.details in text and last.source == break_line:
            # The compiler reported the break before it found that it cannot resume behind it.
            self.events.pop()
        source = break_line or _defined(code)
        skipped = _function(code, variables)
        self.events.append(GraphBreak(reason_text(text), text, source, skipped, len(self.graphs)))

    def note_breaks(self, own: Reason | None = None) -> None:
        """Record new breaks at which nothing was captured: all but the break of a graph (`own`)."""
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

    def _captured(self, module: torch.fx.GraphModule, frame: Any) -> CapturedGraph:
        assert self.names is not None
        code = frame.code
        names = FrameNames(self.names, frame.variables, frame.globals, code.co_freevars)
        recompiled = None
        if code in self._compiled:
            failed_guard = guard_text(frame.recompiled or "")
            recompiled = failed_guard or "a guard failed that the compiler does not tell"
        self._compiled.add(code)
        inputs = [_input_of(node, names) for node in module.graph.find_nodes(op="placeholder")]
        owner = _owner(code, frame.variables)
        own_name = None if owner is None else names.known(owner)
        enclosing = {own_name: (own_name, type(owner))} if own_name else {}
        return CapturedGraph(
            len(self.graphs),
            _function(code, frame.variables),
            _defined(code),
            own_name,
            recompiled,
            copied(module, names.module, enclosing),
            inputs,
        )

    # -- tensors between graphs -----------------------------------------------------------

    def _watched(self, captured: CapturedGraph, run: Callable[..., Any]) -> Callable[..., object]:
        def runs(*args: object) -> object:
            captured.runs += 1
            first = captured.runs == 1
            if first:
                captured.origins = [self._origin(results) for results in args]
            with self.running():
                result = run(*args)
            if first:
                results = result if isinstance(result, tuple | list) else (result,)
                captured.outputs = [None] * len(results)
                for index, tensor in enumerate(results):
                    if isinstance(tensor, torch.Tensor) and self._origin(tensor) is None:
                        self._note(tensor, (captured.number, index))
            return result

        return runs

    def _note(self, tensor: torch.Tensor, origin: Origin) -> None:
        # Another tensor may get the id later: the weak reference then leads elsewhere.
        self._known[id(tensor)] = weakref.ref(tensor), origin

    def _origin(self, tensor: object) -> Origin | None:
        known = self._known.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None


def _input_of(node: torch.fx.Node, names: FrameNames) -> GraphInput:
    text, example = source_text(node), example_of(node)
    typed = types_of_metadata(node.meta.get("example_value"))
    if not isinstance(example, torch.Tensor):
        is_tensor = isinstance(node.meta.get("example_value"), torch.Tensor)
        return GraphInput("input" if is_tensor else "number", names.path(text)[0], typed)
    state = names.state_name(example)
    if state is not None:
        return GraphInput(*state, typed)
    name, was_there = names.path(text)
    if isinstance(example, torch.nn.Parameter):
        kind = "parameter"
    elif "._buffers[" in text:
        kind = "buffer"
    elif was_there:
        kind = "constant"
    else:
        return GraphInput("input", name, typed)
    return GraphInput(kind, name, typed, example)


def copied(
    module: torch.fx.GraphModule,
    name_of: Callable[[str], str],
    around: Mapping[str, tuple[str, type]],
) -> torch.fx.GraphModule:
    """Return a copy of a graph module, which shares its tensors and plain modules.

    Args:
        module: The graph module, which is not changed.
        name_of: Returns the qualified name of a module from the expression that leads to it.
        around: The module stack of the call that encloses all nodes, or an empty one.
    """
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    result = graph.graph_copy(module.graph, copies)
    if result is not None:
        graph.output(result)
    attributes: dict[str, object] = {}
    for node in graph.nodes:
        if node.op in ("get_attr", "call_module"):
            value = attribute_at(module, str(node.target))
            inner = isinstance(value, torch.fx.GraphModule)
            attributes[str(node.target)] = copied(value, name_of, around) if inner else value
        meta = node.meta
        # The compiler's record of the run, with the tensors.
        meta.pop("grapharg", None)
        stack = meta.get("nn_module_stack") or {}
        meta["nn_module_stack"] = {**around, **_named(stack, name_of)}
    return torch.fx.GraphModule(attributes, graph)


def _named(stack: Mapping[str, object], name_of: Callable[[str], str]) -> dict[str, object]:
    """Return a module stack with the qualified names of its modules."""
    named: dict[str, Any] = {}
    for key, entry in stack.items():
        if is_call(entry):
            text = without_call_number(entry[0])
            # A module that is called by two names has one key in the stack: the name is added to
            # it.
            named[f"{key}:{text}"] = (name_of(text), entry[1])
    return named


def _owner(code: CodeType, variables: Mapping[str, object]) -> torch.nn.Module | None:
    """Return the module whose method a frame runs, or None for any other function."""
    if is_foreign_file(code.co_filename):
        # The compiler's wrapper of a module of torch.
        names: Sequence[str] = ["fn"]
    else:
        # Behind a break, variables of the compiler come first.
        names = [name for name in code.co_varnames[: code.co_argcount] if name[:2] != "__"][:1]
    for name in [*names, "self"]:
        owner = variables.get(name)
        if isinstance(owner, torch.nn.Module) and _method(code, owner) is not None:
            return owner
    return None


def _method(code: CodeType, owner: torch.nn.Module) -> str | None:
    """Return the name of a module's method from its code, or None if there is no such method."""
    name = plain_name(code.co_name)
    if is_foreign_file(code.co_filename):
        return "forward"
    method: Any = getattr(type(owner), "forward", None)
    while hasattr(method, "__wrapped__"):
        # The frame may run a decorator of `forward`, whose function can have any name.
        if method.__code__.co_name == name:
            return "forward"
        method = method.__wrapped__
    return name if hasattr(type(owner), name) else None


def _function(code: CodeType, variables: Mapping[str, object]) -> str:
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
