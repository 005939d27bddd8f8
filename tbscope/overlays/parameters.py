"""The parameters and buffers of a graph's modules, by all of their names."""

from collections.abc import Iterator
from typing import NamedTuple

from tbscope.drawing.naming import attribute_of
from tbscope.ir.graph import Graph, Node, Parameter
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
    """

    name: str
    parameter: Parameter
    identity: int | str
    place: Node | Scope


def held_parameters(graph: Graph) -> Iterator[Held]:
    """Yield each parameter and buffer of the model, once for each of its names."""
    known = [node for node in graph.nodes if node.kind in STATE]
    named = {node.name: node for node in known}
    nodes = {(node.scope, attribute_of(node)): node for node in known}
    called: dict[str, Scope] = {}
    owners: list[tuple[str, tuple[Parameter, ...]]] = [
        (module.name, module.parameters) for module in graph.modules
    ]
    places: dict[int | str, Node | Scope] = {}
    for call in graph.calls:
        owner = call.scope.path if call.qualified_name is None else call.qualified_name
        called.setdefault(owner, call.scope)
        owners.append((owner, call.parameters))
        for parameter in call.parameters:
            node = nodes.get((call.scope, parameter.name))
            if node is not None:
                places.setdefault(_identity(owner, parameter), node)
    for owner, parameters in owners:
        around = owner
        while around and around not in called:
            around = around.rpartition(".")[0]
        for parameter in parameters:
            identity = _identity(owner, parameter)
            name = f"{owner}.{parameter.name}" if owner else parameter.name
            place = places.get(identity) or named.get(name) or called.get(around)
            if place is not None:
                yield Held(name, parameter, identity, place)


def _identity(owner: str, parameter: Parameter) -> int | str:
    return parameter.number if parameter.number >= 0 else f"{owner}.{parameter.name}"
