"""Levels of detail: stacks of equal blocks, modules, operations, or the kernels inside of them."""

from typing import Literal, TypeAlias

from tbscope.ir.graph import Graph
from tbscope.passes.kernels import expand_kernels
from tbscope.passes.modules import collapse_modules
from tbscope.passes.overview import Stack, stack_blocks

__all__ = ["Level", "Stack", "set_level"]

Level: TypeAlias = Literal["overview", "module", "op", "aten"]
"""How far a graph goes into detail."""


def set_level(graph: Graph, level: Level = "op") -> list[Stack]:
    """Bring a graph to a level of detail.

    Args:
        graph: Changed in place.
        level: "overview" makes one node of equal blocks that follow one another; "module"
            one of each module that calls no other one; "op" leaves all as it is; "aten" makes
            a scope of each operation in which several kernels ran.
    Returns:
        The stacks of equal blocks.
    Raises:
        ArgumentError: The kernels were not recorded.
    """
    if level == "overview":
        return stack_blocks(graph)
    if level == "module":
        collapse_modules(graph)
    elif level == "aten":
        expand_kernels(graph)
    return []
