"""Bundles: boxes that are no scopes of a graph, and the words for which of them are wanted."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tbscope.ir.graph import Node
from tbscope.ir.scopes import Scope, ScopePart

__all__ = ["STAGES", "Bundles", "Helpers", "Stage"]

Helpers: TypeAlias = Literal["auto", "all", "none"]
"""Which helper functions and loops are boxes: those in levels that are too full ("auto"), every
function and the loops in such levels ("all"), or none."""

Stage: TypeAlias = Literal["functions", "parts", "steps"]
"""What is looked for: functions in which no module was called, any functions, and loops."""
STAGES: tuple[Stage, ...] = ("functions", "parts", "steps")
"""All that may be looked for, the mildest first."""


@dataclass(slots=True)
class Bundles:
    """Boxes that are no scopes of the graph, and what stands in them.

    Attributes:
        scopes: These boxes, outer ones first.
        nodes: In which of them an operation stands right away.
        inner: In which of them a scope of the graph, or another one, stands.
        parts: What a module call prints as whose number is another one in its box.
        free: Those of these boxes in which no module was called.
    """

    scopes: list[Scope] = field(default_factory=list)
    nodes: dict[Node, Scope] = field(default_factory=dict)
    inner: dict[Scope, Scope] = field(default_factory=dict)
    parts: dict[Scope, ScopePart] = field(default_factory=dict)
    free: list[Scope] = field(default_factory=list)
