"""Walk over the nodes of a program in order, and into the bodies of its operators.

The body of an operator that takes functions (`cond`, `while_loop`, `scan`) is read once, as the
program contains it. It has a scope of its own, before the node of the operator, which reads the
results of the body. An operator that only sets a mode for its body (`no_grad`, autocast), or
discards its activations (checkpoint), has no node: its body is read in place. Functions of Python
(indexing, arithmetic on sizes, methods of containers) run on the contents that they are given.
"""

import copy
import functools
import operator
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from itertools import takewhile
from typing import Any, TypeAlias

import torch

from tbscope.ir.graph import Constant
from tbscope.sources.fx.aliasing import (
    CallArguments,
    Content,
    Slot,
    slots_in,
    tree_replace,
    types_in,
    types_of_metadata,
)
from tbscope.sources.fx.detect import is_graph_module, is_unflattened
from tbscope.sources.fx.op_costs import OpEffects
from tbscope.sources.fx.reader import Reader
from tbscope.sources.fx.scopes import (
    ModuleStack,
    class_name_of,
    is_call,
    label_of,
)
from tbscope.sources.fx.tensor_types import UNKNOWN, TensorType
from tbscope.sources.torch.calling.hyperparameters import hyperparameters
from tbscope.sources.torch.calling.pytree import is_walked, leaves_in
from tbscope.sources.torch.compat.tensors import (
    TREE_FUNCTIONS,
    TreeSpec,
    flat,
    is_guard,
    is_higher_order,
    is_of_tensors,
    is_operator,
)
from tbscope.sources.torch.operations import is_random, kernel_info, operation_name
from tbscope.sources.torch.recorded_names import container_class

_Stack: TypeAlias = tuple[tuple[str, tuple[str, str | type]], ...]
_WITH_BACKWARD = "autograd_function_apply"
# Operators without a node: their body is read in place.
_TRANSPARENT = (
    *("wrap_with_set_grad_enabled", "wrap_with_autocast", "wrap", "tag_activation_checkpoint"),
    *("wrap_activation_checkpoint", "invoke_subgraph", _WITH_BACKWARD),
)


@dataclass(slots=True)
class _Subgraph:
    """Function that is an argument of an operator.

    Attributes:
        name: The name of the function in the program.
        module: The graph module with its nodes.
    """

    name: str
    module: torch.fx.GraphModule


class Walk:
    """Walk over the nodes of a program.

    Args:
        reader: The reader of each node.
        prefix: The path of the program's attributes in the whole program, which ends in a dot;
            empty for the whole program.
        runs: Whether modules, methods, and functions that are no operators of torch run on fake
            tensors.
    """

    def __init__(self, reader: Reader, prefix: str = "", *, runs: bool = False) -> None:
        self.reader = reader
        self.prefix = prefix
        self.runs = runs

    def read(self, module: torch.fx.GraphModule) -> list[Content]:
        """Read the nodes of a program, or of a body; return its results as a list."""
        result = self.result(module)
        return list(result) if isinstance(result, tuple | list) else [result]

    def result(self, module: torch.fx.GraphModule) -> Content:
        """Read the nodes of a program; return its result in its containers."""
        results = self.reader.results
        self.reader.between.update(_stacks_between(module.graph))
        for node in module.graph.nodes:
            if is_unflattened(module):
                # Repeated calls share these nodes, which have the module stacks of the first call.
                self.reader.stand(node, {})
            if node.op == "call_function":
                results[node] = self._call(node)
            elif node.op == "get_attr":
                results[node] = self._attribute(module, node)
            elif node.op == "output":
                return self.reader.of(node.args[0])
            # Placeholders have their results before the walk.
            elif node.op != "placeholder":
                results[node] = self._call_part(module, node)
        return None

    def _call(self, node: torch.fx.Node) -> Content:
        target: Any = node.target
        if is_operator(target):
            return self.reader.call_operator(node)
        if is_higher_order(target):
            return self._call_with_bodies(node)
        # An exported program calls Python functions only for arithmetic on sizes, and getitem.
        return _call_python(self.reader, node, runs=self.runs)

    def _attribute(self, module: torch.fx.GraphModule, node: torch.fx.Node) -> Content:
        name = str(node.target)
        value = attribute_at(module, name)
        if isinstance(value, torch.fx.GraphModule):
            return _Subgraph(name, value)
        types = self.reader.type_of(node)
        if isinstance(value, torch.Tensor) or types is not None:
            return self.reader.state.slot(self.prefix + name, types, value)
        plain = isinstance(value, int | float | str | TreeSpec)
        return value if plain else Constant(f"<{name}>")

    # -- modules --------------------------------------------------------------------------

    def _call_part(self, module: torch.fx.GraphModule, node: torch.fx.Node) -> Content:
        """Read a node that calls a module or a method."""
        if node.op == "call_method":
            return _call_python(self.reader, node, runs=True)
        part: Any = module.get_submodule(str(node.target))
        if hasattr(part, "call_modules"):
            # An unflattened program has a module for each call whose signature it preserves.
            calls = module.graph.find_nodes(op="call_module", target=node.target)
            part = part.call_modules()[calls.index(node)]
        if is_guard(part):
            return None
        name = f"{self.prefix}{node.target}"
        enclosing = node.meta.get("nn_module_stack") or self.reader.between.get(node)
        self.reader.stand(node, _stack_to(node, enclosing, self.prefix, part))
        if is_graph_module(part):
            return self._inner(node, name, part)
        return self._leaf(node, name, part)

    def _inner(self, node: torch.fx.Node, name: str, part: Any) -> Content:
        """Read the nodes of a graph module that another graph module calls."""
        reader = self.reader
        scope, _ = reader.where(node)
        assert scope is not None
        args, kwargs = reader.arguments_of(node)
        for index, placeholder in enumerate(part.graph.find_nodes(op="placeholder")):
            default = placeholder.args[0] if placeholder.args else None
            argument = (
                args[index] if index < len(args) else kwargs.get(str(placeholder.target), default)
            )
            reader.results[placeholder] = argument
        with reader.places.inside(reader.places.root, scope):
            return Walk(reader, f"{name}.", runs=True).result(part)

    def _leaf(self, node: torch.fx.Node, name: str, part: torch.nn.Module) -> Content:
        """Read a node that calls a module as one operation, which reads all tensors of it."""
        reader = self.reader
        scope, _ = reader.enter(node)
        args = reader.arguments_of(node)
        tensors = dict(part.named_parameters(prefix=name)) | dict(part.named_buffers(prefix=name))
        own = [
            (tensor, reader.state.slot(path, types_of_metadata(tensor), tensor))
            for path, tensor in tensors.items()
        ]
        types = reader.type_of(node)
        done = reader.work.run(part, args, own)
        if types is None:
            types = UNKNOWN if done is None else done.results
        arguments, read = reader.arguments(args)
        slots = list(dict.fromkeys([*read, *(slot for _, slot in own)]))
        appended = reader.append(
            label_of(class_name_of(type(part))), node, arguments, slots, done or OpEffects()
        )
        call = reader.places.call_of[scope]
        call.training = part.training
        call.hyperparameters = hyperparameters_of(part)
        if done is None:
            return reader.add_outputs(appended, types, slots)
        appended.random = part.training and is_random(done.kernels, (), ())
        return reader.add_run_outputs(appended, types, slots, done)

    # -- bodies ---------------------------------------------------------------------------

    def _call_with_bodies(self, node: torch.fx.Node) -> Content:
        """Read a node that calls an operator with functions; return its results."""
        reader = self.reader
        call_args = reader.arguments_of(node)
        target: Any = node.target
        kernel = kernel_info(target)
        name = operation_name(target)
        entries = flat(call_args)
        bodies = [entry for entry in entries if type(entry) is _Subgraph]
        operands = [entry for entry in entries if type(entry) is not _Subgraph]
        if name == _WITH_BACKWARD:
            # The second function runs in the backward pass.
            bodies = bodies[:1]
        types = reader.type_of(node)
        if name in _TRANSPARENT and len(bodies) == 1:
            results = self._read_body(node, bodies[0], operands)
            return results[0] if isinstance(types, TensorType) and len(results) == 1 else results
        scope, _ = reader.enter(node)
        returned: dict[Slot, None] = {}
        for body in bodies:
            with reader.places.body(body.name, scope):
                returned.update(dict.fromkeys(slots_in(self._read_body(node, body, operands))))
        arguments, read = reader.arguments(
            tree_replace(call_args, _Subgraph, lambda body: Constant(f"<{body.name}>"))
        )
        appended = reader.append(name, node, arguments, read, OpEffects((kernel.name,), flops=0))
        appended.inputs += [slot.read() for slot in returned if slot not in read]
        return reader.add_outputs(appended, types, read)

    def _read_body(
        self, node: torch.fx.Node, body: _Subgraph, operands: list[Content]
    ) -> list[Content]:
        """Read the nodes of a node's body with its operands as inputs; return its results."""
        reader = self.reader
        placeholders = list(body.module.graph.find_nodes(op="placeholder"))
        # The first operands may belong to the operator itself, as the predicate of `cond`.
        last = operands[-len(placeholders) :]
        for index, placeholder in enumerate(placeholders):
            # A function that combines two entries of a list takes that list twice.
            operand = last[index % len(last)] if last else None
            typed = reader.type_of(placeholder)
            slot = operand if type(operand) is Slot else next(slots_in(operands), None)
            if isinstance(typed, TensorType) and slot is not None:
                operand_shape, input_shape = slot.type.shape, typed.shape
                if slot is not operand or (
                    operand_shape
                    and input_shape is not None
                    and len(operand_shape) != len(input_shape)
                ):
                    # The body takes a part of the operand in each iteration.
                    operand = Slot(typed, slot.read(), writes=slot.writes, at=slot.at)
            reader.results[placeholder] = operand
        around, reader.around = reader.around, reader.blocks(node)
        results = self.read(body.module)
        reader.around = around
        return results


def attribute_at(module: object, path: str) -> Any:
    """Return the attribute of a module at a dotted path, or None if there is none."""
    for name in path.split("."):
        module = getattr(module, name, None)
    return module


def classes_in(module: torch.fx.GraphModule) -> dict[str, str]:
    """Return the full class name of each called module, by qualified name."""
    classes: dict[str, str] = {}
    for node in module.graph.nodes:
        for entry in (node.meta.get("nn_module_stack") or {}).values():
            if is_call(entry):
                classes.setdefault(entry[0].partition("@")[0], class_name_of(entry[1]))
    return classes


def class_in(modules: Mapping[str, torch.nn.Module], name: str) -> str:
    """Return the full class name of a module, which may be missing in `modules`."""
    part = modules.get(name)
    # torch.fx puts a plain module where it does not record the class.
    plain = part is None or type(part) is torch.nn.Module or is_unflattened(part)
    return container_class(modules, name) if plain else class_name_of(type(part))


def _stacks_between(graph: torch.fx.Graph) -> dict[torch.fx.Node, ModuleStack]:
    """Return the enclosing calls of each node without a module stack between nodes with stacks.

    Passes over a program insert nodes without a module stack, as to quantise a tensor between two
    layers. A node between the result of one module and the input of another is in the calls that
    enclose both modules. A node that reads only state or inputs of the program is in no call.

    Args:
        graph: The nodes of a program, or of a body.
    """
    nodes = [node for node in graph.nodes if node.op.startswith("call_")]
    without_stack = [node for node in nodes if not node.meta.get("nn_module_stack")]
    if not without_stack or len(without_stack) == len(nodes):
        # The usual cases: all nodes have a stack, or none of them has.
        return {}
    stacks = {node: _stack_of(node) for node in nodes}
    before: dict[torch.fx.Node, _Stack | None] = {}
    after: dict[torch.fx.Node, _Stack | None] = {}
    for node in nodes:
        before[node] = stacks[node] or _common(
            before.get(neighbour) for neighbour in node.all_input_nodes
        )
    for node in reversed(nodes):
        after[node] = stacks[node] or _common(after.get(neighbour) for neighbour in node.users)
    between = [node for node in without_stack if before[node] and after[node]]
    return {node: dict(_common([before[node], after[node]]) or ()) for node in between}


def _stack_of(node: torch.fx.Node) -> _Stack:
    """Return the module stack of a node; empty if any of its entries is no call."""
    stack = node.meta.get("nn_module_stack")
    entries = tuple(stack.items()) if isinstance(stack, Mapping) else ()
    return entries if all(isinstance(key, str) and is_call(entry) for key, entry in entries) else ()


def _common(stacks: Iterable[_Stack | None]) -> _Stack | None:
    """Return the calls that all of several stacks begin with, or None if there is no stack."""
    present = [stack for stack in stacks if stack is not None]
    if not present:
        return None
    levels = zip(*present, strict=False)
    return tuple(
        [level[0] for level in takewhile(lambda level: len({key for key, _ in level}) == 1, levels)]
    )


def _stack_to(
    node: torch.fx.Node, around: Mapping[str, object] | None, prefix: str, part: Any
) -> ModuleStack:
    """Return the module stack for a node that calls a module, with that call as its last entry.

    Args:
        node: The node.
        around: The enclosing calls; the last entry may be the node's own call.
        prefix: The path of the node's graph module, as for `Walk`.
        part: The module.
    """
    stack: dict[str, object] = dict(around or {})
    key = next(reversed(stack), node.name)
    last = stack.get(key)
    own = is_call(last) and last[0] == str(node.target)
    if own:
        # The stack has paths of the model that was split into graph modules. The path is the same,
        # but relative to one of them.
        stack = {
            name: (f"{prefix}{entry[0]}", entry[1]) if is_call(entry) and entry[0] else entry
            for name, entry in stack.items()
        }
    elif prefix or is_graph_module(part):
        # The stack describes the module in the original model, in calls that no longer exist.
        stack = {}
    # The module may have another class than the traced one, as after fusion.
    kind = part.type_name() if is_unflattened(part) else type(part)
    return {**stack, key if own else node.name: (f"{prefix}{node.target}", kind)}


def hyperparameters_of(part: torch.nn.Module) -> dict[str, object]:
    """Return the hyper-parameters of a module, or the error that its `extra_repr` raised."""
    try:
        return hyperparameters(part)
    except Exception as error:  # noqa: BLE001 (extra_repr is the user's code)
        return {"extra_repr": Constant(f"raised {type(error).__name__}")}


def _call_python(reader: Reader, node: torch.fx.Node, *, runs: bool) -> Content:
    """Read a node that calls a method, or a function that is no operator of torch.

    Args:
        reader: The reader of the program.
        node: The node.
        runs: Whether the function may run on fake tensors. A function that a file names may not: it
            can be any function of Python or torch.
    Returns:
        The result of the node.
    """
    arguments = args, kwargs = reader.arguments_of(node)
    target: Any = node.target
    method = node.op == "call_method"
    if method:
        tensor_method = getattr(torch.Tensor, target, None) if type(args[0]) is Slot else None
        target = tensor_method or _method(target)
    if runs or target is operator.getitem:
        result = _on_containers(target, arguments, method=method)
        if result is not _UNKNOWN:
            return result
    types = reader.type_of(node)
    reads = next(slots_in(arguments), None) is not None
    # A function that neither reads nor makes tensors may change a setting of torch, and must not
    # run.
    on_containers = method or any(is_walked(type(entry)) for entry in (*args, *kwargs.values()))
    runs = runs and (on_containers or _is_at_home(target)) and (reads or is_of_tensors(target))
    if not reads and not runs and next(types_in(types), None) is None:
        return Constant(node.name) if types is None else types
    return reader.call_function(node, target, arguments, types, runs=runs)


@functools.cache
def _method(name: str) -> Callable[..., object]:
    """Return a function that calls a method, by its name, on its first argument."""

    def method(*args: object, **kwargs: object) -> object:
        return getattr(args[0], name)(*args[1:], **kwargs)

    method.__name__ = name
    return method


_UNKNOWN: object = object()
# Functions that run unchanged, on containers and on numbers.
_FUNCTIONS = frozenset(
    {
        *(dict, list, tuple, OrderedDict, deque, zip, enumerate, reversed, slice, range, iter),
        *(getattr, hasattr, setattr, len, sorted, isinstance, type, copy.copy),
        *(int, float, bool, min, max, abs),
        *filter(callable, vars(operator).values()),
    }
)
_PLAIN = frozenset(
    {str, bytes, int, float, bool, complex, torch.Size, range, slice, type, type(None), type(...)}
)


def _on_containers(function: Any, arguments: CallArguments, *, method: bool) -> Content:
    """Return the result of a function on containers or numbers, or `_UNKNOWN` for another function.

    Containers have slots in place of tensors. They belong to the reader, and have the classes of
    the program's containers. The function therefore runs unchanged, and later nodes read its
    changes.
    """
    args, kwargs = arguments
    if isinstance(function, type) and (is_dataclass(function) or hasattr(function, "_fields")):
        runs_unchanged = True
    elif not method and function not in _FUNCTIONS:
        runs_unchanged = function in TREE_FUNCTIONS
    else:
        on_container = bool(args) and type(args[0]) is not Slot and is_walked(type(args[0]))
        runs_unchanged = on_container or all(
            kind in _PLAIN or is_walked(kind) for kind in map(type, args)
        )
    if not runs_unchanged:
        return _UNKNOWN
    try:
        # Code of a user's class may draw random numbers.
        with torch.random.fork_rng(devices=[]):
            result = function(*args, **kwargs)
    except Exception:  # noqa: BLE001 (a key that exists only in a run, or code that computes)
        return _UNKNOWN
    if isinstance(result, Iterator) and not isinstance(result, Generator):
        result = list(result)
    return _UNKNOWN if next(leaves_in(result, torch.Tensor), None) is not None else result


# Packages of the functions that may run on fake tensors.
_HOMES = frozenset({"_operator", "operator", "math", "builtins", "torch", "copy"})


def _is_at_home(function: object) -> bool:
    """Whether a function is defined in one of the packages in `_HOMES`."""
    module = getattr(function, "__module__", None)
    if module is None:
        # Only some of torch's C++ functions have a module.
        module = "torch" if getattr(torch, getattr(function, "__name__", ""), None) else ""
    return str(module).partition(".")[0] in _HOMES
