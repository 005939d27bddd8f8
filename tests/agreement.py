"""Whether the graphs of one model from two sources agree: calls, parameters, dataflow, shapes.

What a source cannot tell (docs/sources.md names it) is left out of the comparison.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import tbscope
from tbscope.ir.graph import Call, Graph, Node
from tbscope.ir.nests import values_in
from tbscope.ir.regions import Regions
from tbscope.ir.scopes import Scope

__all__ = ["disagreements", "leaf_edges", "module_calls", "parameters_read", "result_shapes"]


def disagreements(eager: Graph, other: Graph) -> dict[str, Any]:
    """Give what two graphs of one model tell differently; nothing where they agree."""
    told = {
        "calls": (module_calls(eager, other), module_calls(other, eager)),
        "parameters": (parameters_read(eager), parameters_read(other)),
        "dataflow": (leaf_edges(eager, other), leaf_edges(other, eager)),
    }
    found: dict[str, Any] = {
        kind: _difference(one, two) for kind, (one, two) in told.items() if one != two
    }
    shapes = list(_wrong_shapes(result_shapes(eager), result_shapes(other)))
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


def path_of(scope: Scope | None) -> str:
    """Give the path of a call, without the classes of containers and without blocks by hand."""
    steps = []
    while scope is not None:
        part = scope.part
        if scope.kind == "container":
            steps.append(f"[{part.attribute}]")
        elif scope.kind == "module":
            steps.append(str(part))
        scope = scope.parent
    return "/".join(reversed(steps))


def _around(scope: Scope | None) -> Iterator[Scope]:
    while scope is not None:
        yield scope
        scope = scope.parent


def _shows_work(graph: Graph) -> set[Scope]:
    """Give the scopes in which something ran: a module that gives back what it got is none."""
    return {
        scope
        for node in graph.nodes
        if node.kind == "op" and (node.kernels or node.body or node.op != _label(node))
        for scope in _around(node.scope)
    }


def _label(node: Node) -> str:
    return "" if node.scope is None else node.scope.part.label


def _calls(graph: Graph, other: Graph) -> list[Call]:
    """Give the calls of a graph in which something runs, or that the other graph has, too."""
    works = _shows_work(graph)
    known = {path_of(call.scope) for call in other.calls}
    return [call for call in graph.calls if call.scope in works or path_of(call.scope) in known]


def module_calls(graph: Graph, other: Graph) -> list[tuple[str, str]]:
    """Give path and class of each module call, in order; of the model itself the path tells it."""
    return [
        (path_of(call.scope), call.class_name if call.scope.parent else "")
        for call in _calls(graph, other)
    ]


def parameters_read(graph: Graph) -> dict[str, set[str]]:
    """Give by the path of each call the parameters that its own operations read."""
    found: dict[str, set[str]] = {}
    for node in graph.nodes:
        names = {value.producer.name for value in node.inputs if value.producer.kind == "parameter"}
        if names and node.op != "detach":
            found.setdefault(path_of(node.scope), set()).update(names)
    return found


def leaf_edges(graph: Graph, other: Graph) -> set[tuple[str, str]]:
    """Give the pairs of innermost calls of which the second reads what the first led to."""
    calls = _calls(graph, other)
    holders = {scope for call in calls for scope in _around(call.scope.parent)}
    leaves = {call.scope for call in calls} - holders
    before: dict[Node, frozenset[str]] = {}
    edges: set[tuple[str, str]] = set()
    for node in graph.nodes:
        sources = [value.producer for value in node.inputs] + node.control_inputs
        reached = frozenset().union(*(before[source] for source in sources))
        leaf = next((scope for scope in _around(node.scope) if scope in leaves), None)
        if leaf is not None:
            here = path_of(leaf)
            edges.update((source, here) for source in reached if source != here)
            if node.kind == "op":
                reached = frozenset({here})
        before[node] = reached
    return edges


def result_shapes(graph: Graph) -> dict[str, Counter[Any]]:
    """Give by the path of each call the shapes of the tensors that it gave."""
    return {
        path_of(call.scope): Counter(value.shape for value in values_in(call.results))
        for call in graph.calls
    }


def _wrong_shapes(eager: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    for path, shapes in other.items():
        # Of what is in an object of a user's class, an eager call tells nothing.
        if eager.get(path) and not shapes <= eager[path]:
            yield path, eager[path], shapes


def check_whole(graph: Graph) -> None:
    """Hold a graph against every invariant, and its drawing against every rule."""
    tbscope.verify(graph)
    assert tbscope.lint(tbscope.to_graph_def(graph)) == []
    assert Regions(graph).children(None) or not graph.calls
