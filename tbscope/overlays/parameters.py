"""The parameters and buffers of a graph's modules, by all of their names."""

from collections.abc import Iterator
from typing import NamedTuple

from tbscope.drawing.naming import attribute_of
from tbscope.ir.graph import Graph, Node, Parameter
from tbscope.ir.modules import ModuleTree, Part, parameter_key, walk
from tbscope.ir.regions import STATE
from tbscope.ir.scopes import Scope

__all__ = ["Held", "held_parameters"]


class Held(NamedTuple):
    """A parameter or buffer under one of its names.

    Attributes:
        name: The qualified name.
        parameter: What it is.
        identity: The same for all names of one parameter.
        place: The node that stands for it, or where none does, the scope of its module, or
            the innermost one around it that was called.
        scopes: All scopes of its module: a later call of a model stands in one with a number.
    """

    name: str
    parameter: Parameter
    identity: int | str
    place: Node | Scope
    scopes: tuple[Scope, ...]


def held_parameters(graph: Graph) -> Iterator[Held]:
    """Yield each parameter and buffer of the model, once for each of its names."""
    nodes = {(node.scope, attribute_of(node)): node for node in graph.nodes if node.kind in STATE}
    parts = list(walk(ModuleTree(graph).top))
    places: dict[int | str, Node] = {}
    for part in parts:
        for parameter in part.held:
            for scope in part.scopes:
                node = nodes.get((scope, parameter.name))
                if node is not None:
                    places.setdefault(parameter_key(part, parameter), node)
    for part in parts:
        owner = part.calls[0].scope.path if part.name is None and part.calls else part.name
        for parameter in part.held:
            identity = parameter_key(part, parameter)
            name = f"{owner}.{parameter.name}" if owner else parameter.name
            place = places.get(identity) or _called_around(part)
            if place is not None:
                yield Held(name, parameter, identity, place, tuple(part.scopes))


def _called_around(part: Part) -> Scope | None:
    """Return the scope of the first call of a part, or of the innermost part around it."""
    around: Part | None = part
    while around is not None and not around.calls:
        around = around.parent
    return around.calls[0].scope if around else None
