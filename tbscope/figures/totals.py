"""Totals: what all modules below a scope own together, each parameter counted once."""

import math
from collections import defaultdict
from dataclasses import dataclass

from tbscope.ir.graph import Graph, Parameter
from tbscope.ir.regions import inside_out, with_above
from tbscope.ir.scopes import Scope

__all__ = ["Totals", "parameter_totals"]


@dataclass(slots=True)
class Totals:
    """What stands in a scope and below it.

    Attributes:
        parameters: Numbers in all parameters.
        trainable: Those of parameters that require a gradient.
        size_bytes: Bytes of all parameters and buffers.
    """

    parameters: int = 0
    trainable: int = 0
    size_bytes: int = 0

    def add(self, parameter: Parameter) -> None:
        """Count one parameter or buffer; one that is not initialised yet counts nothing."""
        self.size_bytes += parameter.size_bytes
        if parameter.kind == "parameter" and parameter.shape is not None:
            size = math.prod(length for length in parameter.shape if length is not None)
            self.parameters += size
            self.trainable += size if parameter.requires_grad else 0

    def add_all(self, other: "Totals") -> None:
        """Count what another one has counted."""
        self.parameters += other.parameters
        self.trainable += other.trainable
        self.size_bytes += other.size_bytes


def parameter_totals(graph: Graph) -> dict[Scope, Totals]:
    """Return the totals of each scope in which, or below which, a module was called.

    Args:
        graph: Any graph whose calls tell their modules' parameters.
    Returns:
        Totals by scope. One that two modules hold (tied weights), or one of a module that is
        called twice, counts once in every scope that holds both.
    """
    holders: dict[int | str, list[tuple[Scope, Parameter]]] = defaultdict(list)
    for call in graph.calls:
        for parameter in call.parameters:
            known = parameter.number
            owner = call.qualified_name or call.scope.path
            holders[known if known >= 0 else f"{owner}.{parameter.name}"].append(
                (call.scope, parameter)
            )
    totals: dict[Scope, Totals] = defaultdict(Totals)
    for held in holders.values():
        if len(held) == 1:
            totals[held[0][0]].add(held[0][1])
    for scope, above in inside_out(graph.scopes()):
        if scope in totals:
            totals[above].add_all(totals[scope])
    for held in holders.values():
        if len(held) > 1:
            for scope in with_above(scope for scope, _ in held):
                totals[scope].add(held[0][1])
    return dict(totals)
