"""Overlays of gradients: what each module's are like that the last backward pass has left."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import hypot, prod

from tbscope.drawing.figures import Figure, Number, Target, to_figure
from tbscope.errors import ArgumentError
from tbscope.ir.graph import Graph, Node
from tbscope.ir.scopes import Scope
from tbscope.overlays.parameters import held_parameters

__all__ = ["count_of", "gradient_figure", "norm_of", "share_of_zeros"]

_ZEROS = "gradient_zeros"


def gradient_figure(
    graph: Graph, name: str, number: Callable[[Sequence[Node]], Number | None]
) -> tuple[Figure, ...]:
    """Return the figure of the gradients of each module's own parameters.

    Args:
        graph: The graph.
        name: What the figure is called.
        number: Returns the number of the gradients that some nodes have given; None for none.
    Raises:
        ArgumentError: No backward pass was recorded.
    """
    gave: dict[str, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if _ZEROS in node.attributes:
            gave[str(node.attributes["gradient_of"])].append(node)
    if not gave:
        raise ArgumentError(
            f"the graph of {graph.name} has no gradients of parameters",
            why="they are those that a recorded backward pass has left",
            fix="with tbscope.record(model) as recording: model(x).sum().backward()",
        )
    modules: dict[Scope, dict[int | str, Node]] = defaultdict(dict)
    every = list(held_parameters(graph))
    named: dict[str, set[int | str]] = defaultdict(set)
    for held in every:
        named[held.name].add(held.identity)
    for held in every:
        scope = held.place.scope if isinstance(held.place, Node) else held.place
        if held.name in gave and scope is not None:
            last = _last(gave[held.name], held.scopes, alone=len(named[held.name]) == 1)
            if last is not None:
                modules[scope].setdefault(held.identity, last)
    numbers: dict[Target, Number] = {}
    for scope, nodes in modules.items():
        told = number(list(nodes.values()))
        if told is not None:
            numbers[scope] = told
    return (to_figure(name, numbers),)


def _last(nodes: Sequence[Node], scopes: Iterable[Scope], *, alone: bool) -> Node | None:
    """Return the last node that gave a gradient; None where it is not known that one did.

    Args:
        nodes: Those that gave one to a parameter of this name, in order.
        scopes: Those of the module that holds it.
        alone: Whether there is one parameter of this name; else that in these scopes is meant.
    """
    if alone:
        return nodes[-1]
    paths = {scope.path for scope in scopes}
    # What belongs to a module in a backward pass stands there below its scope: `gradients/Net`.
    ends = tuple([f"/{path}" for path in paths])
    own = [
        node for node in nodes if str(node.scope).endswith(ends) or _mirrored(node.scope) in paths
    ]
    return own[-1] if own else None


def _mirrored(scope: Scope | None) -> str:
    """Return the path of what is mirrored where a pass began in a scope: `step/gradients/Net`."""
    inside: list[str] = []
    while scope is not None and scope.phase != "forward":
        inside.append(str(scope.part))
        scope = scope.parent
    around = [] if scope is None else [scope.path]
    return "/".join([*around, *inside[-2::-1]])


def norm_of(nodes: Sequence[Node]) -> Number | None:
    """Return the norm of all gradients together; None where one holds what is no number."""
    norms = [node.attributes.get("gradient_norm") for node in nodes]
    told = [norm for norm in norms if isinstance(norm, float | int)]
    return hypot(*told) if len(told) == len(norms) else None


def share_of_zeros(nodes: Sequence[Node]) -> Number | None:
    """Return which part of all elements is 0; None where there are none."""
    size = sum(prod(length or 0 for length in node.outputs[0].shape or ()) for node in nodes)
    return _sum(nodes, _ZEROS) / size if size else None


def count_of(attribute: str) -> Callable[[Sequence[Node]], Number | None]:
    """Return a function that counts elements by an attribute."""
    return lambda nodes: _sum(nodes, attribute)


def _sum(nodes: Sequence[Node], attribute: str) -> int:
    counts = [node.attributes.get(attribute, 0) for node in nodes]
    return sum(count for count in counts if isinstance(count, int))
