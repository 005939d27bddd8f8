"""Capture: a backend of torch.compile that records graphs, and the tensors that flow between them.

The record of a graph is a copy, so that the compiling backend may change the graph afterwards: the
nodes are new, and their module stacks have qualified names. The compiler records expressions
(`L['self']._modules['fc']._parameters['weight']`). They are followed through the variables of the
frame, and not evaluated.
"""

import functools
import re
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType
from typing import Any, TypeAlias

import torch

from tbscope.ir.graph import Source
from tbscope.sources.compiled.results import (
    GraphBreak,
    function_name,
    guard_text,
    plain_name,
    reason_text,
    source_in,
)
from tbscope.sources.fx.aliasing import types_of_metadata
from tbscope.sources.fx.scopes import state_of, without_call_number
from tbscope.sources.fx.tensor_types import Types
from tbscope.sources.fx.walk import attribute_at
from tbscope.sources.torch.compat.compiler import (
    Reason,
    compiling,
    example_of,
    new_reasons,
    original_of,
    reason_of,
    source_text,
    stack_of,
)
from tbscope.sources.torch.compat.modules import uncompiled
from tbscope.sources.torch.source_location import is_foreign_file, own_line

_START = re.compile(r"(?:getattr\()*(?P<where>[LG])\[(?P<quote>['\"])(?P<name>.*?)(?P=quote)\]")
# An attribute that is no identifier is a call (`getattr(L['self'], 'a/b')`), or written as is.
_STEP = re.compile(
    r"\[(['\"])(?P<key>.*?)\1\]|\[(?P<index>-?\d+)\]|, (['\"])(?P<name>.*?)\4\)"
    r"|\.(?P<attribute>.+?)(?=[.\[]|, ['\"]|$)"
)
# Tables of a module through which the compiler reaches submodules and tensors.
_TABLES = frozenset({"_modules", "_parameters", "_buffers", "__dict__"})
# Attributes of partials and methods through which the compiler reaches their contents.
_REACHED = frozenset({"func", "args", "keywords", "__self__"})


@dataclass(slots=True)
class ModelNames:
    """Names of modules and tensors in the frames of a model.

    Attributes:
        root: The model, or None if it is a function.
        outside: The called modules outside of the model, by the paths that lead to them.
    """

    root: torch.nn.Module | None
    outside: dict[str, torch.nn.Module] = field(default_factory=dict)

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the kinds and the tensors of the model's state, by name (see `state_of`)."""
        return state_of(self._own())

    def modules(self) -> dict[str, torch.nn.Module]:
        """Return the modules of the model by qualified name, and the modules found in variables."""
        return {**self._own(), **self.outside}

    def _own(self) -> dict[str, torch.nn.Module]:
        return {} if self.root is None else dict(self.root.named_modules(remove_duplicate=False))


class _FrameNames:
    """Names of modules and tensors in one frame.

    Args:
        names: The names in the model.
        variables: The variables of the frame.
        globals_: The global variables of its file.
        around: The names of the variables of enclosing functions.
    """

    def __init__(
        self,
        names: ModelNames,
        variables: Mapping[str, object],
        globals_: Mapping[str, object],
        around: Collection[str],
    ) -> None:
        self._around = around
        self._outside = names.outside
        self._variables = {"L": variables, "G": globals_}
        # Reversed, so that the first of several names remains.
        self._modules = {
            id(module): name
            for name, module in reversed(list(names.modules().items()))
            if name not in names.outside
        }
        self._kinds, self._tensors = names.state()
        self._first = {id(tensor): name for name, tensor in reversed(self._tensors.items())}

    def state_name(self, tensor: object) -> tuple[str, str] | None:
        """Return the kind and the first name of a tensor of the model, or None."""
        name = self._first.get(id(tensor))
        return None if name is None else (self._kinds[name], name)

    def known(self, module: torch.nn.Module) -> str | None:
        """Return the qualified name of a module, or None for a module outside of the model."""
        return self._modules.get(id(uncompiled(module)))

    def module(self, text: str) -> str:
        """Return the qualified name of a module from the expression that leads to it."""
        path, _, value = self._walk(text)
        if _is_module(value) and self.known(value) is None:
            # A module outside of the model is recorded under its path.
            self._outside[path] = uncompiled(value)
        return path

    def path(self, text: str) -> tuple[str, bool]:
        """Return the path of a tensor from the expression that leads to it (`past.0.key`).

        Returns:
            The path, and whether the tensor existed before the call: in an attribute of a module, a
            global variable of the file, or a variable of an enclosing function.
        """
        return self._walk(text)[:2]

    def _walk(self, text: str) -> tuple[str, bool, Any]:
        start = _START.match(text)
        if start is None:
            # The compiler's own value: a size or another number.
            return ".".join(re.findall(r"\w+", text)) or "value", False, None
        value = self._variables[start["where"]].get(start["name"])
        module_name = self._known(value)
        steps = (
            [start["name"].lstrip("_") or start["name"]] if module_name is None else [module_name]
        )
        was_there = start["where"] == "G" or start["name"] in self._around or _is_module(value)
        for step in _STEP.finditer(text, start.end()):
            key = step["key"] or step["index"] or step["name"] or step["attribute"]
            if key in _TABLES:
                continue
            value = _part(value, key)
            module_name = self._known(value)
            steps = [*steps, key] if module_name is None else [module_name]
            was_there = was_there or _is_module(value)
        return ".".join(filter(None, steps)), was_there, value

    def _known(self, obj: Any) -> str | None:
        return self.known(obj) if _is_module(obj) else None


def _is_module(obj: object) -> bool:
    return isinstance(obj, torch.nn.Module)


def _part(container: Any, word: str) -> object:
    """Return an entry of a module, a partial, a method or a plain container, or None."""
    if _is_module(container):
        return uncompiled(container)._modules.get(word)
    if isinstance(container, functools.partial | MethodType):
        return getattr(container, word) if word in _REACHED else None
    if type(container) is dict:
        return container.get(word)
    if type(container) in (list, tuple) and word.lstrip("-").isdecimal():
        index = int(word)
        return container[index] if -len(container) <= index < len(container) else None
    return None


# Limit of the search: variables may lead to any number of objects.
_MOST_REACHED = 2000


def modules_reached(function: Callable[..., object]) -> list[torch.nn.Module]:
    """Return the modules that a callable, and the user's functions that it calls, can name.

    The search covers the contents of the callable, the variables of enclosing functions, and the
    global variables in its code, with the lists, tuples and mappings in all of these.
    """
    modules: dict[torch.nn.Module, None] = {}
    seen: set[int] = set()
    pending: list[Any] = [function]
    while pending and len(seen) < _MOST_REACHED:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.nn.Module):
            modules.update(dict.fromkeys(uncompiled(value).modules()))
        elif isinstance(value, functools.partial):
            pending += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, MethodType):
            pending += [value.__self__, value.__func__]
        elif isinstance(value, FunctionType):
            # Wrappers by `functools.wraps` and by the compiler lead to the function inside.
            pending += [getattr(value, "__wrapped__", None), original_of(value)]
            if not is_foreign_file(value.__code__.co_filename):
                pending += _variables_of(value)
        elif type(value) in (list, tuple, dict):
            pending += value.values() if type(value) is dict else value
    return list(modules)


def _variables_of(function: FunctionType) -> Iterator[object]:
    """Yield a function's default values, and the values of the variables that its code names."""
    yield from function.__defaults__ or ()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # The variable has no value yet.
            continue
    codes = [function.__code__]
    for code in codes:
        yield from map(function.__globals__.get, code.co_names)
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]


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
        names = _FrameNames(self.names, frame.variables, frame.globals, code.co_freevars)
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


def _input_of(node: torch.fx.Node, names: _FrameNames) -> GraphInput:
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


def _named(stack: Mapping[str, Any], name_of: Callable[[str], str]) -> dict[str, object]:
    """Return a module stack with the qualified names of its modules."""
    named: dict[str, Any] = {}
    for key, (called, kind) in stack.items():
        text = without_call_number(called)
        # A module that is called by two names has one key in the stack: the name is added to it.
        named[f"{key}:{text}"] = (name_of(text), kind)
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
