"""Levels of detail: stacks of equal blocks, modules, operations, or the kernels inside of them."""

from typing import Literal, TypeAlias, get_args

from tbscope.checks import is_word
from tbscope.errors import ArgumentError
from tbscope.ir.graph import Graph
from tbscope.passes.kernels import expand_kernels
from tbscope.passes.modules import collapse_modules
from tbscope.passes.overview import Stack, stack_blocks
from tbscope.words import shown

__all__ = ["Level", "Stack", "check_level", "set_level"]

Level: TypeAlias = Literal["overview", "module", "op", "aten"]
"""How far a graph goes into detail."""


def check_level(level: object) -> None:
    """Check the option, before anything has been run for it.

    Raises:
        ArgumentError: It is no level.
    """
    if not is_word(level, get_args(Level)):
        raise ArgumentError(
            f"a graph cannot be drawn at the level {shown(level)}",
            why="level is 'overview', 'module', 'op' or 'aten'",
            fix="level='module' for modules alone, level='aten' for the kernels of operations",
        )


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
        ArgumentError: The level is none, or the kernels were not recorded.
    """
    check_level(level)
    if level == "overview":
        return stack_blocks(graph)
    if level == "module":
        collapse_modules(graph)
    elif level == "aten":
        expand_kernels(graph)
    return []
