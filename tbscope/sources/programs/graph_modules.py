"""Graphs of graph modules: what torch.fx traced, by itself or for others."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tbscope.collector import collecting_rarely
from tbscope.errors import ArgumentError, InputError
from tbscope.ir.builder import GraphBuilder
from tbscope.ir.graph import Argument, Constant, Graph
from tbscope.sources.programs.borders import input_paths, result_paths, results_of
from tbscope.sources.programs.functions import call_method
from tbscope.sources.programs.kinds import is_graph_module
from tbscope.sources.programs.places import Places, class_name_of, label_of
from tbscope.sources.programs.reader import Reader
from tbscope.sources.programs.slots import Held, Slot, slots_of
from tbscope.sources.programs.state import State, state_of
from tbscope.sources.programs.types import UNKNOWN, replaced, type_nest, types_in
from tbscope.sources.programs.walk import Walk, classes_in
from tbscope.sources.programs.work import Done
from tbscope.sources.torch.holders import container_class
from tbscope.sources.torch.hyperparameters import hyperparameters
from tbscope.sources.torch.internals import flat, is_guard, plan_of
from tbscope.sources.torch.signatures import with_article

__all__ = ["Parts", "from_fx", "hyperparameters_of"]


def from_fx(graph_module: torch.fx.GraphModule, *inputs: Any) -> Graph:
    """Return the graph of a graph module; no content of a tensor is computed.

    Scopes come from the stack of modules that nodes carry, and from the modules that they call.
    Shapes are those that nodes tell (`meta["val"]`, `tensor_meta`), else they follow from
    those of the inputs, where these are given: operations run on stand-ins.

    Args:
        graph_module: What `torch.fx.symbolic_trace`, `make_fx`, `ExportedProgram.module()` or
            any other tool of torch.fx gave.
        inputs: Its positional arguments; tensors on "meta" will do. None where the shapes are
            known, or may stay unknown.
    Raises:
        ArgumentError: It is no graph module.
        InputError: The inputs are more, or fewer, than it takes.
    """
    if not is_graph_module(graph_module):
        raise ArgumentError(
            f"from_fx was given {with_article(graph_module)}",
            why="it takes a torch.fx.GraphModule",
            fix="tbscope.from_fx(torch.fx.symbolic_trace(model), x)",
        )
    with collecting_rarely():
        return _Traced(graph_module, inputs).graph()


class _Traced:
    """One graph module while it is read."""

    def __init__(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
        self._module = module
        self._inputs = inputs
        parts = dict(module.named_modules(remove_duplicate=False))
        self._parts = {
            name: part
            for name, part in parts.items()
            if not _has_graph(part) and not is_guard(part)
        }
        self._classes = classes_in(module)
        label = self._classes.get("") or type(module).__name__.strip("<>")
        builder = GraphBuilder(label_of(label))
        self._places = Places(builder, self._class_of)
        self._places.open_root(label)
        self._reader = Reader(builder, self._places)
        kinds, tensors = state_of(parts)
        self._state = State(self._reader, kinds, tensors)

    def _class_of(self, name: str) -> str:
        known = self._classes.get(name)
        if known is not None:
            return known
        part = self._parts.get(name)
        # torch.fx puts plain modules where it keeps no class.
        if part is None or type(part) is torch.nn.Module:
            return container_class(self._parts, name)
        return class_name_of(type(part))

    def graph(self) -> Graph:
        """Read the graph module; return its graph."""
        reader, places = self._reader, self._places
        plan, out_plan, names = plan_of(self._module)
        arguments = self._add_inputs(plan, names)
        assert places.root is not None
        root = places.call_of[places.root]
        # As they come in: the program may write into tensors, and change containers.
        root.arguments = [Argument(name, reader.nest(held)) for name, held in arguments]
        result = Parts(reader, self._state).result(self._module)
        if out_plan is not None:
            leaves = list(result) if isinstance(result, tuple | list) else [result]
            found, nest = results_of(out_plan, leaves)
        else:
            found, nest = result_paths(result), result
        root.training = self._module.training
        root.results = reader.nest(nest)
        return self._state.finish(found, self._parts, self._class_of)

    def _add_inputs(self, plan: Any, names: list[str] | None) -> list[tuple[str, Held]]:
        """Hold what the graph module is given; return the arguments of the model by name."""
        reader = self._reader
        nodes = [node for node in self._module.graph.nodes if node.op == "placeholder"]
        own = [str(node.target).lstrip("*") for node in nodes]
        given = self._given(nodes, plan)
        for node, thing in zip(nodes, given, strict=True):
            told = type_nest(thing) if thing is not _NOTHING else reader.type_of(node)
            if told is None and thing is _NOTHING:
                told = node.args[0] if node.args else UNKNOWN
            reader.held[node] = slots_of(told)
        leaves = [reader.held[node] for node in nodes]
        if plan is not None:
            paths, arguments = input_paths(plan, names, leaves, own)
        else:
            paths, arguments = own, list(zip(own, leaves, strict=True))
        for path, leaf in zip(paths, leaves, strict=True):
            for inner, slot in result_paths(leaf, path):
                slot.value = reader.add_source("input", inner, slot.type)
        # Private attributes of an object are inputs once the program reads them.
        shown = [
            (name, replaced(held, Slot, lambda slot: slot if slot.value else None))
            for name, held in arguments
        ]
        for path, leaf in zip(paths, leaves, strict=True):
            for inner, slot in result_paths(leaf, path, public=False):
                if slot.value is None:
                    slot.make = functools.partial(reader.add_source, "input", inner, slot.type)
        return shown

    def _given(self, nodes: list[torch.fx.Node], plan: Any) -> list[Any]:
        """Return what each placeholder is given."""
        if not self._inputs:
            return [_NOTHING] * len(nodes)
        given = flat((tuple(self._inputs), {})) if plan is not None else list(self._inputs)
        least = sum(1 for node in nodes if not node.args)
        if not least <= len(given) <= len(nodes):
            raise InputError(
                f"{len(given)} inputs are given for the {len(nodes)} of the graph module",
                why=f"it takes {', '.join(str(node.target) for node in nodes) or 'none'}",
                fix="tbscope.from_fx(graph_module, *inputs), or no inputs at all",
            )
        return given + [_NOTHING] * (len(nodes) - len(given))


_NOTHING: Any = object()


class Parts(Walk):
    """Reads the nodes of a graph module, and those that call its modules and methods."""

    runs = True

    def call_part(self, module: torch.fx.GraphModule, node: torch.fx.Node) -> Held:
        """Read a node that calls a module or a method."""
        if node.op == "call_method":
            return call_method(self.reader, node)
        part = module.get_submodule(str(node.target))
        if is_guard(part):
            return None
        name = f"{self.prefix}{node.target}"
        around = node.meta.get("nn_module_stack") or self.reader.between.get(node)
        self.reader.stand(node, _stack_to(node, around, self.prefix, part))
        if _has_graph(part):
            return self._inner(node, name, part)
        return self._leaf(node, name, part)

    def _inner(self, node: torch.fx.Node, name: str, part: Any) -> Held:
        """Read the nodes of a graph module, or of what runs a graph like one, inside of another."""
        reader = self.reader
        scope, _ = reader.where(node)
        assert scope is not None
        args, kwargs = reader.of(node.args), reader.of(node.kwargs)
        places = [one for one in part.graph.nodes if one.op == "placeholder"]
        for at, place in enumerate(places):
            default = place.args[0] if place.args else None
            given = args[at] if at < len(args) else kwargs.get(str(place.target), default)
            reader.held[place] = given
        # Of a program that was unflattened, each module has a graph of its own: all in it is its.
        own = reader.in_one_call or not isinstance(part, torch.fx.GraphModule)
        reader.in_one_call, before = own, reader.in_one_call
        with reader.places.inside(reader.places.root, scope):
            result = type(self)(reader, self.state, f"{name}.").result(part)
        reader.in_one_call = before
        return result

    def _leaf(self, node: torch.fx.Node, name: str, part: torch.nn.Module) -> Held:
        """Read a node that calls a module: one operation, which reads all that the module holds."""
        reader = self.reader
        scope, _ = reader.where(node)
        args, kwargs = reader.of(node.args), reader.of(node.kwargs)
        tensors = dict(part.named_parameters(prefix=name)) | dict(part.named_buffers(prefix=name))
        own = [
            (tensor, self.state.held(path, tensor, type_nest(tensor)))
            for path, tensor in tensors.items()
        ]
        told = reader.type_of(node)
        done = reader.work.run(part.forward, args, kwargs, module=(part, own))
        if told is None and done is not None:
            told = done.results
        if told is None:
            # One that observes gives what it got; others may give anything.
            observes = hasattr(part, "calculate_qparams") and args and type(args[0]) is Slot
            told = args[0].type if observes else UNKNOWN
        arguments, read = reader.arguments(args, kwargs)
        given = list(dict.fromkeys([*read, *(slot for _, slot in own)]))
        appended = reader.append(
            label_of(class_name_of(type(part))), node, arguments, given, done or Done()
        )
        call = None if scope is None else reader.places.call_of.get(scope)
        if call is not None:
            call.training = part.training
            call.hyperparameters = hyperparameters_of(part)
        if done is None:
            return reader.give(appended, told, given)
        appended.random = any(name in _RANDOM for name in done.kernels) and part.training
        written = [given[place] for place in done.written]
        count = len(list(types_in(told)))
        shows = {
            at: given[place]
            for at, place in enumerate(done.shows[:count])
            if place is not None and given[place] not in written
        }
        return reader.give(appended, told, given, written, shows)


_RANDOM = frozenset({"aten::bernoulli_", "aten::native_dropout", "aten::bernoulli", "aten::rand"})


def _stack_to(
    node: torch.fx.Node, around: Mapping[str, Any] | None, prefix: str, part: torch.nn.Module
) -> Mapping[str, Any]:
    """Return the calls around a module that a node calls, with its own as the last.

    Args:
        node: The node.
        around: The calls around it, of which the last may be its own.
        prefix: The path of the graph module in which it stands, as for `Walk`.
        part: The module.
    """
    stack: dict[str, Any] = dict(around or {})
    key = next(reversed(stack), node.name)
    last = stack.get(key)
    own = isinstance(last, tuple) and last[0] == str(node.target)
    if own and prefix:
        # Told as in the model that was cut into graph modules: the same path, in one of them.
        stack = {each: _moved(entry, prefix) for each, entry in stack.items()}
    elif not own and (prefix or _has_graph(part)):
        # Told of what it was in that model, in calls that there are no more.
        stack = {}
    # What stands there now may be of another class than what was traced, as a fused one is.
    return {**stack, key if own else node.name: (f"{prefix}{node.target}", _class_told(part))}


def _has_graph(part: Any) -> bool:
    """Tell whether a module runs a graph of torch.fx, as graph modules do, and unflattened ones."""
    return isinstance(getattr(part, "graph", None), torch.fx.Graph)


def _class_told(part: Any) -> Any:
    """Return the class of a module; of an unflattened one the name of that which it was."""
    if isinstance(part, torch.fx.GraphModule) or not _has_graph(part):
        return type(part)
    tells = getattr(part, "type_name", None)
    named = tells() if callable(tells) else None
    return named if isinstance(named, str) and named else type(part)


def _moved(entry: Any, prefix: str) -> Any:
    """Return what tells of the call of a module, in a graph module; of no call as it is."""
    if isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str) and entry[0]:
        return f"{prefix}{entry[0]}", entry[1]
    return entry


def hyperparameters_of(part: torch.nn.Module) -> dict[str, Any]:
    """Return the hyper-parameters of a module, or that they cannot be told."""
    try:
        return hyperparameters(part)
    except Exception as error:  # noqa: BLE001 (extra_repr is the user's code)
        return {"extra_repr": Constant(f"raised {type(error).__name__}")}
