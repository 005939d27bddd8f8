"""Whether the graphs of one model from two sources agree: calls, parameters, dataflow, shapes.

What a source cannot tell (docs/sources.md names it) is left out of the comparison: what runs
nothing always, and what a `View` leaves out.
"""

import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

import tbscope
from tbscope.ir.graph import Call, Constant, Graph, Node
from tbscope.ir.metadata import Shape
from tbscope.ir.pytree import values_in
from tbscope.ir.scopes import Scope
from tbscope.sources.torch.calling.pytree import leaves_in
from tbscope.sources.torch.compat.tensors import is_only_composite
from tbscope.sources.torch.operations import role_of

__all__ = [
    "View",
    "disagreements",
    "given_numbers",
    "hyperparameters",
    "leaf_edges",
    "module_calls",
    "operations",
    "parameters_read",
    "result_shapes",
    "undecided",
]


@dataclass(frozen=True)
class View:
    """What a comparison does not look at.

    Attributes:
        unregistered: Whether it looks at modules that no other module holds.
        numbers: Whether it tells the calls of one module apart.
        names: By the name of a parameter, the name that stands for it.
        modules: By the name of a module that has several, the first one.
        views: Whether it looks at views of what was written in place.
        sizes: Whether it looks at tensors of which an operation reads the size alone.
        methods: Whether it looks at the modules whose methods ran, though they are never called.
        identities: Whether it looks at modules that return their input.
    """

    unregistered: bool = True
    numbers: bool = True
    names: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    views: bool = True
    sizes: bool = True
    methods: bool = True
    identities: bool = True

    def path_of(self, scope: Scope | None) -> str:
        """Give the path of a call, without the classes of containers and without blocks by hand."""
        steps = []
        while not self.methods and scope is not None and scope.kind == "container":
            scope = scope.parent
        if self.modules:
            while scope is not None and (scope.kind != "module" or not self.shows(scope)):
                scope = scope.parent
            # A call in another module, too, has the name of the module alone.
            name = None if scope is None else scope.qualified_name
            return "" if name is None else self.modules.get(name, name)
        while scope is not None:
            part = scope.part
            if scope.kind == "container":
                steps.append(f"[{part.attribute}]")
            elif scope.kind == "module" and self.shows(scope):
                steps.append(str(part) if self.numbers else f"{part.label}[{part.attribute}]")
            scope = scope.parent
        return "/".join(reversed(steps))

    def name_of(self, parameter: str) -> str:
        """Give the name that stands for a parameter."""
        module, _, name = parameter.rpartition(".")
        known = f"{self.modules[module]}.{name}" if module in self.modules else parameter
        return self.names.get(known, known)

    def shows(self, scope: Scope) -> bool:
        """Tell whether it looks at the calls of a module."""
        return self.unregistered or not (scope.part.attribute or "").startswith("?")


_ALL = View()


def disagreements(eager: Graph, other: Graph, view: View = _ALL) -> dict[str, Any]:
    """Give what two graphs of one model tell differently; nothing where they agree."""
    told = {
        "calls": (module_calls(eager, other, view), module_calls(other, eager, view)),
        "parameters": (parameters_read(eager, view), parameters_read(other, view)),
        "dataflow": (leaf_edges(eager, other, view), leaf_edges(other, eager, view)),
    }
    found: dict[str, Any] = {
        kind: _difference(one, two) for kind, (one, two) in told.items() if one != two
    }
    shapes = list(_wrong_shapes(result_shapes(eager, view), result_shapes(other, view)))
    if shapes:
        found["shapes"] = shapes
    return found


def _difference(one: Any, two: Any) -> Any:
    if isinstance(one, dict):
        keys = [key for key in {**one, **two} if one.get(key) != two.get(key)]
        return {key: (one.get(key), two.get(key)) for key in keys}
    if isinstance(one, set):
        return {"only eager": one - two, "only other": two - one}
    at = next((at for at, pair in enumerate(zip(one, two, strict=False)) if pair[0] != pair[1]), -1)
    return {"first at": at, "eager": one[at : at + 3], "other": two[at : at + 3]}


def _around(scope: Scope | None) -> Iterator[Scope]:
    while scope is not None:
        yield scope
        scope = scope.parent


def _shows_work(graph: Graph, view: View) -> set[Scope]:
    """Give the scopes in which something ran: a module that gives back what it got is none."""
    return {
        scope
        for node in graph.nodes
        if node.kind == "op" and (node.kernels or node.body or node.op != _label(node))
        if view.views or node.role != "view" or not any(v.producer.writes for v in node.inputs)
        for scope in _around(node.scope)
    }


def _label(node: Node) -> str:
    return "" if node.scope is None else node.scope.part.label


def _calls(graph: Graph, other: Graph, view: View) -> list[Call]:
    """Give the calls of a graph in which something runs, or that the other graph has, too."""
    works = _shows_work(graph, view)
    known = {view.path_of(call.scope) for call in other.calls}
    return [
        call
        for call in graph.calls
        if view.shows(call.scope) and (call.scope in works or view.path_of(call.scope) in known)
    ]


def module_calls(graph: Graph, other: Graph, view: View = _ALL) -> list[tuple[str, str]]:
    """Give path and class of each module call, in order; of the model itself the path tells it."""
    found = [
        (view.path_of(call.scope), call.class_name if call.scope.parent else "")
        for call in _calls(graph, other, view)
    ]
    return found if view.numbers and not view.modules else list(dict.fromkeys(found))


def parameters_read(graph: Graph, view: View = _ALL) -> dict[str, set[str]]:
    """Give by the path of each call the parameters that its own operations read."""
    found: dict[str, set[str]] = {}
    for node in graph.nodes:
        names = {value.producer.name for value in node.inputs if value.producer.kind == "parameter"}
        if names and node.op != "detach":
            told = {view.name_of(name) for name in names}
            found.setdefault(view.path_of(node.scope), set()).update(told)
    return found


def leaf_edges(graph: Graph, other: Graph, view: View = _ALL) -> set[tuple[str, str]]:
    """Give the pairs of innermost calls of which the second reads what the first led to."""
    calls = _calls(graph, other, view)
    holders = {scope for call in calls for scope in _around(call.scope.parent)}
    leaves = {call.scope for call in calls} - holders
    # Without shapes, a graph module has no kernels, and its modules look like identities.
    both = (graph, other)
    working = {view.path_of(scope) for each in both for scope in _shows_work(each, view)}
    before: dict[Node, frozenset[str]] = {}
    edges: set[tuple[str, str]] = set()
    for node in graph.nodes:
        read = node.inputs if view.sizes else node.inputs[: _reads(node.op)]
        sources = [value.producer for value in read] + node.control_inputs
        reached = frozenset().union(*(before[source] for source in sources))
        leaf = next((scope for scope in _around(node.scope) if scope in leaves), None)
        if leaf is not None:
            here = view.path_of(leaf)
            edges.update((source, here) for source in reached if source != here)
            if node.kind == "op" and (view.identities or here in working):
                reached = frozenset({here})
        before[node] = reached
    return edges


def _reads(op: str) -> int | None:
    """Give the number of inputs of which an operation reads more than the size; None for all."""
    return 1 if op.endswith("_as") else 0 if op.startswith("new_") else None


def result_shapes(graph: Graph, view: View = _ALL) -> dict[str, Counter[Any]]:
    """Give by the path of each call the shapes of the tensors that it gave."""
    found: dict[str, Counter[Any]] = {}
    for call in graph.calls:
        if view.shows(call.scope):
            gave = found.setdefault(view.path_of(call.scope), Counter())
            gave.update(value.shape for value in values_in(call.results))
    return found


def operations(
    graph: Graph,
    view: View = _ALL,
    *,
    live: bool = False,
    fed: bool = False,
    besides: Collection[str] = (),
    strides: bool = True,
) -> dict[str, Counter[str]]:
    """Give by the path of each call its own kernels, without those that compute nothing.

    Args:
        graph: The graph.
        view: What is not looked at.
        live: Whether to leave out operations whose results lead to no output and to no write.
        fed: Whether to leave out operations that no input, parameter or buffer leads to.
        besides: Operations to leave out.
        strides: Whether to tell the two kernels of a linear layer apart that strides decide.
    """
    needed = _live(graph) if live else set(graph.nodes)
    needed &= _fed(graph) if fed else needed
    found: dict[str, Counter[str]] = {}
    for node in graph.nodes:
        if node.kind == "op" and node in needed and node.op not in besides:
            kernels = [name for name in map(_kernel, node.kernels) if not _only_moves(name)]
            if not strides:
                kernels = [
                    part
                    for name in kernels
                    for part in (("aten::mm", "aten::add") if name == "aten::addmm" else (name,))
                ]
            if kernels:
                found.setdefault(view.path_of(node.scope), Counter()).update(kernels)
    return found


def _fed(graph: Graph) -> set[Node]:
    fed: set[Node] = set()
    for node in graph.nodes:
        own = node.kind in ("input", "parameter", "buffer")
        if own or not fed.isdisjoint(value.producer for value in node.inputs):
            fed.add(node)
    return fed


def given_numbers(graph: Graph) -> set[str]:
    """Give the operations to which a trace hands a number as a tensor, or one that it lost."""
    return {
        node.op
        for node in graph.nodes
        if any(value.shape == () and value.producer.kind == "constant" for value in node.inputs)
        or "int()" in map(str, leaves_in([argument.nest for argument in node.arguments], Constant))
    }


def undecided(graph: Graph, unknown: Callable[[Shape | None], bool]) -> set[str]:
    """Give the operations on tensors of unknown shapes, which no run on fake tensors takes apart.

    Args:
        graph: The graph.
        unknown: Whether the shape of an input or a result is an unknown one.
    """
    return {
        node.op
        for node in graph.nodes
        if node.kernels == [f"aten::{node.op}"]
        and _has_parts(node.op)
        and any(unknown(value.shape) for value in [*node.inputs, *node.outputs])
    }


@functools.cache
def _has_parts(op: str) -> bool:
    packet = getattr(torch.ops.aten, op)
    return any(is_only_composite(getattr(packet, overload)) for overload in packet.overloads())


def _live(graph: Graph) -> set[Node]:
    """Give the operations that lead to an output, or to a write into what the model is given."""
    given: set[Node] = set()
    for node in graph.nodes:
        first = node.inputs[0].producer if node.inputs else None
        if node.kind != "op" or (first in given and (node.writes or node.role == "view")):
            given.add(node)
    needed = {output.value.producer for output in graph.outputs}
    needed.update(node for output in graph.outputs for node in output.control_inputs)
    for node in reversed(graph.nodes):
        if node in needed or any(node.inputs[at].producer in given for at in node.writes):
            needed.update([node, *node.control_inputs], (v.producer for v in node.inputs))
    return needed


def _kernel(name: str) -> str:
    # torch.jit.trace writes the kernel inside of `convolution`.
    return name.replace("aten::_convolution", "aten::convolution")


@functools.cache
def _only_moves(kernel: str) -> bool:
    # A program hands on a tensor that is made of numbers by the last two.
    moves = ("aten::detach_", "aten::lift_fresh_copy")
    return role_of([kernel], reads=True) in ("view", "cast", "copy") or kernel in moves


def hyperparameters(graph: Graph, view: View = _ALL) -> dict[str, Any]:
    """Give by the path of each call its hyper-parameters, if the source has any."""
    return {view.path_of(call.scope): call.hyperparameters for call in graph.calls
            if call.hyperparameters}  # fmt: skip


def _wrong_shapes(eager: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    for path, shapes in other.items():
        # Of what is in an object of a user's class, an eager call tells nothing.
        if eager.get(path) and not shapes <= eager[path]:
            yield path, eager[path], shapes


def check_whole(graph: Graph) -> None:
    """Hold a graph against every invariant, and its drawing against every rule."""
    graph.verify()
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []
    assert graph.nodes or not graph.calls
